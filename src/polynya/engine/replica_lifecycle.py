"""Replicas made on this core and dropped from it while it works: in which order memory, journal and files learn of it, so that a crash
between any two steps leaves a replica or none."""

from __future__ import annotations

import asyncio

from polynya.base.errors import Unavailable
from polynya.engine.replicated import ReplicatedEngine
from polynya.engine.snapshots.snapshotter import Snapshotter
from polynya.raft import Configuration, HardState, RestoredMember, Role, Snapshot, membership
from polynya.wal import SnapshotStore

FULL_SECONDS = 0.5  # a drop that the disk has no room for is tried again


class ReplicaLifecycle:
    """Of one core. Each replica is made or dropped by one at a time."""

    def __init__(self, core: ReplicatedEngine, store: SnapshotStore, snapshotter: Snapshotter) -> None:
        self._core, self._store, self._snapshotter = core, store, snapshotter
        self._busy = asyncio.Lock()

    async def make(self, group: int) -> None:
        """A blank replica, which learns from the group's leader once that has it in the configuration; nothing when there is one. Raises
        Unavailable when the disk is full."""
        core = self._core
        async with self._busy:
            if core.has(group):
                return
            blank = Snapshot(0, 0, Configuration(()))
            before = core.departed.get(group, HardState())
            promised = HardState(before.term, before.vote, before.forgetful, learning=True)
            if not await core.configured(group, blank):
                raise Unavailable("the disk has no room for another replica; tried again later")
            core.add(group, RestoredMember(blank, promised))

    async def drop(self, group: int, *, told_ms: int | None = None) -> None:
        """The replica's data is gone when it returns; nothing when there is none. What its member promised stays, for one that may be made in
        its place. `told_ms` (of the core's clock): a leader has said since then that this node does not belong to the group. Raises Unavailable
        while it does, as far as is known here."""
        core = self._core
        async with self._busy, self._snapshotter.lock:  # no snapshot of it is written meanwhile, or installed
            if not core.has(group):
                return
            raft = core.members[group].raft
            if told_ms is None and any(core.node in known.members for known in membership.possible(raft)):
                raise Unavailable(f"this node belongs to group {group}, as far as its replica knows")
            if told_ms is not None and (raft.role is Role.LEADER or raft.heard_ms >= told_ms):
                raise Unavailable(f"group {group} has been heard of since; asked again")  # it may be that this node belongs to it again
            written = core.remove(group)
            while not await written:
                await asyncio.sleep(FULL_SECONDS)
                written = core.remove(group)
            await asyncio.to_thread(self._store.remove, group)
            self._snapshotter.forget(group)
        self._snapshotter.want()  # the journal's segments go when nothing else needs them
