"""Create and drop replicas at run time. Memory, journal and files change in an order that leaves a
full replica or none after a crash."""

from __future__ import annotations

import asyncio

from polynya.base.errors import Unavailable
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.snapshotter import Snapshotter
from polynya.raft import Configuration, HardState, RestoredMember, Role, Snapshot, membership
from polynya.wal import SnapshotStore

FULL_SECONDS = 0.5  # retry interval of a drop on a full disk


class ReplicaLifecycle:
    """The replica lifecycle of one core. Operations run one at a time."""

    def __init__(
        self, core: ReplicatedEngine, store: SnapshotStore, snapshotter: Snapshotter
    ) -> None:
        self._core, self._store, self._snapshotter = core, store, snapshotter
        self._busy = asyncio.Lock()

    async def make(self, group: int) -> None:
        """Create a blank replica, which catches up when the leader adds it to the configuration; do
        nothing if one exists.

        Raises Unavailable when the disk is full."""
        core = self._core
        async with self._busy:
            if core.replicas.has(group):
                return
            blank = Snapshot(0, 0, Configuration(()))
            before = core.replicas.departed.get(group, HardState())
            promised = HardState(before.term, before.vote, before.amnesiac, learning=True)
            if not await core.keeper.configured(group, blank):
                raise Unavailable("the disk has no room for another replica; retrying later")
            core.replicas.add(group, RestoredMember(blank, promised))

    async def drop(self, group: int, *, reported_ms: int | None = None) -> None:
        """Remove the replica and its data; do nothing if there is none. The hard state is kept for
        a later replica of the group.

        `reported_ms` (this core's clock) is when a leader reported that this node is not a member.
        Raises Unavailable if the replica still believes that it is a member."""
        core = self._core
        async with self._busy, self._snapshotter.lock:  # blocks snapshot writes and installs
            if not core.replicas.has(group):
                return
            raft = core.members[group].raft
            if reported_ms is None and any(
                core.node in known.members for known in membership.possible(raft)
            ):
                raise Unavailable(
                    f"this node is a member of group {group} according to its replica"
                )
            if reported_ms is not None and (
                raft.role is Role.LEADER or raft.heard_ms >= reported_ms
            ):
                # this node may have been added again
                raise Unavailable(f"the leader of group {group} has sent messages since; retrying")
            written = core.replicas.remove(group)
            while not await written:
                await asyncio.sleep(FULL_SECONDS)
                written = core.replicas.remove(group)
            await asyncio.to_thread(self._store.remove, group)
            self._snapshotter.forget(group)
        self._snapshotter.want()  # lets the journal release segments that only this group needed
