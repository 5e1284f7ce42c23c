"""Reads of a task: many at once, in order, and so many bytes at most."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.commit import run_job
from polynya.lakehouse.jobs.plan import Range
from polynya.lakehouse.reading.slices import REQUESTS_AHEAD, fetch
from polynya.objectstore import StoreUnavailable

LATENCY_SECONDS = 0.03
DISTANCE = threading.Event()  # never set: a wait for it is the latency of a far store


class FarBlobs:
    """A store whose range reads take long; it notes how many and how many bytes run at once."""

    def __init__(self, seconds: float = LATENCY_SECONDS, fails: str = "") -> None:
        self.seconds, self.fails = seconds, fails
        self.reads = self.running = self.most = self.bytes = self.most_bytes = 0
        self._lock = threading.Lock()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._lock:
            self.reads += 1
            self.running += 1
            self.bytes += length
            self.most = max(self.most, self.running)
            self.most_bytes = max(self.most_bytes, self.bytes)
        DISTANCE.wait(self.seconds)
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
    far, wanted = FarBlobs(), ranges(1000, 100)
    begin = time.monotonic()
    found = [part for part, _ in fetch(far, wanted)]  # type: ignore[arg-type]
    seconds = time.monotonic() - begin
    assert found == wanted
    assert far.most == REQUESTS_AHEAD == 16
    assert seconds < 3 * 1000 * LATENCY_SECONDS / 16, "with three reads at once it is 10 s"


def test_large_reads_run_ahead_by_their_bytes() -> None:
    far = FarBlobs(0.005)
    assert len(list(fetch(far, ranges(40, 4 << 20)))) == 40  # type: ignore[arg-type]
    assert 4 <= far.most <= 8
    assert far.most_bytes <= 32 << 20


def test_a_read_that_fails_ends_the_task_and_those_ahead_are_not_begun() -> None:
    far = FarBlobs(0.01, fails="p0003")
    with pytest.raises(StoreUnavailable):
        list(fetch(far, ranges(500, 100)))  # type: ignore[arg-type]
    assert far.reads <= 3 + 2 * REQUESTS_AHEAD


class FarReads:
    """The store of a lake, with the latency of a far one."""

    def __init__(self, blobs: Any) -> None:
        self._blobs = blobs

    def get_range(self, key: str, start: int, length: int) -> bytes:
        DISTANCE.wait(LATENCY_SECONDS)
        found: bytes = self._blobs.get_range(key, start, length)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)


@pytest.mark.long
def test_small_packs_of_a_far_store_take_at_most_three_times_as_long(tmp_path: Path) -> None:
    """1,000 packs, and the same bytes in 10."""
    record = msgspec.json.encode({"n": 1, "text": "x" * 200, "at": "2024-01-01T00:00:00Z"})
    seconds = []
    for packs in (10, 1000):
        lake = Lake(str(tmp_path / str(packs)))
        batches = 2000 // packs
        for _ in range(packs):
            lake.source.append("s", *[[record] * 200] * batches)
        lake.runner.blobs = FarReads(lake.blobs)
        plan = lake.coordinator.plan("flights")
        assert plan is not None
        begin = time.monotonic()
        done = run_job(plan, lake.coordinator, lake.runner, lake.blobs, lambda step, told: None)
        seconds.append(time.monotonic() - begin)
        assert done is not None and done.rows == 400_000
    assert seconds[1] < 3 * seconds[0], seconds
