"""Many idle streams: memory of each, time of a snapshot, and a restart until the first answer.
`python -m bench.idle_streams [--streams N]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from itertools import islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import psutil
import uvloop
from google_crc32c import value as crc32c

from bench import _results
from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.cold import ColdReader, Evictor, EvictSettings, Flusher, FlushSettings, StateReader
from polynya.engine.log_clock import LogClock
from polynya.node.core_process import open_quickly
from polynya.objectstore import ObjectStore, StoreSettings, open_store
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Batch, Encoding, Producer
from polynya.stream.replies import Reply

GROUPS = 16
IN_FLIGHT = 1000
Result = TypeVar("Result")
PAYLOAD = b"x" * 100


def name_of(number: int) -> str:
    return f"bench/tenant-{number % 97}/session-{number:08d}"


def rss() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def open_engine(folder: Path) -> CoreRuntime:
    storage = open_quickly(folder / "core-0", core=0, cores=1, groups=GROUPS)
    shape = Shape(core=0, cores=1, groups=GROUPS, history=1, hot_bytes_max=HOT_BYTES_PER_GROUP)
    return CoreRuntime(
        storage,
        shape,
        now_ms=LogClock(storage.log_ms).now_ms,
        transport=None,
        fatal=lambda error: None,
    )


async def propose_all(engine: CoreRuntime, commands: list[Any]) -> None:
    for begin in range(0, len(commands), IN_FLIGHT):
        futures = []
        for command in commands[begin : begin + IN_FLIGHT]:
            future: asyncio.Future[Reply | BaseException] = (
                asyncio.get_running_loop().create_future()
            )
            engine.service.propose(command.name, command, future.set_result)
            futures.append(future)
        for future in futures:
            reply = await future
            assert isinstance(reply, Reply) and reply.code in (0, 3), reply


async def fill(folder: Path, streams: int) -> dict[str, float]:
    """Fill a core with streams in each state; return the bytes of memory that one takes."""
    engine = open_engine(folder)
    store = open_store(StoreSettings(backend="local", root=str(folder / "objects")))
    assert store is not None
    engine.local.reads.cold = ColdReader(store)
    engine.local.rehydration.states = StateReader(store)
    flusher = Flusher(engine.groups, store, FlushSettings(), "bench")
    before, found = rss(), dict[str, float]()

    def report(what: str, name: str = "") -> None:
        each = (rss() - before) / streams
        if name:
            found[name] = each
        print(f"  {what:<42}{each:7.0f} B of RSS a stream", flush=True)

    now_ms = engine.service.now_ms()
    creates = (
        Create(name_of(number), now_ms, "application/json", Encoding.JSON)
        for number in range(streams)
    )
    for _ in range(0, streams, 10_000):
        await propose_all(engine, list(islice(creates, 10_000)))
    report("created", "empty stream")
    batch = Batch(Encoding.JSON, 1, PAYLOAD, crc32c(PAYLOAD))
    for begin in range(0, streams, 10_000):
        numbers = range(begin, min(begin + 10_000, streams))
        await propose_all(
            engine,
            [
                Append(name_of(n), now_ms, "application/json", batch, Producer(f"writer-{n}", 0, 0))
                for n in numbers
            ],
        )
    report("with one record from a producer, hot", "one record in memory")
    await snapshots(engine, "first snapshots, records hot")
    await engine.core.drain()
    shutil.copytree(folder / "core-0", folder / "hot" / "core-0")
    begin_s = perf_counter()
    await flusher.flush_now("")
    report(f"the same, in packs ({perf_counter() - begin_s:.1f} s of flushing)", "flushed")
    await snapshots(engine, "snapshots, records in packs")
    await engine.core.drain()
    shutil.copytree(folder / "core-0", folder / "packs" / "core-0")
    await evicted(engine, store, report)
    await engine.core.drain()
    shutil.copytree(folder / "core-0", folder / "evicted" / "core-0")
    await returned(engine, streams)
    for _ in range(3):
        numbers = range(0, streams, 100)
        await propose_all(
            engine, [Append(name_of(n), now_ms, "application/json", batch) for n in numbers]
        )
        await snapshots(engine, "snapshots, 1 % of the streams changed")
    await engine.core.drain()
    engine.close()
    await store.close()
    return found


async def evicted(
    engine: CoreRuntime, store: ObjectStore, report: Callable[[str, str], None]
) -> None:
    """Evict all streams, and report what that took."""
    evictor = Evictor(
        engine.groups, store, EvictSettings(after_ms=1, few=1), "bench", in_flight=set()
    )
    await asyncio.sleep(0.01)
    begin, cpu = perf_counter(), process_time()
    gone = await evictor.evict_due()
    elapsed, cpu = perf_counter() - begin, process_time() - cpu
    report(f"evicted ({elapsed:.1f} s, {cpu / gone * 1e6:.0f} us of CPU a stream)", "")
    await snapshots(engine, "snapshots, all evicted")
    report("the same, with snapshots that say so", "evicted")


async def returned(engine: CoreRuntime, streams: int) -> None:
    """Append to each hundredth stream, and print what that took."""
    batch = Batch(Encoding.JSON, 1, PAYLOAD, crc32c(PAYLOAD))
    now_ms, numbers = engine.service.now_ms(), range(0, streams, 100)
    begin, cpu = perf_counter(), process_time()
    await propose_all(
        engine, [Append(name_of(n), now_ms, "application/json", batch) for n in numbers]
    )
    elapsed, cpu = perf_counter() - begin, process_time() - cpu
    print(
        f"  1 % written to again: {elapsed / len(numbers) * 1e6:.0f} us and "
        f"{cpu / len(numbers) * 1e6:.0f} us of CPU a stream",
        flush=True,
    )


async def snapshots(engine: CoreRuntime, what: str) -> None:
    """Run one round, and measure how long the loop stood still at most: each pass of it is
    timed."""
    loop, passes, written = asyncio.get_running_loop(), [0.0], engine.snapshotter.counters.bytes

    def passed(before: float) -> None:
        now = process_time()
        passes.append(now - before)
        if not work.done():
            loop.call_soon(passed, now)

    begin, cpu = perf_counter(), process_time()
    work = loop.create_task(engine.snapshotter.run(engine.service.now_ms()))
    loop.call_soon(passed, cpu)
    await work
    elapsed = perf_counter() - begin
    print(
        f"  {what}: {elapsed:.2f} s, {(engine.snapshotter.counters.bytes - written) / 1e6:.2f} MB; the "
        "loop stands still for at most"
        f" {max(passes) * 1e3:.1f} ms of CPU",
        flush=True,
    )


async def answer(folder: Path, streams: int) -> None:
    """Open the folder in a fresh process, and print the bytes of memory that a stream takes."""
    before = rss()
    engine = open_engine(folder)
    print((rss() - before) / streams, flush=True)
    info = await engine.service.info(name_of(streams - 1))
    assert info.record == 1, info  # type: ignore[union-attr]
    engine.close()


def restart(folder: Path, streams: int, what: str) -> dict[str, float]:
    """Return the seconds until a fresh process answers, and the memory of a stream in it: the one
    that evicted them keeps the pages that it had."""
    begin = perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.idle_streams",
            "--answer",
            str(folder),
            "--streams",
            str(streams),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    took, each = perf_counter() - begin, float(done.stdout)
    print(
        f"  restart to the first answer, {what}: {took:.2f} s, imports included; {each:.0f} B of RSS a "
        "stream",
        flush=True,
    )
    return {"restart_seconds": took, "restart_bytes_each": each}


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    _results.add_option(parser)
    options = parser.parse_args()
    if options.answer is not None:
        run(answer(options.answer, options.streams))
        return
    folder = Path(tempfile.mkdtemp())
    try:
        print(f"{options.streams} streams in {GROUPS} groups")
        figures = {
            name: {"bytes_each": each} for name, each in run(fill(folder, options.streams)).items()
        }
        for part, name, what in (
            ("packs", "flushed", "from snapshots, records in packs"),
            ("evicted", "evicted", "from snapshots, all evicted"),
            ("hot", "one record in memory", "from snapshots, records hot in the journal"),
        ):
            figures[name] |= restart(folder / part, options.streams, what)
        shutil.rmtree(folder / "hot" / "core-0" / "snapshots")
        restart(folder / "hot", options.streams, "from the journal alone")
        if options.save:
            _results.save("idle_streams", {name: [row] for name, row in figures.items()})
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
