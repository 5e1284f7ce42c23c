"""Bytes sent to other nodes, over all connections of this core, without those of TLS."""

from __future__ import annotations

from collections import Counter

from polynya.transport.link import FrameLink


class LinkTraffic:
    """The bytes by node. Links count for themselves, and are added up when somebody asks."""

    def __init__(self) -> None:
        self._links: list[tuple[int, FrameLink]] = []
        self._ended = Counter[int]()  # of connections that are closed

    def open(self, node: int, link: FrameLink) -> None:
        """Count a new connection to a node."""
        self._links.append((node, link))

    def sent(self) -> Counter[int]:
        """Return the bytes sent to each node since this core started."""
        for node, link in self._links:
            if not link.up:
                self._ended[node] += link.handed
        self._links = [(node, link) for node, link in self._links if link.up]
        total = self._ended.copy()
        for node, link in self._links:
            total[node] += link.handed
        return total
