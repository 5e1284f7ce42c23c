"""The in-memory log of one group: the terms of all entries since the snapshot, and the newest
entries themselves."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from polynya.raft.messages import Entry

ENTRY_BYTES = 64  # memory overhead of an entry, without its payload


class Log:
    """The entries `first` to `last`. Entries from `cached` on are in memory; older ones are only in
    the journal.

    Invariants: first <= cached <= last + 1; terms never decrease; `term(first - 1)` is known.
    """

    __slots__ = (
        "_ends",
        "_entries",
        "_evicted_end",
        "_starts",
        "_terms",
        "cached",
        "first",
        "last",
    )

    def __init__(self, index: int, term: int) -> None:
        """Create an empty log after the entry (term, index)."""
        self.reset(index, term)

    def reset(self, index: int, term: int) -> None:
        self.first = self.cached = index + 1
        self.last = index
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # cumulative bytes up to each entry, from an arbitrary origin
        self._evicted_end = 0
        self._starts = [index]  # the first index of each term
        self._terms = [term]

    @property
    def last_term(self) -> int:
        return self._terms[-1]

    @property
    def bytes(self) -> int:
        """Return the bytes of the entries in memory."""
        return self._ends[-1] - self._evicted_end if self._ends else 0

    def term(self, index: int) -> int | None:
        """Return the term of an entry, or None if it is compacted or not yet written."""
        if self._starts[-1] <= index <= self.last:
            return self._terms[-1]
        if not self.first - 1 <= index <= self.last:
            return None
        return self._terms[bisect_right(self._starts, index) - 1]

    def append(self, entries: list[Entry]) -> None:
        """Append consecutive entries that follow `last`."""
        if not entries:
            return
        assert entries[0].index == self.last + 1, "the log has no holes"
        if entries[-1].term != self._terms[-1]:
            self._note_terms(entries)
        end = self._ends[-1] if self._ends else self._evicted_end
        ends = accumulate([len(entry.payload) + ENTRY_BYTES for entry in entries], initial=end)
        next(ends)
        self._ends += ends
        self._entries += entries
        self.last += len(entries)

    def truncate(self, index: int) -> None:
        """Remove the entries from `index` on."""
        assert self.cached <= index <= self.last, "only what is not applied yet can be cut off"
        keep = index - self.cached
        del self._entries[keep:], self._ends[keep:]
        self.last = index - 1
        while self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def entries(self, begin: int, end: int) -> list[Entry]:
        """Return a half-open range of entries, all of them in memory."""
        assert self.cached <= begin <= end <= self.last + 1
        return self._entries[begin - self.cached : end - self.cached]

    def cut(self, begin: int, bytes_max: int) -> int:
        """Return the end of the entries from `begin` that fit into `bytes_max`. An oversized entry
        is returned alone."""
        limit = self._end_before(begin) + bytes_max
        if self._ends[-1] <= limit:
            return self.last + 1
        return max(begin + 1, self.cached + bisect_right(self._ends, limit))

    def size(self, begin: int, end: int) -> int:
        """Return the bytes of a half-open range of entries in memory."""
        return self._end_before(end) - self._end_before(begin)

    def evict(self, upto: int, bytes_max: int) -> None:
        """Evict the payload of the oldest entries up to `upto`, down to 3/4 of `bytes_max`. The
        margin makes list moves rare."""
        if self.bytes <= bytes_max:
            return
        goal = bisect_right(self._ends, self._ends[-1] - bytes_max * 3 // 4)
        self._drop(min(self.cached + goal, upto + 1))

    def compact(self, first: int) -> None:
        """Drop entries before `first`, both cached and in the journal. The term of the entry before
        `first` stays known."""
        assert first <= self.last + 1
        if first <= self.first:
            return
        self._drop(max(first, self.cached))
        run = bisect_right(self._starts, first - 1) - 1
        del self._starts[:run], self._terms[:run]
        self._starts[0] = first - 1
        self.first = first

    def last_not_after(self, index: int, term: int) -> int:
        """Return the last index up to `index` whose term is at most `term`, or `first - 1`. One
        step of the search for the point of divergence skips a whole term (etcd/raft,
        findConflictByTerm)."""
        index = min(index, self.last)
        run = bisect_right(self._terms, term)
        if run < len(self._terms):
            index = min(index, self._starts[run] - 1)
        return max(index, self.first - 1)

    def _end_before(self, index: int) -> int:
        return self._ends[index - self.cached - 1] if index > self.cached else self._evicted_end

    def _drop(self, cached: int) -> None:
        count = cached - self.cached
        if count > 0:
            self._evicted_end = self._ends[count - 1]
            del self._entries[:count], self._ends[:count]
            self.cached = cached

    def _note_terms(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.term != self._terms[-1]:
                assert entry.term > self._terms[-1], "terms never fall"
                self._starts.append(entry.index)
                self._terms.append(entry.term)
