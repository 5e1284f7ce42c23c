"""The service of one core without a disk: real machines, and turns that a test may hold back or
break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.local.local import LocalGroups
from polynya.service.node_service import NodeService
from polynya.stream.command import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply

Done = Callable[[Reply | BaseException], None]
GROUPS = 2


class MemoryTurns:
    """Applies proposals on the next pass of the loop; while `held`, keeps them in flight."""

    def __init__(self, machines: dict[int, Machine]) -> None:
        self.local: LocalGroups
        self.held = False
        self.fault: BaseException | None = None  # what every proposal ends in, when set
        self.inflight_bytes = 0
        self._machines = machines
        self._proposals: list[tuple[int, Command, Done]] = []
        self._position = 0

    def inflight_bytes_of(self, group: int) -> int:
        return 0

    def propose(self, group: int, command: Command, done: Done, size: int = 0) -> None:
        if not self._proposals and not self.held:
            asyncio.get_running_loop().call_soon(self.turn)
        self._proposals.append((group, command, done))

    def turn(self) -> None:
        proposals, self._proposals = self._proposals, []
        for group, command, done in proposals:
            if self.fault is not None:
                done(self.fault)
                continue
            self._position += 1
            reply = self._machines[group].apply(command, self._position)
            self.local.applied(group, command, reply)
            done(reply)

    def release(self) -> None:
        self.held = False
        self.turn()


class FakeService(NodeService):
    """`clock` is the log time in ms; `turns` decides when proposals are applied."""

    def __init__(self, *, hot_bytes_max: int = HOT_BYTES_PER_GROUP) -> None:
        self.clock = 1_800_000_000_000
        machines = {group: Machine(group, GROUPS) for group in range(GROUPS + 1)}
        for machine in machines.values():
            machine.counters.standalone = True
        self.turns = MemoryTurns(machines)
        local = LocalGroups(
            machines,
            self.turns,
            lambda: self.clock,
            groups=max(machines),
            hot_bytes_max=hot_bytes_max,
            history=1,
        )
        self.turns.local = local
        super().__init__(local, groups=GROUPS, core=0, cores=1, transport=None)
