"""Where the appends to the groups that are led here come from: a group whose writers nearly all come by one node is best led there."""

from __future__ import annotations

from polynya.stream.placement import META_GROUP
from polynya.transport.handshake import node_of

MANY = 20  # appends of two looks move a lead; fewer may stay where they are led
MOST = 0.75  # of them are nearly all


class AppendOrigins:
    """Of one core of the node `node`. `look` is called once a second.

    `here` is for who proposes to a group that is led here: one more for each command of this core's own clients."""

    def __init__(self, node: int, groups: int) -> None:
        self.here = [0] * (groups + 1)
        self.many, self.most = MANY, MOST
        self._node = node
        self._there: dict[int, dict[int, int]] = {}  # group → node → commands
        self._before: dict[int, dict[int, int]] = {}  # of the look before

    def came(self, group: int, sender: int, count: int) -> None:
        """From another core, as the transport calls it."""
        node = node_of(sender) or self._node
        by_node = self._there.setdefault(group, {})
        by_node[node] = by_node.get(node, 0) + count

    def look(self) -> dict[int, tuple[int, int]]:
        """Group of streams → the node by which nearly all came since the look before the last, and how many came. Groups that have them by several
        nodes are not in it."""
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
