"""Keep the journal of a replicated core: what its snapshots need of the groups' logs."""

from __future__ import annotations

from collections.abc import Callable

from polynya.base.errors import Unavailable
from polynya.engine.journal_writer import JournalWriter
from polynya.engine.replicas.replica_set import ReplicaSet
from polynya.raft import Snapshot
from polynya.replica.member import Member
from polynya.stream.machine import Machine
from polynya.stream.state.model import HotBatch
from polynya.wal import Journal


class JournalKeeper:
    """The journal and the logs of one core, as snapshots replace them. `kick` schedules a turn."""

    def __init__(
        self,
        journal: Journal,
        replicas: ReplicaSet,
        writes: JournalWriter,
        now_ms: Callable[[], int],
        kick: Callable[[], None],
    ) -> None:
        self._journal, self._replicas, self._writes = journal, replicas, writes
        self._now_ms, self._kick = now_ms, kick

    async def configured(self, group: int, snapshot: Snapshot) -> bool:
        """Persist the configuration at a snapshot before the snapshot is written. Return False if
        the disk is full."""
        waiter = self._writes.configured(group, snapshot)
        self._kick()
        return await waiter

    async def copy_forward(self, group: int, batches: list[HotBatch]) -> bool:
        """Write the batches again at the journal's end and move their positions there. Return
        False, and move nothing, if the disk is full."""
        waiter = self._writes.copy(group, batches)
        self._kick()
        return await waiter

    async def renew_states(self) -> None:
        """Write terms and votes again, so that the segments that hold them can be released. Raises
        Unavailable when the disk is full."""
        replicas = self._replicas
        waiter = self._writes.renew(replicas.members.values(), replicas.departed)
        self._kick()
        if not await waiter:
            raise Unavailable("the disk has no room for terms and votes; retrying later")

    def snapshotted(
        self, number: int, index: int, size_and_identity: tuple[int, int], *, keep_from: int
    ) -> None:
        """Compact the log after a snapshot at `index` is on disk. Entries from the position
        `keep_from` on stay for followers that lag."""
        member = self._replicas.members[number]
        snapshot = member.raft.snapshots.describe(index, *size_and_identity)
        member.raft.snapshots.taken(
            snapshot, min(member.first_from(keep_from), index + 1), self._now_ms()
        )
        member.release(member.raft.log.first)
        self._kick()

    def compact(self, number: int, *, keep_from: int) -> None:
        """Compact the log again while the last snapshot is still current."""
        snapshot = self._replicas.members[number].raft.snapshot
        if snapshot.index:
            self.snapshotted(
                number, snapshot.index, (snapshot.size, snapshot.identity), keep_from=keep_from
            )

    def floor_of(self, number: int, *, unapplied: bool = False) -> int:
        """Return the lowest journal position that the group's log uses or will use. With
        `unapplied`, only unapplied entries count; they may be old if no quorum has them yet."""
        member, settled = self._replicas.members[number], self._journal.settled
        position = member.position_of(member.group.applied_index + 1 if unapplied else member.first)
        return settled if position is None else min(position, settled)

    def install(self, member: Member, snapshot: Snapshot, machine: Machine) -> None:
        """Replace a group's state by a snapshot of another node; both are durable here."""
        group = member.group
        group.machine, group.applied_index, group.term = machine, snapshot.index, snapshot.term
        member.installed(snapshot.index)
        member.raft.snapshots.installed(snapshot.identity, self._now_ms())
        self._kick()
