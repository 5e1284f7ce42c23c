"""Find the ranges of a job that alone make a step of it fail. What a search
leaves in the store is unreferenced: a sweep deletes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.reading.slices import Unreadable

PROBES_MAX = 200  # runs of a step in one search


class Discarding:
    """A store of which only reads have an effect: what is written is dropped."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def put(self, key: str, data: bytes) -> None: ...

    def open_upload(self, key: str) -> _Dropped:
        return _Dropped()

    def sync_folder(self, folder: str) -> None: ...


class _Dropped:
    def write(self, data: Any) -> int:
        return len(data)

    def close(self) -> None: ...

    def abort(self) -> None: ...


def culprits(ranges: Sequence[Range], step: Callable[[Sequence[Range]], None]) -> list[Unreadable]:
    """Return the ranges that make `step` raise, by bisection of ranges that do so together. Ranges
    that fail only together are not found. Raises what is no fault of records: errors of Polynya
    and the system."""
    found: list[Unreadable] = []
    pending = [list(ranges)]
    for _ in range(PROBES_MAX):
        if not pending:
            break
        some = pending.pop()
        try:
            step(some)
        except (PolynyaError, OSError):
            raise
        except Exception as fault:
            if len(some) == 1:
                found.append(Unreadable(some[0], describe(fault)))
            else:
                half = len(some) // 2
                pending += [some[half:], some[:half]]
    return found


def describe(fault: Exception) -> str:
    """Return a fault in words, for the reason of a range or a table."""
    return (str(fault) if isinstance(fault, PolynyaError) else f"{type(fault).__name__}: {fault}")[
        :300
    ]
