"""The groups of streams by name, with a cache of the hashes."""

from __future__ import annotations

from polynya.base.names import group_of

_NAMES_MAX = 65_536


class StreamGroups:
    """The `count` groups of streams, as one core computes them. `known` is the cache: a hot path
    looks there before it calls `of`."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """Return the group of a stream."""
        group = self.known.get(name)
        if group is None:
            if len(self.known) >= _NAMES_MAX:
                self.known.clear()
            group = self.known[name] = group_of(name, self.count)
        return group
