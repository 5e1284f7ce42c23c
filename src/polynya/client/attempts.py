"""Attempts at the records of worker groups that a process was given and did not handle."""

from __future__ import annotations

AGAIN_SECONDS = 0.5  # before a record that was not handled is given again; doubles
ATTEMPTS_MAX = 1000  # records whose attempts are remembered
BEATS_PER_LEASE = 3.0  # renewals per lease period


class Attempts:
    """The records that this process was given and did not handle to the end: how often each was
    given. A record that comes again waits, longer each time."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, int], int] = {}  # by group, stream and record

    def begin(self, key: tuple[str, str, int]) -> int:
        """Count an attempt. Return its number, from 1. Of too many records the oldest is
        forgotten."""
        count = self._counts.pop(key, 0) + 1
        if len(self._counts) >= ATTEMPTS_MAX:
            del self._counts[next(iter(self._counts))]
        self._counts[key] = count
        return count

    def end(self, key: tuple[str, str, int]) -> None:
        """Forget a record that was handled."""
        self._counts.pop(key, None)

    def forget(self, group: str, stream: str) -> None:
        """Forget the records of a stream in a group."""
        for key in [key for key in self._counts if key[:2] == (group, stream)]:
            del self._counts[key]


PROCESS_ATTEMPTS = Attempts()  # shared by all workers of a process, because each has its own client


def pause_before(attempt: int, lease_seconds: float) -> float:
    """Return the seconds to wait before an attempt: 0 before the first, then 0.5 s, doubled up to a
    third of the lease, which is not renewed meanwhile."""
    if attempt < 2:
        return 0.0
    return min(AGAIN_SECONDS * 2.0 ** min(attempt - 2, 20), lease_seconds / BEATS_PER_LEASE)
