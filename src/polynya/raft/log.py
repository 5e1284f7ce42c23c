"""The log of one group in memory: the terms of all entries since the snapshot, and the entries themselves from some index on."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from polynya.raft.messages import Entry

ENTRY_BYTES = 64  # what an entry costs beside its payload


class Log:
    """Entries `first` to `last`; from `cached` on they are in memory, before it only in the journal.

    Invariants: first <= cached <= last + 1; terms never fall; `term(first - 1)` is known.
    """

    __slots__ = ("_ends", "_entries", "_evicted_end", "_starts", "_terms", "cached", "first", "last")

    def __init__(self, index: int, term: int) -> None:
        """Empty, after the entry (term, index)."""
        self.reset(index, term)

    def reset(self, index: int, term: int) -> None:
        self.first = self.cached = index + 1
        self.last = index
        self._entries: list[Entry] = []
        self._ends: list[int] = []  # bytes up to and including each entry, from any origin
        self._evicted_end = 0
        self._starts = [index]  # where each term begins
        self._terms = [term]

    @property
    def last_term(self) -> int:
        return self._terms[-1]

    @property
    def bytes(self) -> int:
        """Of the entries in memory."""
        return self._ends[-1] - self._evicted_end if self._ends else 0

    def term(self, index: int) -> int | None:
        """None for what is not here: compacted, or not yet written."""
        if self._starts[-1] <= index <= self.last:
            return self._terms[-1]
        if not self.first - 1 <= index <= self.last:
            return None
        return self._terms[bisect_right(self._starts, index) - 1]

    def append(self, entries: list[Entry]) -> None:
        """`entries` follow `last`, and each other."""
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
        """Entries from `index` on are gone."""
        assert self.cached <= index <= self.last, "only what is not applied yet can be cut off"
        keep = index - self.cached
        del self._entries[keep:], self._ends[keep:]
        self.last = index - 1
        while self._starts[-1] >= index:
            self._starts.pop()
            self._terms.pop()

    def entries(self, begin: int, end: int) -> list[Entry]:
        """Half-open; all of them in memory."""
        assert self.cached <= begin <= end <= self.last + 1
        return self._entries[begin - self.cached : end - self.cached]

    def cut(self, begin: int, bytes_max: int) -> int:
        """The end of as many entries from `begin` on as fit, and of one that does not fit alone."""
        limit = self._end_before(begin) + bytes_max
        if self._ends[-1] <= limit:
            return self.last + 1
        return max(begin + 1, self.cached + bisect_right(self._ends, limit))

    def size(self, begin: int, end: int) -> int:
        """Bytes of entries in memory, half-open."""
        return self._end_before(end) - self._end_before(begin)

    def evict(self, upto: int, bytes_max: int) -> None:
        """Forget the payload of the oldest entries, none beyond `upto`, down to three quarters of the bound (moving a list costs)."""
        if self.bytes <= bytes_max:
            return
        goal = bisect_right(self._ends, self._ends[-1] - bytes_max * 3 // 4)
        self._drop(min(self.cached + goal, upto + 1))

    def compact(self, first: int) -> None:
        """Entries before `first` are not here any more, in memory or elsewhere; the term of the one before it stays known."""
        assert first <= self.last + 1
        if first <= self.first:
            return
        self._drop(max(first, self.cached))
        run = bisect_right(self._starts, first - 1) - 1
        del self._starts[:run], self._terms[:run]
        self._starts[0] = first - 1
        self.first = first

    def last_not_after(self, index: int, term: int) -> int:
        """The last index, up to `index`, whose term is not larger than `term`; `first - 1` when there is none. One step of the search for
        where two logs part passes over a whole term (etcd/raft, findConflictByTerm)."""
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
