"""The service of one core. Its parts pass a call to the group's machine if that is local, else to
the core that hosts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import structs

from polynya.local.api import Page, ReadQuery, Refusal, Sink, StreamInfo, Trimmed, TrimQuery
from polynya.local.forks import create_fork
from polynya.local.lifetimes.retention import set_bucket, trim
from polynya.local.local import LocalGroups
from polynya.routing import messages
from polynya.routing.bucket_profiles import BucketProfiles
from polynya.routing.forwarding import Forwarding
from polynya.routing.handle import StreamHandle, StreamReads
from polynya.routing.leaders import Leaders
from polynya.routing.proposals import Proposals, ReceivedProposals
from polynya.routing.remote_leaders import RemoteLeaders
from polynya.routing.remote_tails import serve_tails
from polynya.routing.requests.core_requests import CoreRequests, CoreTransport
from polynya.routing.requests.fan_out import ReplicaFanOut
from polynya.routing.requests.fork_sources import ForkSources
from polynya.routing.requests.group_requests import GroupRequests
from polynya.routing.requests.local_answers import LocalAnswers
from polynya.routing.requests.meta_group import MetaGroup
from polynya.routing.stream_groups import StreamGroups
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.tables.rules import Lag
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply
from polynya.wal import DiskFull


class NodeService:
    """The implementation of `polynya.local.api.Service`: reads and live readers are here, the
    rest is in its parts. `transport` is None on a node with one core."""

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
        self.groups = groups
        stream_groups = StreamGroups(groups)
        self.leaders = Leaders(local.machines, core, cores)
        self.proposals = Proposals(
            local, stream_groups, core=core, cores=cores, transport=transport
        )
        self.core_requests = CoreRequests(core, cores, transport)
        self._replicas = ReplicaFanOut(local, core, cores)
        self.group_requests = GroupRequests(self.core_requests, self.leaders, self._replicas)
        self._answers = LocalAnswers(local, self.leaders)
        self.meta_group = MetaGroup(self.group_requests, self._answers, self.proposals.call)
        self.bucket_profiles = BucketProfiles(self.meta_group)
        # what the fronts call, bound once: the hot path goes straight to a part
        self.now_ms = local.now_ms
        self.history = local.history
        self.group_of = stream_groups.of
        self._groups = stream_groups.known
        self.appender = lambda name: self.proposals.appender(stream_groups.of(name))
        self.propose = self.proposals.propose
        self.call = self.proposals.call
        self.expect_diskless = self.proposals.expect_diskless
        self.buckets = self.meta_group.buckets
        # returns the URL of the node to use for a stream in a zone, unless it is this one
        self.hint: Callable[[str, str], str] | None = None
        self.flush_here: Callable[[str], Awaitable[None]] = _nothing_to_flush
        self._received: ReceivedProposals | None = None
        self.reads = StreamReads(
            local, self._replicas, self.group_requests, self._answers, transport
        )
        self.is_readable, self.detach = self.reads.is_readable, self.reads.detach
        local.reads.parents = ForkSources(local.reads, self.group_requests, self._answers)
        if transport is not None:
            self._received = ReceivedProposals(local, self.leaders, transport)
            serve_tails(transport, local, self.core_requests.payload)
            self._answers.serve(self.core_requests)
            self.core_requests.register(
                messages.FLUSH, messages.Flush, lambda question: self.flush_here(question.prefix)
            )

    @property
    def level(self) -> int:
        return self.local.level

    def join(self, forwarding: Forwarding, seems_up: Callable[[int], bool]) -> None:
        """Join a cluster, in which other nodes may lead groups. `seems_up` reports a node that this
        one reaches, or that fell silent a moment ago."""
        remote = RemoteLeaders(forwarding, self.core_requests.ask)
        self.leaders.join(forwarding, remote, seems_up)
        self.proposals.join(forwarding)
        self.core_requests.join(forwarding.targets.places)
        self._replicas.join(forwarding)
        if self._received is not None:
            self._received.join(forwarding)
        self.core_requests.serve(
            messages.LEADERS_OF, list[int], dict[int, tuple[int, int]], remote.answer
        )

    def open(self, name: str) -> StreamHandle:
        return StreamHandle(name, self.group_of(name), self.proposals, self.reads)

    def info_nowait(self, name: str) -> StreamInfo | Refusal | None:
        return self.reads.info_nowait(self.group_of(name), name)

    async def info(self, name: str, *, local: bool = False) -> StreamInfo | Refusal:
        return await self.reads.info(self.group_of(name), name, local=local)

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        group = self._groups.get(query.name) or self.group_of(query.name)
        return self.reads.read_nowait(group, query)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        return await self.reads.read(self.group_of(query.name), query)

    async def attach(
        self, name: str, sink: Sink, *, local: bool = False, numbers: bool = False
    ) -> StreamInfo | Refusal:
        group = self.group_of(name)
        return await self.reads.attach(group, name, sink, local=local, numbers=numbers)

    async def list_streams(
        self, prefix: str, after: str, limit: int, *, local: bool = False
    ) -> list[StreamInfo]:
        def question(groups: list[int]) -> messages.ListQuery:
            return messages.ListQuery(prefix, after, limit, local, groups)

        parts = await self.group_requests.of_groups(
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
        found: int | Refusal = await self.group_requests.at_replica(
            group, messages.EPOCH_END, question, self._answers.epoch_end
        )
        return found

    async def ask_lags(self, query: messages.LagQuery) -> list[Lag]:
        """Return a table's lag in each group."""

        def question(groups: list[int]) -> messages.LagQuery:
            return structs.replace(query, groups=groups)

        parts = await self.group_requests.of_groups(
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
        for place in self.core_requests.others():
            await self.core_requests.ask(place, messages.FLUSH, messages.Flush(prefix))


async def _nothing_to_flush(prefix: str) -> None:
    """Do nothing: without an object tier all data stays hot."""
