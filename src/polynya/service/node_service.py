"""The service of one core: it assembles the routes to the groups, here or on other cores, and
answers what is asked of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from polynya.base.spans import Tracer
from polynya.local.api import (
    Page,
    ReadQuery,
    Refusal,
    StreamInfo,
    Trimmed,
    TrimQuery,
)
from polynya.local.forks import create_fork
from polynya.local.lifetimes.retention import set_bucket, trim
from polynya.local.local import LocalGroups
from polynya.routing import messages
from polynya.routing.answers import ForkSources, LocalAnswers, MetaGroup
from polynya.routing.forwarding import Forwarding
from polynya.routing.handle import StreamHandle, StreamReads
from polynya.routing.proposals import Proposals, ReceivedProposals, SoleRouter, StreamGroups
from polynya.routing.requests import Received
from polynya.routing.rpc import CoreTransport, NoTransport, Rpc
from polynya.routing.tails import serve_tails
from polynya.service.reducers.registry import Reducers
from polynya.service.settings.bucket_profiles import BucketProfiles
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.tables.rules import Lag
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull


class NodeService:
    """The implementation of `polynya.service.api.Service`. Its parts route what is asked:
    `directory` to the leaders, `rpc` to other cores, `proposals` to the logs, `reads` to replicas.

    `forwarding` is the router of a core in a cluster, None outside one."""

    def __init__(
        self,
        local: LocalGroups,
        *,
        groups: int,
        core: int,
        cores: int,
        transport: CoreTransport | None,
        router: Forwarding | None = None,
    ) -> None:
        """Assemble the routes. `transport` is None on a node with one core, `router` outside a
        cluster."""
        transport = transport or NoTransport()
        self.local = local
        self.groups = groups
        self.forwarding = router
        routes = router or SoleRouter(local, transport, core=core, cores=cores)
        self.directory = directory = routes.directory
        stream_groups = StreamGroups(groups)
        self.proposals = Proposals(routes, stream_groups)
        received = Received(transport, lambda: self.proposals.tracer)
        self.rpc = rpc = Rpc(
            local, directory, routes.targets, transport, received, core=core, cores=cores
        )
        ReceivedProposals(local, directory, received, routes.came)
        answers = LocalAnswers(local, directory)
        self.reads = StreamReads(local, rpc, answers, transport)
        self.meta_group = MetaGroup(rpc, answers, self.proposals.call)
        self.bucket_profiles = BucketProfiles(self.meta_group)
        self.reducers = Reducers(self.meta_group)
        self._answers = answers
        local.reads.parents = ForkSources(local.reads, rpc, answers)
        # what the fronts call, bound once: the hot path goes straight to a part
        self.now_ms = local.now_ms
        self.group_of, self._groups = stream_groups.of, stream_groups.known
        self.propose = self.proposals.propose
        self.call = self.proposals.call
        self.is_readable, self.detach = self.reads.is_readable, self.reads.detach
        # returns the URL of the node to use for a stream in a zone, unless it is this one
        self.hint: Callable[[str, str], str] | None = None
        self.flush_here: Callable[[str], Awaitable[None]] = _nothing_to_flush
        self._serve(transport)

    def trace(self, tracer: Tracer | None) -> None:
        """Trace the requests of other cores that are parts of traced ones."""
        self.proposals.tracer = tracer
        if self.forwarding is not None:
            self.forwarding.relay.tracer = tracer

    def _serve(self, transport: CoreTransport) -> None:
        """Answer the requests of other cores."""
        serve_tails(transport, self.local, self.rpc.payload)
        self._answers.serve(self.rpc)
        self.rpc.register(
            messages.FLUSH, messages.Flush, lambda question: self.flush_here(question.prefix)
        )
        if self.forwarding is not None:
            answer = self.forwarding.exchange.answer
            self.rpc.serve(messages.LEADERS_OF, list[int], dict[int, tuple[int, int]], answer)

    async def refresh_leaders(self) -> None:
        """Ask for the leaders of the groups that have no replica on this node."""
        if self.forwarding is not None:
            await self.forwarding.exchange.refresh(self.rpc.ask)

    @property
    def level(self) -> int:
        return self.local.level

    @property
    def history(self) -> int:
        return self.local.history

    def expect_diskless(self, name: str) -> None:
        self.proposals.expect_diskless(name)

    async def buckets(self) -> dict[str, Retention]:
        return await self.meta_group.buckets()

    def open(self, name: str) -> StreamHandle:
        group = self._groups.get(name) or self.group_of(name)
        return StreamHandle(name, group, self.proposals, self.reads)

    async def info(self, name: str, *, local: bool = False) -> StreamInfo | Refusal:
        return await self.reads.info(self.group_of(name), name, local=local)

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        group = self.group_of(query.name)
        return self.reads.read_nowait(group, query)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        return await self.reads.read(self.group_of(query.name), query)

    async def list_streams(
        self,
        prefix: str,
        after: str,
        limit: int,
        *,
        local: bool = False,
        attributes: bool = False,
    ) -> list[StreamInfo]:
        def question(groups: list[int]) -> messages.ListQuery:
            return messages.ListQuery(prefix, after, limit, local, groups, attributes)

        parts = await self.rpc.of_groups(
            range(1, self.groups + 1),
            messages.LIST,
            question,
            self._answers.list_streams,
            local=local,
        )
        return sorted((info for part in parts for info in part), key=lambda info: info.name)[:limit]

    async def epoch_end(self, name: str, epoch: int) -> int | Refusal:
        """Return the end of the records of a leader epoch; -1: the epoch has not begun."""
        group = self.group_of(name)
        question = messages.EpochQuery(group, name, epoch)
        found: int | Refusal = await self.rpc.at_replica(
            group, messages.EPOCH_END, question, self._answers.epoch_end
        )
        return found

    async def ask_lags(self, query: messages.LagQuery) -> list[Lag]:
        """Return a table's lag in each group."""

        def question(groups: list[int]) -> messages.LagQuery:
            return structs.replace(query, groups=groups)

        parts = await self.rpc.of_groups(
            range(1, self.groups + 1), messages.LAG, question, self._answers.lags
        )
        return [lag for part in parts for lag in part]

    async def fork(
        self, command: Command, source: str, record: int, byte: int, sub_offset: int
    ) -> Reply:
        assert isinstance(command, Create)
        try:
            return await create_fork(self, command, source, (record, byte, sub_offset))
        except DiskFull:
            return Reply(Code.DISK_FULL)

    async def trim(self, query: TrimQuery) -> Trimmed | Refusal:
        return await trim(self, query)

    async def set_bucket(self, bucket: str, retention: Retention | None) -> None:
        await set_bucket(self, bucket, retention)

    async def flush(self, prefix: str) -> None:
        """Flush all hot data under a prefix of canonical names, on every core. Return when it is
        published."""
        await self.flush_here(prefix)
        for core_id in self.rpc.others():
            await self.rpc.ask(core_id, messages.FLUSH, messages.Flush(prefix))


async def _nothing_to_flush(prefix: str) -> None:
    """Do nothing: without an object tier all data stays hot."""
