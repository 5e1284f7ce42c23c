"""Reports on the cores of other nodes, passed to the members of all groups that such a core shares
with this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polynya.raft import Raft
    from polynya.replica.member import Member

Shared = Callable[[int], bool]


def _all_groups(group: int) -> bool:
    return True


class PeerReports:
    """The reports to one core. `kick` schedules the turn that carries out their effects.

    `shared` selects the groups that the other core has.
    """

    def __init__(
        self, members: Mapping[int, Member], now_ms: Callable[[], int], kick: Callable[[], None]
    ) -> None:
        self._members, self._now_ms, self._kick = members, now_ms, kick

    def unreachable(self, node: int, shared: Shared = _all_groups) -> None:
        """Handle the possible loss of messages sent to a node."""
        self._report(shared, lambda raft, now_ms: raft.unreachable(node, now_ms))

    def lost(self, node: int, heard_ms: int | None = None, shared: Shared = _all_groups) -> None:
        """Mark the node's core as lost: it has been silent since `heard_ms`, or has restarted."""

        def report(raft: Raft, now_ms: int) -> None:
            raft.peer_lost(node, now_ms if heard_ms is None else heard_ms, now_ms)

        self._report(shared, report)

    def found(self, node: int, shared: Shared = _all_groups) -> None:
        """Mark the node's core as up."""
        self._report(shared, lambda raft, now_ms: raft.peer_found(node, now_ms))

    def sending(self, node: int, shared: Shared = _all_groups) -> None:
        """Note that a large message from the node's core is arriving.

        Its Raft messages queue behind it.
        """
        self._report(shared, lambda raft, now_ms: raft.peer_sends(node, now_ms))

    def receiving(self, node: int, shared: Shared = _all_groups) -> None:
        """Note that a large message to the node's core is leaving.

        Replies of its groups queue behind it.
        """
        self._report(shared, lambda raft, now_ms: raft.peer_takes(node, now_ms))

    def _report(self, shared: Shared, report: Callable[[Raft, int], None]) -> None:
        now_ms = self._now_ms()
        for group, member in self._members.items():
            if shared(group):
                report(member.raft, now_ms)
        self._kick()
