"""Memory of a core does not grow with the work it has done."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc

import pytest
from worlds.service import Code, Producer, World, name_in

pytestmark = pytest.mark.process

# disk and store in memory
FAKES = [
    tracemalloc.Filter(False, name) for name in ("*worlds/fake_disk.py", "*memory.py", "*pack.py")
]
NAMES = [name_in(group) for group in (1, 2, 3, 4)]


async def work(world: World, appends: int, first: int) -> None:
    """Everything that a client may do, many times over."""
    for begin in range(first, first + appends, 100):
        sent = [
            world.send(world.append_of(NAMES[n % 4], b"x" * 100, producer=Producer("p", 0, n // 4)))
            for n in range(begin, begin + 100)
        ]
        assert {(await each).code for each in sent} == {Code.OK}
        for name in NAMES:
            await world.page(name)
        world.clock.ms += 400
        world.local.sweep()
        await world.create("test/passing", ttl_seconds=60)
        await world.page("test/passing")
        assert (await world.fork("test/fork", "test/passing")).code == Code.CREATED
        await world.delete("test/fork")
        await world.delete("test/passing")
        await world.settle()
        if begin % 500 == 0:
            await world.service.flush("")
            await world.snapshot()
            await world.collector.collect()


def sizes(world: World) -> dict[str, int]:
    local, core, outbox_sender = world.local, world.engine.core, world.engine.outbox_sender
    return {
        "unsettled": len(local.lifecycle._unsettled),
        "waiting": len(local.lifecycle._waiting_creates),
        "touched": len(local.lifetimes),
        "logging": len(local.lifetimes._logging),
        "feeds": len(local.feeds),
        "proposals": len(core._proposals),
        "inflight": core.inflight_bytes,
        "waiters": len(core._ends),
        "sending": len(outbox_sender._sending),
        "flushing": len(world.flusher.in_flight),
        "hot": world.hot_bytes,
    }


def test_ten_thousand_appends_leave_nothing_behind() -> None:
    """Run in a process of its own: after thousands of tests the interpreter's table of strings
    might grow by megabytes at this moment."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, __file__],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr


async def measure() -> None:
    world = World()
    world.segment_bytes = 1 << 18
    world.start()
    for name in NAMES:
        await world.create(name)
    await work(world, 2000, 0)
    await world.service.flush("")
    tracemalloc.start()
    await work(world, 8000, 2000)
    await world.service.flush("")
    await world.snapshot()
    gc.collect()
    kept = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(FAKES).traces)
    tracemalloc.stop()
    assert sizes(world) == dict.fromkeys(sizes(world), 0)
    assert len(world.engine.core.journal.segments.sizes()) <= 2
    assert kept < 600_000, f"{kept} bytes more than before 8,000 appends (their payload: 800,000)"
    await world.stop()


if __name__ == "__main__":
    asyncio.run(measure())
