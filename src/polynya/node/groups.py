"""What the object tier is given of a core: its machines, its log, and how far its snapshots reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polynya.node.snapshots import Snapshotter
from polynya.service.node import NodeService
from polynya.stream.commands import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply


class CoreGroups:
    """Implements `polynya.cold.groups.Groups`."""

    def __init__(self, term: Callable[[int], int], service: NodeService, snapshotter: Snapshotter) -> None:
        """`term`: of a group, by its number."""
        self.term = term
        self._service = service
        self._snapshotter = snapshotter

    def machines(self) -> Mapping[int, Machine]:
        return self._service.local.led

    def turns(self) -> int:
        return self._service.local.turns

    async def propose(self, group: int, command: Command) -> Reply:
        return await self._service.call(group, command)

    def now_ms(self) -> int:
        return self._service.now_ms()

    def covered_ms(self) -> int:
        return self._snapshotter.covered_ms

    def want_snapshots(self) -> None:
        self._snapshotter.want()
