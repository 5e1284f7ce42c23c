"""How far read replicas are behind the groups that this core leads: in entries, and in seconds since what they lack was committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from polynya.engine.replicated import ReplicatedEngine
from polynya.observability.metrics import Samples, label
from polynya.raft import Raft

Lags = dict[int, tuple[int, float]]
"""By node: the most entries that it lacks of a group, and the most seconds."""


class _Mark(msgspec.Struct):
    """Of a group and a read replica, which has its entries up to `has`, as far as is known. `index` was committed at `since`. `missed`: and was
    not there yet at a later look. `took`: the seconds of the mark before it, if that was."""

    index: int
    since: float
    has: int = 0
    missed: bool = False
    took: float = 0.0


class ReplicaLag:
    """Of one core. The seconds are as exact as `look` is often."""

    def __init__(self, core: ReplicatedEngine, readers: Callable[[], Collection[int]], now: Callable[[], float]) -> None:
        self._core, self._readers, self._now = core, readers, now
        self._marks: dict[tuple[int, int], _Mark] = {}

    def look(self) -> None:
        """Remembers what is committed now, until the read replicas have it."""
        now, marks = self._now(), {}
        for group, node, raft in self._pairs():
            peer, mark = raft.peers[node], self._marks.get((group, node)) or _Mark(raft.commit, now)
            if not peer.lost:  # else what it has is forgotten there, for it may come back with less
                mark.has = peer.match
            if mark.has >= raft.commit:
                mark = _Mark(raft.commit, now, mark.has)
            elif mark.has >= mark.index:
                mark = _Mark(raft.commit, now, mark.has, took=now - mark.since if mark.missed else 0.0)
            else:
                mark.missed = mark.missed or now > mark.since
            marks[group, node] = mark
        self._marks = marks

    def lags(self) -> Lags:
        """As of now, of the read replicas that follow a group led here."""
        self.look()
        found, now = {node: (0, 0.0) for _, node in self._marks}, self._now()
        for (group, node), mark in self._marks.items():
            raft = self._core.members[group].raft
            if raft.commit > mark.has:
                entries, seconds = found[node]
                found[node] = (max(entries, raft.commit - mark.has), max(seconds, now - mark.since, mark.took))
        return found

    def samples(self) -> Samples:
        found: Samples = {}
        for node, (entries, seconds) in self.lags().items():
            found[label("polynya_reader_lag_entries", node=str(node))] = entries
            found[label("polynya_reader_lag_seconds", node=str(node))] = seconds
        return found

    def _pairs(self) -> Iterator[tuple[int, int, Raft]]:
        readers = self._readers()
        for group in self._core.led if readers else ():
            raft = self._core.members[group].raft
            for node in raft.configuration.readers:
                if node in readers and node in raft.peers:
                    yield group, node, raft
