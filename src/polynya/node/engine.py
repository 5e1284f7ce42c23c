"""What serves the streams of one core, put together: turn loop, machines, service, settling, snapshots. Doors and object tier come on top."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from polynya.node.core import Core
from polynya.node.groups import CoreGroups
from polynya.node.snapshots import Snapshotter
from polynya.node.storage import Storage
from polynya.service.local import LocalGroups
from polynya.service.node import CoreTransport, NodeService
from polynya.service.retainer import Retainer
from polynya.service.settle import Settler

SNAPSHOT_BYTES = 64 << 20  # of journal since the last round of snapshots


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of one core."""

    core: int
    cores: int
    groups: int
    history: int
    hot_bytes_max: int  # of a group
    snapshot_bytes: int = SNAPSHOT_BYTES


class Engine:
    """Made on a running loop. `now_ms` is log time; `fatal` is called when the journal fails."""

    def __init__(
        self,
        storage: Storage,
        shape: Shape,
        *,
        now_ms: Callable[[], int],
        transport: CoreTransport | None,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self.storage = storage
        self.core = Core(storage.shard, storage.journal, fatal=fatal)
        machines = {number: group.machine for number, group in storage.shard.groups.items()}
        self.local = LocalGroups(machines, self.core, now_ms, hot_bytes_max=shape.hot_bytes_max, history=shape.history)
        self.service = NodeService(self.local, groups=shape.groups, core=shape.core, cores=shape.cores, transport=transport)
        self.settler = Settler(self.service)
        self.retainer = Retainer(self.service)
        self.snapshotter = Snapshotter(self.core, storage.snapshots, every_bytes=shape.snapshot_bytes)
        self.groups = CoreGroups(storage.shard, self.service, self.snapshotter)
        self.core.on_applied = self.local.applied
        self.after_turn: list[Callable[[], None]] = [self.local.turned, self.settler.pump]
        self.core.on_turn = self._turned

    def close(self) -> None:
        """After the last proposal was answered, or not: nothing acknowledged depends on it."""
        self.core.close()
        self.storage.journal.close()

    def _turned(self) -> None:
        for look in self.after_turn:
            look()
