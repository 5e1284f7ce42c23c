"""The node that HTTP clients are told to use for a stream: the group's leader, or for a diskless
stream the owner in the client's zone."""

from __future__ import annotations

from collections.abc import Callable

from polynya.base.owners import owner
from polynya.routing.directory import Directory
from polynya.stream.features.placement.cluster_map import ClusterMap


class OwnerHints:
    """The hints of one core. `urls` has the client URL of each node; `node` is this one."""

    def __init__(
        self,
        node: int,
        directory: Directory,
        urls: dict[int, str],
        *,
        group_of: Callable[[str], int],
        expects_diskless: Callable[[str], bool],
    ) -> None:
        self.urls = urls
        self._node, self._directory = node, directory
        self._group_of, self._expects_diskless = group_of, expects_diskless
        self._zone = ""
        self._zones: dict[int, str] = {}  # of the active nodes

    def learn(self, now: ClusterMap) -> None:
        """Take over the nodes of a new map."""
        nodes = now.nodes
        self.urls = {
            number: nodes[number].http for number in now.members if nodes[number].http
        } or self.urls
        self._zone = nodes[self._node].zone if self._node in nodes else ""
        self._zones = {node: nodes[node].zone for node in now.active if nodes[node].http}

    def url(self, name: str, zone: str) -> str:
        """Return the URL of the node to use for a stream; "" for this one, or if none is known.
        `zone`: of the client; "": this node's."""
        if self._expects_diskless(name):
            node = self._owner(name, zone or self._zone)
            return "" if node == self._node else self.urls.get(node, "")
        return self.urls.get(self._directory.elsewhere(self._group_of(name)), "")

    def _owner(self, name: str, zone: str) -> int:
        there = [node for node in self._zones if self._directory.seems_up(node)]
        near = [node for node in there if self._zones[node] == zone] if zone else there
        return owner(name, near or there)
