"""The quorum of the meta group, for Kafka's tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from polynya.cluster.reconfiguration import GroupStatus
from polynya.front.kafka.admin.quorum_members import Quorum, QuorumMember
from polynya.stream.features.placement.cluster_map import META_GROUP


class StatusSource(Protocol):
    """Asks the leader of a group for its status. Raises PolynyaError."""

    async def status(self, group: int) -> GroupStatus: ...


class MetaQuorum:
    """The source of the quorum: `status` asks the leader of a group."""

    def __init__(self, status: StatusSource, broker_of: Callable[[int, int], int]) -> None:
        """`broker_of` returns the broker of a node that a group's requests go to."""
        self._status, self._broker_of = status, broker_of

    async def __call__(self) -> Quorum:
        found = await self._status.status(META_GROUP)
        ends = {node: peer.match for node, peer in found.peers.items()} | {found.node: found.last}

        def members(nodes: tuple[int, ...]) -> list[QuorumMember]:
            return [
                QuorumMember(self._broker_of(node, META_GROUP), ends.get(node, 0) + 1)
                for node in sorted(nodes)
            ]

        configuration = found.configuration
        return Quorum(
            self._broker_of(found.node, META_GROUP),
            found.term,
            found.commit + 1,
            members(configuration.voters),
            members((*configuration.learners, *configuration.readers)),
        )
