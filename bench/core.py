"""What an append costs below HTTP: the whole core, and each room by itself. `python bench/core.py
[--folder F] [--appends N]`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import uvloop
from google_crc32c import value as crc32c

from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.engine.log_clock import LogClock, once_per_pass
from polynya.engine.storage import open_storage
from polynya.replica.log import encode_command
from polynya.service.assembly import CoreRuntime, Shape
from polynya.stream.commands import Append, Batch, Create, Encoding, Producer
from polynya.stream.machine import Machine
from polynya.stream.replies import Done, Reply
from polynya.wal import Journal

STREAMS = 500
GROUPS = 16
PAYLOAD = b"x" * 256
CRC = crc32c(PAYLOAD)
NAMES = [f"bench/s{number}" for number in range(STREAMS)]


def append_of(number: int, now_ms: int) -> Append:
    """As the HTTP front makes it from a request of `ursula-bench multi-stream`."""
    batch = Batch(Encoding.BYTES, 1, PAYLOAD, CRC)
    return Append(
        NAMES[number % STREAMS],
        now_ms,
        "application/octet-stream",
        batch,
        Producer("writer", 0, number // STREAMS),
    )


def micros(work: Callable[[], object], count: int) -> float:
    """CPU microseconds per item, best of three."""
    runs = []
    for _ in range(3):
        begin = process_time()
        work()
        runs.append(process_time() - begin)
    return min(runs) / count * 1e6


def rooms(folder: Path, count: int) -> None:
    """Each room alone, one thread."""
    clock = LogClock()
    now_ms = clock.now_ms()
    commands = [append_of(number, now_ms) for number in range(count)]
    print(
        "  make the command      "
        f"{micros(lambda: [append_of(n, now_ms) for n in range(count)], count):6.2f} us"
    )
    print(
        "  log time              "
        f"{micros(lambda: [clock.now_ms() for _ in range(count)], count):6.2f} us"
    )
    print(
        "  encode                "
        f"{micros(lambda: [encode_command(c) for c in commands], count):6.2f} us"
    )
    payloads = [encode_command(command) for command in commands]
    journal = Journal.open(folder / "stage", journal_id=1)

    def stage() -> None:
        for index, payload in enumerate(payloads):
            journal.stage(1, 1, index, 1, payload)
        # given up: this measures memory alone
        journal._staged, journal._parts, journal._buffers, journal._limit = (
            False,
            [],
            [],
            0,
        )

    print(f"  journal stage         {micros(stage, count):6.2f} us")

    def apply() -> None:
        machine = Machine(1, GROUPS)
        for name in NAMES:
            machine.apply(Create(name, now_ms, "application/octet-stream", Encoding.BYTES))
        for command in commands:
            machine.apply(command, 1)
            machine.directory.hot_bytes = 0  # the bound is another room's matter

    print(f"  machine apply         {micros(apply, count):6.2f} us")


async def closed_loop(
    count: int, in_flight: int, propose: Callable[[int, Done], None]
) -> tuple[float, float]:
    """So many appends, of which so many are under way at a time: the seconds that they take, and
    those of CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as a core does
    finished = asyncio.get_running_loop().create_future()
    sent = answered = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        propose(sent - 1, done)

    def done(reply: Reply | BaseException) -> None:
        nonlocal answered
        assert isinstance(reply, Reply) and reply.code == 0, reply
        answered += 1
        if sent < count:
            send()
        elif answered == count:
            finished.set_result(None)

    begin, cpu = perf_counter(), process_time()
    for _ in range(in_flight):
        send()
    await finished
    return perf_counter() - begin, process_time() - cpu


async def whole(folder: Path, count: int, in_flight: int) -> None:
    """A closed loop of `in_flight` writers on a real journal."""
    storage = open_storage(folder / f"core-{in_flight}", core=0, cores=1, groups=GROUPS)
    clock = LogClock(storage.log_ms)
    shape = Shape(core=0, cores=1, groups=GROUPS, history=1, hot_bytes_max=HOT_BYTES_PER_GROUP)
    engine = CoreRuntime(
        storage,
        shape,
        now_ms=once_per_pass(clock.now_ms, asyncio.get_running_loop()),
        transport=None,
        fatal=lambda error: None,
    )
    engine.local.memory.bytes_max = engine.local.memory.group_bytes_max = 1 << 40
    service = engine.service
    for name in NAMES:
        await engine.core.call(
            service.group_of(name),
            Create(name, clock.now_ms(), "application/octet-stream", Encoding.BYTES),
        )

    appenders = [service.appender(name) for name in NAMES]

    def propose(number: int, done: Done) -> None:
        appenders[number % STREAMS](append_of(number, service.now_ms()), done)

    turns = engine.core.counters.turns
    elapsed, cpu = await closed_loop(count, in_flight, propose)
    turns = engine.core.counters.turns - turns
    print(
        f"  {in_flight:4d} in flight        {cpu / count * 1e6:6.2f} us of CPU, "
        f"{count / elapsed:8.0f} appends/s, "
        f"{count / turns:6.1f} a turn, {elapsed / turns * 1e6:6.0f} us a turn"
    )
    await engine.core.drain()
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where the journal goes; a temporary folder by default"
    )
    parser.add_argument("--appends", type=int, default=100_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        print(
            f"{options.appends} appends of {len(PAYLOAD)} B to {STREAMS} streams, with a producer"
        )
        rooms(folder, options.appends)
        for in_flight in (500, 64, 1):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(
                    whole(
                        folder,
                        options.appends if in_flight > 1 else options.appends // 20,
                        in_flight,
                    )
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
