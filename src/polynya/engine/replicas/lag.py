"""Measure the lag of read replicas behind the groups led here: entries missing, and seconds since
the oldest missing one was committed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import msgspec

from polynya.engine.replicated import ReplicatedEngine
from polynya.observability.metrics import Samples, label
from polynya.raft import Raft

Lags = dict[int, tuple[int, float]]
"""By node: the largest entry lag of any group, and the largest lag in seconds."""


class _Mark(msgspec.Struct):
    """The lag of a read replica in one group; it has the entries up to `has`, as far as known.

    `index` was committed at `since`. `missed`: a later check found it missing. `took`: the seconds
    of the previous mark, if missed."""

    index: int
    since: float
    has: int = 0
    missed: bool = False
    took: float = 0.0


class ReplicaLag:
    """The read replica lag of one core, with the resolution of the `look` interval."""

    def __init__(
        self,
        core: ReplicatedEngine,
        readers: Callable[[], Collection[int]],
        now: Callable[[], float],
    ) -> None:
        self._core, self._readers, self._now = core, readers, now
        self._marks: dict[tuple[int, int], _Mark] = {}

    def look(self) -> None:
        """Record the commit index until the read replicas have it."""
        now, marks = self._now(), {}
        for group, node, raft in self._pairs():
            peer, mark = raft.peers[node], self._marks.get((group, node)) or _Mark(raft.commit, now)
            if not peer.lost:  # keep the old value while the peer is lost: it may return with less
                mark.has = peer.match
            if mark.has >= raft.commit:
                mark = _Mark(raft.commit, now, mark.has)
            elif mark.has >= mark.index:
                mark = _Mark(
                    raft.commit, now, mark.has, took=now - mark.since if mark.missed else 0.0
                )
            else:
                mark.missed = mark.missed or now > mark.since
            marks[group, node] = mark
        self._marks = marks

    def lags(self) -> Lags:
        """Return the current lags of the read replicas of the groups led here."""
        self.look()
        found, now = {node: (0, 0.0) for _, node in self._marks}, self._now()
        for (group, node), mark in self._marks.items():
            raft = self._core.members[group].raft
            if raft.commit > mark.has:
                entries, seconds = found[node]
                found[node] = (
                    max(entries, raft.commit - mark.has),
                    max(seconds, now - mark.since, mark.took),
                )
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
