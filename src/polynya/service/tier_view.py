"""The view of one core that the object tier gets: machines, log, and snapshot coverage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from polynya.cold import FaultedStreams
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.engine.repair import Repairer
from polynya.engine.snapshots.snapshotter import Snapshotter
from polynya.service.compaction_policies import CompactionPolicies
from polynya.service.node_service import NodeService
from polynya.stream.command import Command
from polynya.stream.machine import Machine
from polynya.stream.replies import Done, Reply
from polynya.stream.state.model import HotBatch


class CoreGroups:
    """Implements `polynya.cold.groups.Groups` and `polynya.diskless.owner_groups.LedGroups`."""

    def __init__(
        self,
        term: Callable[[int], int],
        service: NodeService,
        snapshotter: Snapshotter,
        repairer: Repairer,
        *,
        is_replicated: bool,
    ) -> None:
        """Create the view. `term` returns the term of a group. The groups of a standalone node have
        no level to wait for."""
        self._is_replicated = is_replicated
        self.term = term
        self._service = service
        self._compaction = CompactionPolicies(service)
        self._snapshotter = snapshotter
        self._repairer = repairer

    def machines(self) -> Mapping[int, Machine]:
        return self._service.local.led

    @property
    def numbers(self) -> Sequence[int]:
        """All groups of streams."""
        return range(1, self._service.groups + 1)

    def leader_of(self, group: int) -> int:
        """Return the node that leads a group, if this node reaches it; -1: none is known."""
        return self._service.directory.reached_leader(group)

    def turns(self) -> int:
        return self._service.local.turns

    async def propose(self, group: int, command: Command) -> Reply:
        return await self._service.call(group, command)

    def propose_nowait(self, group: int, command: Command, done: Done) -> None:
        """Propose a command to the leader of its group; `done` gets the outcome."""
        self._service.proposals.propose_to(group, command, done)

    @property
    def recent(self) -> dict[int, int]:
        """Map the uid of each rehydrated stream to the log time of its rehydration."""
        return self._service.local.rehydration.recent

    @property
    def faulted(self) -> FaultedStreams:
        return self._service.local.faulted

    def may_log(self, machine: Machine, level: int) -> bool:
        return not self._is_replicated or machine.counters.level >= level

    async def compaction_policies(self) -> dict[str, CompactionPolicy]:
        """Return the policies of the streams whose keys are compacted, by their names."""
        return await self._compaction.named()

    def may_commit(self, group: int, level: int) -> bool:
        """Report whether the group's log may have what this feature level added. Of a group that is
        led elsewhere: all nodes know the level once any group has it, and its leader is told."""
        machine = self.machines().get(group)
        if machine is not None:
            return self.may_log(machine, level)
        local = self._service.local
        return bool(local.machines) and local.level >= level

    async def bring(self, group: int, names: list[str]) -> None:
        await self._service.local.rehydration.bring(group, names)

    async def repair(self, group: int, uid: int, batches: Sequence[HotBatch]) -> bool:
        return await self._repairer.repair(group, uid, batches)

    def now_ms(self) -> int:
        return self._service.now_ms()

    def covered_ms(self) -> int:
        return self._snapshotter.covered_ms

    def want_snapshots(self) -> None:
        self._snapshotter.want()
