"""Messages between two cores: microseconds per round trip, and calls per second when many are under
way.

    python bench/transport.py [--seconds 2]

Two processes on uvloop; each line is one run: body bytes, calls under way, calls/s, us of wall and
of this side's CPU per call.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time

import uvloop

from polynya.transport import Transport

ECHO = 1


async def answer(directory: str) -> None:
    transport = Transport(1, 2, directory)
    transport.on(ECHO, lambda body, reply, core: reply(body))
    await transport.start()
    await asyncio.Event().wait()


async def measure(
    transport: Transport, body: bytes, under_way: int, seconds: float
) -> tuple[float, float, float]:
    """Calls/s, wall us and CPU us per call: `under_way` calls at a time, each answered one followed
    by the next."""
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    end = time.perf_counter() + seconds
    count = 0
    left = under_way
    running = True

    def done(result: bytes | BaseException) -> None:
        nonlocal count, left, running
        if isinstance(result, BaseException):
            raise result
        count += 1
        if not count & 63:
            running = time.perf_counter() < end
        if running:
            transport.call_nowait(1, ECHO, body, done)
            return
        left -= 1
        if not left:
            finished.set_result(None)

    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(under_way):
        transport.call_nowait(1, ECHO, body, done)
    await finished
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    return count / wall, wall / count * 1e6, used / count * 1e6


async def ask(directory: str, seconds: float) -> None:
    print(f"{'body':>8} {'under way':>10} {'calls/s':>10} {'us/call':>9} {'CPU us':>8}")
    for size, under_way in (
        (256, 1),
        (256, 16),
        (256, 500),
        (256, 5000),
        (16384, 100),
        (1 << 20, 4),
    ):
        transport = Transport(0, 2, directory)
        await transport.start()
        await transport.wait_connected()
        rate, wall, cpu = await measure(transport, bytes(size), under_way, seconds)
        print(f"{size:>8} {under_way:>10} {rate:>10.0f} {wall:>9.2f} {cpu:>8.2f}")
        await transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        pid = os.fork()
        if not pid:
            uvloop.run(answer(directory))
            os._exit(0)
        try:
            uvloop.run(ask(directory, arguments.seconds))
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
