"""The service of one core. It passes a call to the group's machine if that is local, else to the
core that hosts it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import product
from typing import Any, Protocol

import msgspec
from msgspec import structs

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.base.futures import settle
from polynya.base.names import group_of
from polynya.replica.log import check_proposal, decode_command, encode_command
from polynya.service.api import (
    AppendTo,
    DoneAll,
    Facts,
    Page,
    ReadQuery,
    Refusal,
    Sink,
    Span,
    Trimmed,
    TrimQuery,
)
from polynya.service.routing import messages, relay
from polynya.service.routing.bundles import Bundles, handler_of
from polynya.service.routing.fan_out import ReplicaFanOut
from polynya.service.routing.forwarding import (
    LOOK_SECONDS,
    PATIENCE_SECONDS,
    Forwarding,
    ForwardingAppender,
)
from polynya.service.routing.outcomes import Outcomes
from polynya.service.routing.remote_tails import RemoteTails, TailTransport, serve_tails
from polynya.service.streams.appends import Appender
from polynya.service.streams.forks import create_fork
from polynya.service.streams.leader_epochs import epoch_end
from polynya.service.streams.local import LocalGroups
from polynya.service.streams.retention import set_bucket, trim
from polynya.stream.commands import Command, Create, Retention
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
        self.now_ms = local.now_ms  # bound once: it is called for each append
        self.groups = groups
        self._core = core
        self._cores = cores
        self._transport = transport
        self._routes: dict[str, int] = {}
        # returns the URL of the node that leads a stream's group, unless it is this one
        self.hint: Callable[[str], str] | None = None
        self.flush_here: Callable[[str], Awaitable[None]] = _nothing_to_flush
        self._tails: dict[
            tuple[bool, bool], RemoteTails
        ] = {}  # by the arguments of `attach`: local, numbers
        self._forwarding: Forwarding | None = None
        self._bundles: Bundles | None = None
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
        self._forwarding = forwarding
        self._places.join(forwarding)

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
        if (
            group not in self._machines
            or not self.local.settled(name)
            or not self.local.readable(group)
        ):
            return None
        return self.local.facts(group, name)

    async def facts(self, name: str, *, local: bool = False) -> Facts | Refusal:
        group = self.group_of(name)
        question = messages.Attach(group, name, local)
        found: Facts | Refusal = await self._at_replica(
            group, messages.FACTS, question, self._facts_here, local=local
        )
        return found

    def appender(self, name: str) -> AppendTo:
        group = self._routes.get(name) or self.group_of(name)
        forwarding = self._forwarding
        if group % self._cores == self._core:
            here = Appender(self.local.appends, group).append
            return (
                here if forwarding is None else ForwardingAppender(forwarding, group, here).append
            )
        if forwarding is not None:
            return partial(forwarding.propose, group)
        return partial(self._propose_at, group)

    def propose(self, name: str, command: Command, done: Done) -> None:
        self.propose_to(self.group_of(name), command, done)

    def propose_to(self, group: int, command: Command, done: Done) -> None:
        """Propose a command by group number; it may name no stream."""
        if self._forwarding is not None:
            self._forwarding.propose(group, command, done)
        elif group % self._cores == self._core:
            self.local.propose(group, command, done)
        else:
            self._propose_at(group, command, done)

    def propose_all(self, group: int, commands: Sequence[Command], done_all: DoneAll) -> None:
        outcomes = Outcomes(len(commands), done_all)
        for number, command in enumerate(commands):
            done = partial(outcomes.done, number)
            try:
                self.propose_to(group, command, done)
            except Exception as fault:  # the other commands still need their outcomes
                done(fault)

    def _propose_at(self, group: int, command: Command, done: Done) -> None:
        """Propose to the core of this node that hosts the group."""
        if self._bundles is None:
            assert self._transport is not None
            self._bundles = Bundles(self._transport)
        self._bundles.propose(group % self._cores, group, command, encode_command(command), done)

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
        group = self.group_of(query.name)
        question = messages.Query(group, query)
        page: Page | Refusal = await self._at_replica(
            group, messages.READ, question, self._read_here, local=query.local
        )
        return page

    async def read_uid(
        self,
        uid: int,
        at: tuple[int, int],
        until: tuple[int, int],
        limits: tuple[int, bool],
        *,
        local: bool = False,
    ) -> tuple[list[Span], tuple[int, int]]:
        question = messages.ReadUid(uid, at, until, limits, local)
        spans: tuple[list[Span], tuple[int, int]] = await self._at_replica(
            uid >> 48, messages.READ_UID, question, self._read_uid_here, local=local
        )
        return spans

    async def place_of_time(
        self, uid: int, time_ms: int, until: tuple[int, int], record_from: int = -1
    ) -> tuple[int, int]:
        """Return the position of a time in a fork's source, at most the fork point `until`.
        `record_from`: of a record time, from this record on."""
        question = messages.TimeOfUid(uid, time_ms, until, record_from)
        found: tuple[int, int] = await self._at_replica(
            uid >> 48, messages.PLACE_OF_TIME, question, self._place_of_time_here
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
            range(1, self.groups + 1), messages.LIST, question, self._list_here, local=local
        )
        return sorted((facts for part in parts for facts in part), key=lambda facts: facts.name)[
            :limit
        ]

    async def ask_tables(self) -> list[Table]:
        """Return the tables from the meta group."""
        tables: list[Table] = await self._at_replica(
            0, messages.TABLES, messages.Flush(""), self._tables_here
        )
        return tables

    async def trim(self, query: TrimQuery) -> Trimmed | Refusal:
        return await trim(self, query)

    async def set_bucket(self, bucket: str, retention: Retention | None) -> None:
        await set_bucket(self, bucket, retention)

    async def buckets(self) -> dict[str, Retention]:
        """Return the retention of each bucket from the meta group."""
        found: dict[str, Retention] = await self._at_replica(
            0, messages.BUCKETS, messages.Flush(""), self._buckets_here
        )
        return found

    async def topics(self, since: int, *, local: bool = False) -> TopicNews:
        """Return the Kafka topics of the meta group that changed since a number; -1: all. `local`:
        of this node's replica."""
        question = messages.TopicQuery(since, local)
        found: TopicNews = await self._at_replica(
            0, messages.TOPICS, question, self._topics_here, local=local
        )
        return found

    async def meta(self, scope: str) -> dict[str, bytes]:
        """Return the entries of the meta group under a scope (see `polynya.stream.rules.meta`)."""
        found: dict[str, bytes] = await self._at_replica(
            0, messages.META, messages.Flush(scope), self._meta_here
        )
        return found

    async def ask_lags(self, query: messages.LagQuery) -> list[Lag]:
        """Return a table's lag in each group."""

        def question(groups: list[int]) -> messages.LagQuery:
            return structs.replace(query, groups=groups)

        parts = await self.of_groups(
            range(1, self.groups + 1), messages.LAG, question, self._lags_here
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

    def epoch_of(self, group: int) -> int:
        """Return the leader epoch of a group, as far as this core knows; -1: unknown."""
        if self._forwarding is not None:
            return self._forwarding.epoch_of(group) or -1
        # all groups have the same base, and a single node has no terms
        return next((machine.epoch_base for machine in self._machines.values()), -1)

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
        serve_tails(transport, self.local)
        self._on_async(transport, messages.FACTS, messages.Attach, self._facts_here)
        self._on_async(transport, messages.READ, messages.Query, self._read_here)
        self._on_async(transport, messages.READ_UID, messages.ReadUid, self._read_uid_here)
        self._on_async(
            transport, messages.PLACE_OF_TIME, messages.TimeOfUid, self._place_of_time_here
        )
        self._on_async(transport, messages.BUCKETS, messages.Flush, self._buckets_here)
        self._on_async(transport, messages.TOPICS, messages.TopicQuery, self._topics_here)
        self._on_async(transport, messages.EPOCH_END, messages.EpochQuery, self._epoch_end_here)
        self._on_async(transport, messages.META, messages.Flush, self._meta_here)
        self._on_async(transport, messages.LIST, messages.ListQuery, self._list_here)
        self._on_async(transport, messages.TABLES, messages.Flush, self._tables_here)
        self._on_async(transport, messages.LAG, messages.LagQuery, self._lags_here)
        self._on_async(
            transport,
            messages.FLUSH,
            messages.Flush,
            lambda question: self.flush_here(question.prefix),
        )

    async def _read_here(self, question: messages.Query) -> Page | Refusal:
        group, query = question.group, question.query
        try:
            await self.local.prepare(group, local=query.local)
        except Unavailable as fault:
            return await self.local.read_sealed(group, query, fault)
        return await self.local.read(group, query)

    async def _read_uid_here(
        self, question: messages.ReadUid
    ) -> tuple[list[Span], tuple[int, int]]:
        await self.local.prepare(question.uid >> 48, local=question.local)
        return await self.local.read_uid(
            question.uid, question.at, question.until, question.limits, local=question.local
        )

    async def _place_of_time_here(self, question: messages.TimeOfUid) -> tuple[int, int]:
        await self.local.linearize(question.uid >> 48)
        return await self.local.times.place_in_source(
            question.uid, question.time_ms, question.until, question.record_from
        )

    async def _tables_here(self, question: messages.Flush) -> list[Table]:
        await self.local.linearize(0)
        return self.local.tables()

    async def _buckets_here(self, question: messages.Flush) -> dict[str, Retention]:
        await self.local.linearize(0)
        return dict(self.local.here(0).buckets)

    async def _topics_here(self, question: messages.TopicQuery) -> TopicNews:
        await self.local.prepare(0, local=question.local)
        machine = self.local.here(0)
        news = machine.topic_changes.since(question.since, machine.topics)
        news.topics = [structs.replace(topic) for topic in news.topics]
        return news

    async def _meta_here(self, question: messages.Flush) -> dict[str, bytes]:
        await self.local.linearize(0)
        scope = question.prefix
        return {
            name: value
            for name, value in self.local.here(0).meta.items()
            if name == scope or name.startswith(f"{scope}/")
        }

    async def _lags_here(self, question: messages.LagQuery) -> list[Lag]:
        await self.local.linearize_all(question.groups)
        return await self.local.lags(question)

    async def _facts_here(self, question: messages.Attach) -> Facts | Refusal:
        await self.local.prepare(question.group, local=question.local)
        return self.local.facts(question.group, question.name, local=question.local)

    async def _epoch_end_here(self, question: messages.EpochQuery) -> int | Refusal:
        group, epoch = question.group, question.epoch
        await self.local.linearize(group)
        newest = (
            self.epoch_of(group) if self._forwarding is None else self._forwarding.newest(group)
        )
        return await epoch_end(self.local, group, question.name, epoch) if epoch <= newest else -1

    async def _list_here(self, question: messages.ListQuery) -> list[Facts]:
        await asyncio.gather(
            *(self.local.prepare(group, local=question.local) for group in question.groups)
        )
        for group in question.groups:
            self.local.here(group)
        groups = frozenset(question.groups)
        return await self.local.list_streams(
            question.prefix, question.after, question.limit, groups
        )

    def _on_async(
        self, transport: CoreTransport, kind: int, shape: Any, handle: Callable[[Any], Any]
    ) -> None:
        decoder = msgspec.msgpack.Decoder(shape)
        running: set[asyncio.Task[None]] = set()

        async def run(body: bytes, reply: Answer) -> None:
            try:
                reply(messages.encode(await handle(decoder.decode(body))))
            except Exception as fault:  # the calling core raises it again
                reply(fault)

        def handler(body: bytes, reply: Answer, peer: int) -> None:
            task = asyncio.get_running_loop().create_task(run(bytes(body), reply))
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
