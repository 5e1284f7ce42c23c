"""Counters of the requests to the object store, by the kind of work that made them.

A request counts when the store answered it, also when it refused it: that is what a provider
charges. One that was cancelled counts as well, as it has probably left. A listing counts a request
for each page of 1,000 keys, and a deletion one for each 1,000 keys, as S3 takes them. Retries
inside the client of the store are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping

from polynya.base.histogram import Histogram

PAGE = 1000  # keys of one LIST, or of one bulk delete
REQUESTS = ("put", "get", "head", "list", "delete")
UP, DOWN = "up", "down"  # bytes to the store, and from it
# kinds of work: packs of diskless streams, the flusher, the merger, reads of records, states of
# streams and groups, tables, backups, deletion and verification, and claims and self-tests
WORKS = ("diskless", "flush", "merge", "read", "state", "table", "backup", "collect", "other")


class StoreCalls:
    """The counters of one kind of work, by the names in `REQUESTS`, `UP` and `DOWN`."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys((*REQUESTS, UP, DOWN), 0)

    def add(self, request: str, *, requests: int = 1, up: int = 0, down: int = 0) -> None:
        """Count requests and their bytes."""
        counts = self.counts
        counts[request] += requests
        counts[UP] += up
        counts[DOWN] += down


class StoreUsage:
    """The counters of one core, by kind of work, and the time of its requests."""

    def __init__(self) -> None:
        self._calls = {work: StoreCalls() for work in WORKS}
        self.seconds = {request: Histogram() for request in REQUESTS}

    def of(self, work: str) -> StoreCalls:
        """Return the counters of a kind of work, one of `WORKS`."""
        return self._calls[work]

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return the counts by (work, request or direction)."""
        return {
            (work, name): count
            for work, calls in self._calls.items()
            for name, count in calls.counts.items()
        }
