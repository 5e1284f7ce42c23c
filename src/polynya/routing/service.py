"""The service of one core. Its parts pass a call to the group's machine if that is local, else to
the core that hosts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

from msgspec import structs

from polynya.cold import PackGone
from polynya.local.api import Page, ReadQuery, Refusal, Sink, StreamInfo, Trimmed, TrimQuery
from polynya.local.forks import create_fork
from polynya.local.lifetimes.retention import set_bucket, trim
from polynya.local.local import LocalGroups
from polynya.local.reads.pieces import PlannedPage
from polynya.routing import messages
from polynya.routing.bucket_profiles import BucketProfiles
from polynya.routing.forwarding import Forwarding
from polynya.routing.leaders import Leaders
from polynya.routing.proposals import Proposals, ReceivedProposals
from polynya.routing.remote_leaders import RemoteLeaders
from polynya.routing.remote_tails import RemoteTails, serve_tails
from polynya.routing.requests.core_requests import CoreRequests, CoreTransport
from polynya.routing.requests.fan_out import ReplicaFanOut
from polynya.routing.requests.fork_sources import ForkSources
from polynya.routing.requests.group_requests import GroupRequests
from polynya.routing.requests.local_answers import LocalAnswers
from polynya.routing.requests.meta_group import MetaGroup
from polynya.routing.stream_groups import StreamGroups
from polynya.stream.commands import Command, Create, Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.rules.tables import Lag
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
        self._lifecycle, self._streams, self._reads = local.lifecycle, local.streams, local.reads
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
        self.appender = self.proposals.appender
        self.propose = self.proposals.propose
        self.propose_all = self.proposals.propose_all
        self.call = self.proposals.call
        self.expect_diskless = self.proposals.expect_diskless
        self.buckets = self.meta_group.buckets
        # returns the URL of the node to use for a stream in a zone, unless it is this one
        self.hint: Callable[[str, str], str] | None = None
        self.flush_here: Callable[[str], Awaitable[None]] = _nothing_to_flush
        self._tails: dict[
            tuple[bool, bool], RemoteTails
        ] = {}  # by the arguments of `attach`: local, numbers
        self._received: ReceivedProposals | None = None
        self._machines = local.machines  # of the local groups
        self._reads.parents = ForkSources(self._reads, self.group_requests, self._answers)
        if transport is not None:
            for local_reads, numbers in product((False, True), repeat=2):
                self._tails[local_reads, numbers] = RemoteTails(
                    transport, local=local_reads, numbers=numbers
                )
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

    def info_nowait(self, name: str) -> StreamInfo | Refusal | None:
        group = self.group_of(name)
        if not (self.is_readable(group) and self._lifecycle.settled(name)):
            return None
        return self._streams.info(group, name)

    def is_readable(self, group: int) -> bool:
        return group in self._machines and self.local.readable(group)

    async def info(self, name: str, *, local: bool = False) -> StreamInfo | Refusal:
        group = self.group_of(name)
        question = messages.Attach(group, name, local)
        found: StreamInfo | Refusal = await self.group_requests.at_replica(
            group, messages.INFO, question, self._answers.info, local=local
        )
        return found

    def read_nowait(self, query: ReadQuery) -> Page | Refusal | None:
        group = self._groups.get(query.name) or self.group_of(query.name)
        return self._reads.read_nowait(group, query)

    async def read(self, query: ReadQuery) -> Page | Refusal:
        try:
            return await self._read(query)
        except PackGone:  # the index has changed since the plan: plan again, once
            return await self._read(query)

    async def _read(self, query: ReadQuery) -> Page | Refusal:
        group = self.group_of(query.name)
        question = messages.Query(group, query, self._reads.cold is not None)
        answer: Page | Refusal | PlannedPage = await self.group_requests.at_replica(
            group, messages.READ, question, self._answers.read, local=query.local
        )
        if isinstance(answer, PlannedPage):
            return await self._reads.pieces.page(answer, query)
        return answer

    async def attach(
        self, name: str, sink: Sink, *, local: bool = False, numbers: bool = False
    ) -> StreamInfo | Refusal:
        group = self.group_of(name)

        async def here() -> StreamInfo | Refusal:
            await self.local.prepare(group, local=local)
            return self._streams.attach(group, name, sink, local=local)

        async def there(place: int) -> StreamInfo | Refusal:
            return await self._tails[local, numbers].attach(place, group, name, sink)

        return await self._replicas.ask(group, here, there, local=local)

    def detach(self, uid: int, sink: Sink) -> None:
        for tails in self._tails.values():
            tails.detach(uid, sink)
        if uid >> 48 in self._machines:
            self._streams.detach(uid, sink)

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
