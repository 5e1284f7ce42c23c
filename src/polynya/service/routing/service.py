"""The service of one core. It passes a call to the group's machine if that is local, else to the
core that hosts it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, Protocol

import msgspec
from msgspec import structs

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.base.names import group_of
from polynya.cold import PackGone
from polynya.replica.log import check_proposal, decode_command, encode_command
from polynya.service.api import (
    AppendTo,
    DoneAll,
    Facts,
    Page,
    ReadLimits,
    ReadQuery,
    Refusal,
    Sink,
    Span,
    Trimmed,
    TrimQuery,
)
from polynya.service.bucket_profiles import BucketProfiles
from polynya.service.routing import messages, relay
from polynya.service.routing.bundles import AppendBundle, Bundles, handler_of
from polynya.service.routing.diskless import DisklessRoutes, DisklessWriter, RemoteAppender
from polynya.service.routing.fan_out import ReplicaFanOut
from polynya.service.routing.forwarding import (
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    Forwarding,
    ForwardingAppender,
)
from polynya.service.routing.local_answers import LocalAnswers
from polynya.service.routing.outcomes import Outcomes
from polynya.service.routing.remote_leaders import RemoteLeaders
from polynya.service.routing.remote_tails import RemoteTails, TailTransport, serve_tails
from polynya.service.streams.appends import Appender
from polynya.service.streams.forks import create_fork
from polynya.service.streams.leader_epochs import epoch_end
from polynya.service.streams.local import LocalGroups
from polynya.service.streams.pieces import PlannedPage, PlannedSpans
from polynya.service.streams.retention import set_bucket, trim
from polynya.stream.commands import Append, Command, Create, Produce, Retention
from polynya.stream.replies import Code, Done, Reply
from polynya.stream.rules.tables import Lag, Table
from polynya.stream.rules.topics import TopicNews
from polynya.wal import DiskFull

Answer = Callable[[bytes | BaseException], None]
_ROUTES_MAX = 65_536


class CoreTransport(TailTransport, Protocol):
    """Messages between the cores of a node; see `polynya.transport`."""

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None: ...

    def protocol(self, core: int) -> int: ...

    def on(self, kind: int, handler: Callable[[bytes, Answer, int], None]) -> None: ...


class NodeService:
    """The implementation of `polynya.service.api.Service`. `transport` is None on a node with one
    core."""

    def __init__(
        self,
        local: LocalGroups,
        *,
        groups: int,
        core: int,
        cores: int,
        transport: CoreTransport | None,
    ) -> None:
        self.local = local
        self.bucket_profiles = BucketProfiles(self)
        self._answers = LocalAnswers(local)
        self.now_ms = local.now_ms  # bound once: it is called for each append
        self.groups = groups
        self._core = core
        self._cores = cores
        self._transport = transport
        self._routes: dict[str, int] = {}
        # returns the URL of the node to use for a stream in a zone, unless it is this one
        self.hint: Callable[[str, str], str] | None = None
        self.flush_here: Callable[[str], Awaitable[None]] = _nothing_to_flush
        self._tails: dict[
            tuple[bool, bool], RemoteTails
        ] = {}  # by the arguments of `attach`: local, numbers
        self._forwarding: Forwarding | None = None
        self._remote_leaders: RemoteLeaders | None = None
        self.is_up: Callable[[int], bool] = lambda node: True  # reports a node that it reaches
        # … or that fell silent a moment ago: it still owns streams
        self.seems_up: Callable[[int], bool] = lambda node: True
        self._bundles: Bundles | None = None
        self.payload: defaultdict[int, int] = defaultdict(int)  # of reads by other cores
        self._diskless = DisklessRoutes(self._propose_waited)
        self._machines = local.machines  # of the local groups
        self._places = ReplicaFanOut(local, core, cores)
        local.parents = self
        if transport is not None:
            for local_reads, numbers in product((False, True), repeat=2):
                self._tails[local_reads, numbers] = RemoteTails(
                    transport, local=local_reads, numbers=numbers
                )
            self._register(transport)

    def join(self, forwarding: Forwarding) -> None:
        """Join a cluster, in which other nodes may lead groups."""
        self._forwarding, self.is_up = forwarding, forwarding.is_up
        forwarding.diskless, forwarding.replicas = self._diskless, self._machines
        self._places.join(forwarding)
        self._remote_leaders = RemoteLeaders(forwarding, self.ask_core)
        self.serve(
            messages.LEADERS_OF, list[int], dict[int, tuple[int, int]], self._remote_leaders.answer
        )

    def take_diskless(self, writer: DisklessWriter) -> None:
        """Send the appends of diskless streams to this core's writer."""
        self._diskless.writer = writer

    def expect_diskless(self, name: str) -> None:
        self._diskless.expect(name)

    def expects_diskless(self, name: str) -> bool:
        """Report whether this core sends appends of a stream to its writer."""
        return name in self._diskless.names

    def group_of(self, name: str) -> int:
        group = self._routes.get(name)
        if group is None:
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            group = self._routes[name] = group_of(name, self.groups)
        return group

    # --- the interface of the fronts --------------------------------------------------------------

    def facts_nowait(self, name: str) -> Facts | Refusal | None:
        group = self.group_of(name)
        if not (self.is_readable(group) and self.local.settled(name)):
            return None
        return self.local.facts(group, name)

    def is_readable(self, group: int) -> bool:
        return group in self._machines and self.local.readable(group)

    async def facts(self, name: str, *, local: bool = False) -> Facts | Refusal:
        group = self.group_of(name)
        question = messages.Attach(group, name, local)
        found: Facts | Refusal = await self._at_replica(
            group, messages.FACTS, question, self._answers.facts, local=local
        )
        return found

    def appender(self, name: str) -> AppendTo:
        group = self._routes.get(name) or self.group_of(name)
        forwarding = self._forwarding
        if group % self._cores == self._core:
            here = Appender(self.local.appends, group, self._diskless).append
            return (
                here if forwarding is None else ForwardingAppender(forwarding, group, here).append
            )
        there = self._propose_at if forwarding is None else forwarding.propose
        return RemoteAppender(self._diskless, group, there).append

    def propose(self, name: str, command: Command, done: Done) -> None:
        group = self.group_of(name)
        if isinstance(command, Append | Produce) and self._is_diskless(group, name):
            self._diskless.append(group, command, done)
        else:
            self.propose_to(group, command, done)

    def _is_diskless(self, group: int, name: str) -> bool:
        if self._forwarding is None:
            return name in self._diskless.names
        return self._forwarding.is_diskless(group, name)

    def propose_to(self, group: int, command: Command, done: Done) -> None:
        """Propose a command by group number; it may name no stream."""
        if self._forwarding is not None:
            self._forwarding.propose(group, command, done)
        elif group % self._cores == self._core:
            if type(command) is Append or type(command) is Produce:
                done = self._diskless.watching(group, command, done)
            self.local.propose(group, command, done)
        else:
            self._propose_at(group, command, done)

    def _propose_waited(self, group: int, command: Command, done: Done) -> None:
        """Propose an append that has waited: log time never goes back."""
        self.propose_to(group, self.local.stamped(command), done)

    def propose_all(self, group: int, commands: Sequence[Command], done_all: DoneAll) -> None:
        outcomes = Outcomes(len(commands), done_all)
        for number, command in enumerate(commands):
            done = partial(outcomes.done, number)
            try:
                if type(command) is Append or type(command) is Produce:
                    self.propose(command.name, command, done)
                else:
                    self.propose_to(group, command, done)
            except Exception as fault:  # the other commands still need their outcomes
                done(fault)

    def _propose_at(self, group: int, command: Command, done: Done) -> None:
        """Propose to the core of this node that hosts the group."""
        if self._bundles is None:
            assert self._transport is not None
            self._bundles = Bundles(self._transport, self._landed)
        self._bundles.propose(group % self._cores, group, command, encode_command(command), done)

    def _landed(self, bundle: AppendBundle, outcomes: list[Reply | BaseException]) -> None:
        """Hand out the outcomes of appends that another core of this node judged."""
        for command, done, outcome in zip(bundle.commands, bundle.dones, outcomes, strict=True):
            self._diskless.answered(bundle.group, command, done, outcome)

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a command as one step of a larger operation. Raise the fault that `done` would
        receive, and DiskFull, so that a failed step is not mistaken for a completed one."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.propose_to(group, command, partial(settle, future))
        reply = await future
        if reply.code == Code.DISK_FULL:
            raise DiskFull("the journal's disk is full; nothing was applied")
        return reply

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        group = self._routes.get(query.name) or self.group_of(query.name)
        return self.local.read_nowait(group, query)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        try:
            return await self._read(query)
        except PackGone:  # the index has changed since the plan: plan again, once
            return await self._read(query)

    async def _read(self, query: ReadQuery) -> Page | Refusal:
        group = self.group_of(query.name)
        question = messages.Query(group, query, self.local.cold is not None)
        answer: Page | Refusal | PlannedPage = await self._at_replica(
            group, messages.READ, question, self._answers.read, local=query.local
        )
        if isinstance(answer, PlannedPage):
            return await self.local.pieces.page(answer, query)
        return answer

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: ReadLimits,
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]:
        pair = (limits.bytes_max, limits.whole_records)
        far = self.local.cold is not None
        question = messages.ReadUid(uid, at, until, pair, local, far, limits.append_times)
        answer: PlannedSpans = await self._at_replica(
            uid >> 48, messages.READ_UID, question, self._answers.read_uid, local=local
        )
        return await self.local.pieces.planned_spans(answer, limits, local=local)

    async def place_of_time(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]:
        """Return the position of a time in a fork's source, at most the fork point `until`.
        `record_from`: of a record time, from this record on."""
        question = messages.TimeOfUid(uid, time_ms, until, record_from)
        found: tuple[int, int] = await self._at_replica(
            uid >> 48, messages.PLACE_OF_TIME, question, self._answers.place_of_time
        )
        return found

    async def attach(
        self, name: str, sink: Sink, *, local: bool = False, numbers: bool = False
    ) -> Facts | Refusal:
        group = self.group_of(name)

        async def here() -> Facts | Refusal:
            await self.local.prepare(group, local=local)
            return self.local.attach(group, name, sink, local=local)

        async def there(place: int) -> Facts | Refusal:
            return await self._tails[local, numbers].attach(place, group, name, sink)

        return await self._places.ask(group, here, there, local=local)

    def detach(self, uid: int, sink: Sink) -> None:
        for tails in self._tails.values():
            tails.detach(uid, sink)
        if uid >> 48 in self._machines:
            self.local.detach(uid, sink)

    async def fork(
        self, command: Command, source: str, record: int, byte: int, sub_offset: int
    ) -> Reply:
        assert isinstance(command, Create)
        try:
            return await create_fork(self, command, source, (record, byte, sub_offset))
        except DiskFull:
            return Reply(Code.DISK_FULL)

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, local: bool = False
    ) -> list[Facts]:
        def question(groups: list[int]) -> messages.ListQuery:
            return messages.ListQuery(prefix, after, limit, local, groups)

        parts = await self.of_groups(
            range(1, self.groups + 1),
            messages.LIST,
            question,
            self._answers.list_streams,
            local=local,
        )
        return sorted((facts for part in parts for facts in part), key=lambda facts: facts.name)[
            :limit
        ]

    async def ask_tables(self) -> list[Table]:
        """Return the tables from the meta group."""
        tables: list[Table] = await self._at_replica(
            0, messages.TABLES, messages.Flush(""), self._answers.tables
        )
        return tables

    async def trim(self, query: TrimQuery) -> Trimmed | Refusal:
        return await trim(self, query)

    async def set_bucket(self, bucket: str, retention: Retention | None) -> None:
        await set_bucket(self, bucket, retention)

    async def buckets(self) -> dict[str, Retention]:
        """Return the retention of each bucket from the meta group."""
        found: dict[str, Retention] = await self._at_replica(
            0, messages.BUCKETS, messages.Flush(""), self._answers.buckets
        )
        return found

    async def topics(self, since: int, *, local: bool = False) -> TopicNews:
        """Return the Kafka topics of the meta group that changed since a number; -1: all. `local`:
        of this node's replica."""
        question = messages.TopicQuery(since, local)
        found: TopicNews = await self._at_replica(
            0, messages.TOPICS, question, self._answers.topics, local=local
        )
        return found

    async def meta(self, scope: str) -> dict[str, bytes]:
        """Return the entries of the meta group under a scope (see `polynya.stream.rules.meta`)."""
        found: dict[str, bytes] = await self._at_replica(
            0, messages.META, messages.Flush(scope), self._answers.meta
        )
        return found

    async def ask_lags(self, query: messages.LagQuery) -> list[Lag]:
        """Return a table's lag in each group."""

        def question(groups: list[int]) -> messages.LagQuery:
            return structs.replace(query, groups=groups)

        parts = await self.of_groups(
            range(1, self.groups + 1), messages.LAG, question, self._answers.lags
        )
        return [lag for part in parts for lag in part]

    async def flush(self, prefix: str) -> None:
        """Flush all hot data under a prefix of canonical names, on every core. Return when it is
        published."""
        await self.flush_here(prefix)
        others = (
            self.other_cores
            if self._forwarding is None
            else [*self.other_cores, *self._forwarding.places()]
        )
        for place in others:
            await self.ask_core(place, messages.FLUSH, messages.Flush(prefix))

    def home_of(self, group: int, *, through: bool = False) -> int:
        """Return the core that acts for a group, numbered as in `ask_core`; the own number for this
        core. `through`: allow a relay. Raise NotLeader while the group has no leader."""
        return (
            group % self._cores
            if self._forwarding is None
            else self._forwarding.home(group, through=through)
        )

    def leader_of(self, group: int) -> int:
        """Return the node that leads a group, as far as this core knows; 0: none, or no cluster."""
        return 0 if self._forwarding is None else self._forwarding.leader_of(group)

    def reached_leader_of(self, group: int) -> int:
        """Return the node that leads a group, if this node reaches it; -1: none is known. 0: this
        node, outside a cluster."""
        leader = self.leader_of(group)
        known = self._forwarding is None or (leader and self.is_up(leader))
        return leader if known else -1

    def epoch_of(self, group: int) -> int:
        """Return the leader epoch of a group, as far as this core knows; -1: unknown."""
        if self._forwarding is not None:
            return self._forwarding.epoch_of(group) or -1
        # all groups have the same base, and a single node has no terms
        return next((machine.epoch_base for machine in self._machines.values()), -1)

    async def learn_leaders(self) -> None:
        """Ask for the leaders of the groups that have no replica on this node."""
        if self._remote_leaders is not None:
            await self._remote_leaders.refresh()

    async def epoch_end(self, name: str, epoch: int) -> int | Refusal:
        """Return the end of the records of a leader epoch; -1: the epoch has not begun."""
        group = self.group_of(name)
        question = messages.EpochQuery(group, name, epoch)
        found: int | Refusal = await self._at_replica(
            group, messages.EPOCH_END, question, self._epoch_end_here
        )
        return found

    def leaderless(self, groups: Iterable[int]) -> list[int]:
        """Return the groups that have no known leader now; empty outside a cluster."""
        forwarding = self._forwarding
        return (
            []
            if forwarding is None
            else [group for group in groups if not forwarding.leader_of(group)]
        )

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the voters of the group, each with True if this node reaches it; empty outside a
        cluster."""
        return {} if self._forwarding is None else self._forwarding.voters_of(group)

    async def at_home(
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        changes: bool = False,
    ) -> Any:
        """Return the response of the core that acts for a group: from `handle` if that is this
        core. Wait for an election. `handle` may raise NotLeader only before it has done anything.
        `changes`: the request has an effect, so a lost response raises OutcomeUnknown."""
        patience = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            place = -1
            try:
                place = self.home_of(group, through=True)
                return await (
                    handle(question)
                    if place == self._core
                    else self._ask_at(place, kind, question, group, changes=changes)
                )
            except NotLeader as fault:
                if self._forwarding is not None and place >= 0:
                    self._forwarding.learn(group, place, fault.node)
                if asyncio.get_running_loop().time() > patience:
                    raise
                await asyncio.sleep(LOOK_SECONDS)

    @property
    def core(self) -> int:
        """The number of this core."""
        return self._core

    @property
    def cores(self) -> int:
        """The number of cores of the node."""
        return self._cores

    @property
    def other_cores(self) -> list[int]:
        return [core for core in range(self._cores) if core != self._core]

    async def ask_core(self, core: int, kind: int, question: Any) -> Any:
        """Send a request to a core, also of another node (see `home_of`). The rooms define their
        own kinds and `serve` them on every core."""
        return await self._ask_at(core, kind, question)

    def serve(
        self, kind: int, shape: Any, answer: Any, handle: Callable[[Any], Awaitable[Any]]
    ) -> None:
        """Serve requests of this kind from other cores: `handle` gets a `shape` and returns an
        `answer`."""
        messages.DECODERS[kind] = msgspec.msgpack.Decoder(answer)
        if self._transport is not None:
            self._on_async(self._transport, kind, shape, handle)

    async def of_groups(  # noqa: PLR0913
        self,
        groups: Iterable[int],
        kind: int,
        question: Callable[[list[int]], Any],
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
        missing: list[int] | None = None,
    ) -> list[Any]:
        """Return the results of a request over many groups, in parts; each group is in one part.
        `handle` serves groups with a replica on this core, other cores the rest. Raise Unavailable
        when no replica of a group responds; with `missing`, append such groups to it instead."""

        def there(place: int, some: list[int]) -> Awaitable[Any]:
            return self._ask_at(place, kind, question(some))

        return await self._places.ask_all(
            groups, lambda some: handle(question(some)), there, local=local, missing=missing
        )

    # --- between cores ----------------------------------------------------------------------------

    async def _at_replica(  # noqa: PLR0913
        self,
        group: int,
        kind: int,
        question: Any,
        handle: Callable[[Any], Awaitable[Any]],
        *,
        local: bool = False,
    ) -> Any:
        """Return the response of a replica: from `handle` if this core hosts one."""
        return await self._places.ask(
            group,
            lambda: handle(question),
            lambda place: self._ask_at(place, kind, question),
            local=local,
        )

    async def _ask_at(
        self, place: int, kind: int, question: Any, group: int = 0, *, changes: bool = False
    ) -> Any:
        """Send a request. `group`: with a relay, the group whose leader gets it. `changes`: see
        `at_home`."""
        assert self._transport is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(body: bytes | BaseException) -> None:
            if isinstance(body, OutcomeUnknown) and not changes:
                # the request has no effect, so a retry is safe
                body = Unavailable(f"{body}; retry")
            settle(future, body if isinstance(body, BaseException) else messages.decode(kind, body))

        relay.ask(self._transport, place, group, kind, messages.encode(question), answered)
        return await future

    def _register(self, transport: CoreTransport) -> None:
        transport.on(messages.PROPOSE, self._on_propose)
        transport.on(
            messages.PROPOSE_ALL,
            handler_of(
                self._leads, self._leader_of, self.local.propose, self.local.now_ms, self._came
            ),
        )
        serve_tails(transport, self.local, self.payload)
        self._on_async(transport, messages.FACTS, messages.Attach, self._answers.facts)
        self._on_async(
            transport,
            messages.READ,
            messages.Query,
            lambda question: self._answers.read_for(question, far=question.far),
        )
        self._on_async(transport, messages.READ_UID, messages.ReadUid, self._answers.read_uid_for)
        self._on_async(
            transport, messages.PLACE_OF_TIME, messages.TimeOfUid, self._answers.place_of_time
        )
        self._on_async(transport, messages.BUCKETS, messages.Flush, self._answers.buckets)
        self._on_async(transport, messages.TOPICS, messages.TopicQuery, self._answers.topics)
        self._on_async(transport, messages.EPOCH_END, messages.EpochQuery, self._epoch_end_here)
        self._on_async(transport, messages.META, messages.Flush, self._answers.meta)
        self._on_async(transport, messages.LIST, messages.ListQuery, self._answers.list_streams)
        self._on_async(transport, messages.TABLES, messages.Flush, self._answers.tables)
        self._on_async(transport, messages.LAG, messages.LagQuery, self._answers.lags)
        self._on_async(
            transport,
            messages.FLUSH,
            messages.Flush,
            lambda question: self.flush_here(question.prefix),
        )

    async def _epoch_end_here(self, question: messages.EpochQuery) -> int | Refusal:
        group, epoch = question.group, question.epoch
        await self.local.linearize(group)
        newest = (
            self.epoch_of(group) if self._forwarding is None else self._forwarding.newest(group)
        )
        return await epoch_end(self.local, group, question.name, epoch) if epoch <= newest else -1

    def _on_async(
        self, transport: CoreTransport, kind: int, shape: Any, handle: Callable[[Any], Any]
    ) -> None:
        decoder = msgspec.msgpack.Decoder(shape)
        running: set[asyncio.Task[None]] = set()

        async def run(body: bytes, reply: Answer, peer: int) -> None:
            try:
                found = await handle(decoder.decode(body))
                if size := messages.payload_of(found):
                    self.payload[peer] += size
                reply(messages.encode(found))
            except Exception as fault:  # the calling core raises it again
                reply(fault)

        def handler(body: bytes, reply: Answer, peer: int) -> None:
            task = asyncio.get_running_loop().create_task(run(bytes(body), reply, peer))
            running.add(task)
            task.add_done_callback(running.discard)

        transport.on(kind, handler)

    def _leads(self, group: int) -> bool:
        return self._forwarding is None or self._forwarding.leads(group)

    def _leader_of(self, group: int) -> int:
        return 0 if self._forwarding is None else self._forwarding.leader_here(group)

    def _came(self, group: int, sender: int, count: int) -> None:
        if self._forwarding is not None:
            self._forwarding.demand.came(group, sender, count)

    def _on_propose(self, body: bytes, reply: Answer, peer: int) -> None:
        group = int.from_bytes(body[:2], "little")
        if self._forwarding is not None and not self._forwarding.leads(group):
            reply(NotLeader(self._forwarding.leader_here(group)))
            return

        self._came(group, peer, 1)

        def done(outcome: Reply | BaseException) -> None:
            reply(outcome if isinstance(outcome, BaseException) else messages.encode(outcome))

        command = self.local.stamped(decode_command(body[2:]))
        check_proposal(command)  # the engine trusts appends
        self.local.propose(group, command, done)


async def _nothing_to_flush(prefix: str) -> None:
    """Do nothing: without an object tier all data stays hot."""
