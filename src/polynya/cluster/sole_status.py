"""The status of the groups of a node without a cluster, in the form of `reconfiguration`."""

from __future__ import annotations

from collections.abc import Mapping

from polynya.cluster.reconfiguration import GroupStatus, StatusRequest
from polynya.raft import Configuration
from polynya.replica.core_replicas import Group
from polynya.routing.rpc import Rpc

KIND_SOLE_STATUS = 63  # message kind between the cores of such a node


class SoleStatus:
    """Asks the core that hosts a group, on any core of the node."""

    def __init__(self, rpc: Rpc, groups: Mapping[int, Group], node: int) -> None:
        """`groups`: those of this core."""
        self._rpc, self._groups, self._node = rpc, groups, node
        rpc.serve(KIND_SOLE_STATUS, StatusRequest, GroupStatus, self._status)

    async def status(self, group: int) -> GroupStatus:
        """Return the status of a group. Raises Unavailable."""
        found: GroupStatus = await self._rpc.at_home(
            group, KIND_SOLE_STATUS, StatusRequest(group), self._status
        )
        return found

    async def _status(self, asked: StatusRequest) -> GroupStatus:
        group = self._groups[asked.group]
        alone = Configuration((self._node,))
        return GroupStatus(
            self._node, group.term, group.applied_index, group.last_index, alone, True, {}
        )
