"""Reads of a task: parallel, in order, and with a limit of bytes."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.commit import run_job
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.reading.slices import REQUESTS_AHEAD, fetch
from polynya.objectstore import StoreUnavailable

SECONDS = 100.0  # that a read waits at most for those beside it


class Abreast:
    """Reads that end together, once that many are in progress."""

    def __init__(self, count: int) -> None:
        self._barrier = threading.Barrier(count, timeout=SECONDS)

    def wait(self) -> None:
        if self._barrier.parties > 1:
            self._barrier.wait()


class FarBlobs:
    """A store that answers that many range reads at once, when it has all of them. It records the
    parallel reads and their bytes."""

    def __init__(self, abreast: int = 1, fails: str = "") -> None:
        self._abreast, self.fails = Abreast(abreast), fails
        self.reads = self.running = self.most = self.bytes = self.most_bytes = 0
        self._lock = threading.Lock()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._lock:
            self.reads += 1
            self.running += 1
            self.bytes += length
            self.most = max(self.most, self.running)
            self.most_bytes = max(self.most_bytes, self.bytes)
        self._abreast.wait()
        with self._lock:
            self.running -= 1
            self.bytes -= length
        if key == self.fails:
            raise StoreUnavailable(f"{key}: refused")
        return bytes(length)


def ranges(count: int, stored: int) -> list[Range]:
    """Ranges in packs of their own."""
    return [
        Range("s", 1, 1, "", 0, at, 0, 1, stored, f"p{at:04}", 0, stored, 0) for at in range(count)
    ]


def test_a_task_reads_sixteen_packs_at_once_and_gets_them_in_order() -> None:
    far, wanted = FarBlobs(abreast=16), ranges(62 * 16, 100)
    found = [part for part, _ in fetch(far, wanted)]  # type: ignore[arg-type]
    assert found == wanted
    assert far.most == REQUESTS_AHEAD == 16
    assert far.reads == 62 * 16, "a far store's latency is waited for 62 times"


def test_large_reads_run_ahead_by_their_bytes() -> None:
    far = FarBlobs(abreast=8)
    assert len(list(fetch(far, ranges(40, 4 << 20)))) == 40  # type: ignore[arg-type]
    assert (far.most, far.most_bytes) == (8, 32 << 20)


def test_a_read_that_fails_ends_the_task_and_those_ahead_are_not_begun() -> None:
    far = FarBlobs(fails="p0003")
    with pytest.raises(StoreUnavailable):
        list(fetch(far, ranges(500, 100)))  # type: ignore[arg-type]
    assert far.reads <= 3 + 2 * REQUESTS_AHEAD


class CountedReads:
    """The store of a lake, which counts the range reads."""

    def __init__(self, blobs: Any) -> None:
        self._blobs = blobs
        self._reads = itertools.count()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        next(self._reads)
        found: bytes = self._blobs.get_range(key, start, length)
        return found

    @property
    def reads(self) -> int:
        return next(self._reads)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


@pytest.mark.long
@pytest.mark.parametrize("packs", [10, 1000])
def test_a_pack_of_a_store_is_read_once(tmp_path: Path, packs: int) -> None:
    """Sixteen at a time: a task waits for a far store 63 times when it has 1,000 packs."""
    record = msgspec.json.encode({"n": 1, "text": "x" * 200, "at": "2024-01-01T00:00:00Z"})
    lake = Lake(str(tmp_path))
    for _ in range(packs):
        lake.source.append("s", *[[record] * 200] * (2000 // packs))
    counted = lake.runner.blobs = CountedReads(lake.blobs)
    plan = lake.coordinator.plan("flights")
    assert plan is not None
    done = run_job(plan, lake.coordinator, lake.runner, lake.blobs, lambda step, message: None)
    assert done is not None and done.rows == 400_000
    assert counted.reads == packs
