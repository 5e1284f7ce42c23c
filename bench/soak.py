"""Appends at full speed with flushes and snapshots under way: does memory, or the journal, grow? `python -m bench.soak [--seconds S]`."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path
from time import perf_counter, process_time

import psutil
import uvloop
from google_crc32c import value as crc32c

from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.cold import ColdReader, Flusher, FlushSettings
from polynya.node.bootstrap import open_quickly
from polynya.node.clock import LogClock, once_per_pass
from polynya.node.engine import Engine, Shape
from polynya.objectstore import StoreSettings, open_store
from polynya.stream.commands import Append, Batch, Create, Encoding, Producer
from polynya.stream.replies import Code, Reply

GROUPS = 16
STREAMS = 500
IN_FLIGHT = 500
PAYLOAD = b"x" * 256
REPORTS = 12


class Writers:
    """A closed loop of `IN_FLIGHT` appends, until stopped."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batch = Batch(Encoding.BYTES, 1, PAYLOAD, crc32c(PAYLOAD))
        self.sequences = [0] * STREAMS
        self.applied = self.refused = 0
        self.running = True

    def send(self, stream: int) -> None:
        name = f"bench/s{stream}"
        producer = Producer("writer", 0, self.sequences[stream])
        command = Append(name, self.engine.service.now_ms(), "text/plain", self.batch, producer)

        def done(reply: Reply | BaseException) -> None:
            if isinstance(reply, Reply) and reply.code == Code.OK:
                self.applied += 1
                self.sequences[stream] += 1
                if self.running:
                    self.send(stream)
            else:  # over the bound of hot bytes: as a client, wait and repeat
                self.refused += 1
                asyncio.get_running_loop().call_later(0.05, self.send, stream)

        self.engine.service.propose(name, command, done)


async def soak(folder: Path, seconds: float) -> None:
    storage = open_quickly(folder / "core-0", core=0, cores=1, groups=GROUPS)
    shape = Shape(core=0, cores=1, groups=GROUPS, history=1, hot_bytes_max=HOT_BYTES_PER_GROUP)
    now_ms = once_per_pass(LogClock().now_ms, asyncio.get_running_loop())
    engine = Engine(storage, shape, now_ms=now_ms, transport=None, fatal=lambda error: None)
    store = open_store(StoreSettings(backend="local", root=str(folder / "objects")))
    assert store is not None
    engine.local.cold = ColdReader(store)
    flusher = Flusher(engine.groups, store, FlushSettings(), "bench")
    tasks = [asyncio.create_task(flusher.run()), asyncio.create_task(snapshots(engine))]
    for number in range(STREAMS):
        name = f"bench/s{number}"
        await engine.core.call(engine.service.group_of(name), Create(name, now_ms(), "text/plain", Encoding.BYTES))
    writers = Writers(engine)
    for number in range(IN_FLIGHT):
        writers.send(number % STREAMS)
    for _ in range(REPORTS):
        await report(engine, writers, seconds / REPORTS)
    writers.running = False
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.core.drain()
    engine.close()
    await store.close()


async def report(engine: Engine, writers: Writers, seconds: float) -> None:
    applied, begin, cpu = writers.applied, perf_counter(), process_time()
    await asyncio.sleep(seconds)
    count, elapsed, cpu = writers.applied - applied, perf_counter() - begin, process_time() - cpu
    slices = sum(held.slices for machine in engine.local.machines.values() for held in machine.held.values())
    print(
        f"  {count / elapsed:8.0f} appends/s, {cpu / max(count, 1) * 1e6:5.1f} us of CPU each; RSS {psutil.Process().memory_info().rss >> 20} MiB, "
        f"hot {engine.local.hot_bytes >> 20} MiB, {slices} slices in the index, {len(engine.core.journal.segments())} journal segments, "
        f"{writers.refused} refused",
        flush=True,
    )


async def snapshots(engine: Engine) -> None:
    while True:
        await asyncio.sleep(0.2)
        if engine.snapshotter.due():
            await engine.snapshotter.run(engine.service.now_ms())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, help="where data goes; a temporary folder by default")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(soak(folder, options.seconds))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
