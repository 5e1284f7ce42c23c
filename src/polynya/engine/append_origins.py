"""Count the origin nodes of appends, so that leadership can move to the node that receives nearly
all of a group's writes."""

from __future__ import annotations

from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.transport.handshake import node_of

MANY = 20  # appends in two intervals that justify a transfer; a group with fewer stays
MOST = 0.75  # the share that counts as nearly all


class AppendOrigins:
    """Append counts by origin node, for one core of the node `node`. Call `look` once a second.

    `here[group]` counts the commands of this core's own clients; the proposer increments it."""

    def __init__(self, node: int, groups: int) -> None:
        self.here = [0] * (groups + 1)
        self.many, self.most = MANY, MOST
        self._node = node
        self._there: dict[int, dict[int, int]] = {}  # group → node → commands
        self._before: dict[int, dict[int, int]] = {}  # the previous interval

    def came(self, group: int, sender: int, count: int) -> None:
        """Count commands forwarded by another core."""
        node = node_of(sender) or self._node
        by_node = self._there.setdefault(group, {})
        by_node[node] = by_node.get(node, 0) + count

    def look(self) -> dict[int, tuple[int, int]]:
        """Return, by stream group, the node that received nearly all appends of the last two
        intervals, and the total count.

        Groups with writers on several nodes are left out."""
        now, self._there = self._there, {}
        for group, count in enumerate(self.here):
            if count:
                self.here[group] = 0
                by_node = now.setdefault(group, {})
                by_node[self._node] = by_node.get(self._node, 0) + count
        before, self._before = self._before, now
        found: dict[int, tuple[int, int]] = {}
        for group in (now.keys() | before.keys()) - {META_GROUP}:
            one, two = now.get(group, {}), before.get(group, {})
            sums = {node: one.get(node, 0) + two.get(node, 0) for node in one.keys() | two.keys()}
            most, total = max(sums, key=sums.__getitem__), sum(sums.values())
            if sums[most] >= self.most * total:
                found[group] = most, total
        return found
