"""Rollovers and the failure of a writer of a leased stream on three nodes: how long no append is
acknowledged.

`python -m bench.segments [--seconds S] [--connections N] [--records N] [--rounds N]`. Connections at
all nodes have one append in flight each, through the text protocol. A stall is a time between two
acknowledgements. Of a run with N rollovers the N longest are looked at, beside the N longest of as
long a run without segments: what the machine does is in both. Then the node that writes is killed
(SIGKILL), and the time until the next acknowledgement counts. In the end the stream must have every
acknowledged record once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar
from urllib.request import urlopen

import uvloop

from bench import _results
from bench._nodes import Cluster, machine
from bench._rounds import Figures, in_turn, table
from bench.hot_stream import TEXT_PORT, framed
from polynya.base.names import LEASED, REPLICATED

TOPIC = "segments"
AGAIN_SECONDS = 0.01  # after a refusal
ANSWER_SECONDS = 0.5  # then a connection is given up
FAILOVER_SECONDS = 30.0
SETTLE_SECONDS = 4.0  # after a kill: the longest time without an acknowledgement is in them
Result = TypeVar("Result")


class Writers:
    """Connections with one append in flight each. `acknowledged`: when, and which record."""

    def __init__(self, ports: list[int], connections: int) -> None:
        self._ports, self._connections = ports, connections
        self._unknown = 0
        self.acknowledged: list[tuple[float, str]] = []
        self.stopping = asyncio.Event()

    async def run(self, seconds: float) -> None:
        """Write for `seconds`, or until `stopping`."""
        self.stopping.clear()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._connections):
                tasks.create_task(self._write(number))
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), seconds)
            self.stopping.set()

    async def _write(self, number: int) -> None:
        mark = f"{len(self.acknowledged)}-{number}"
        count, port = 0, self._ports[number % len(self._ports)]
        while not self.stopping.is_set():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                while not self.stopping.is_set():
                    count += 1
                    async with asyncio.timeout(ANSWER_SECONDS):
                        answer = await ask(reader, writer, f"PUT {TOPIC} {mark}-{count}")
                    if answer == "OK":
                        self.acknowledged.append((perf_counter(), f"{mark}-{count}"))
                    else:
                        await asyncio.sleep(AGAIN_SECONDS)
                writer.close()
            except (OSError, EOFError, TimeoutError):
                await asyncio.sleep(AGAIN_SECONDS)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: str) -> str:
    writer.write(framed(line.encode()))
    length = int.from_bytes(await reader.readexactly(4), "little")
    return (await reader.readexactly(length)).decode()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run_once(profile: str, options: argparse.Namespace) -> Figures:
    """Return the figures of a fresh cluster."""
    flags = ["--text-listen", "on", "--text-profile", profile]
    flags += ["--segments-records", str(options.records)]
    with Cluster(*flags, directory=options.directory) as cluster:
        return run(_measured(cluster, profile, options))


async def _measured(cluster: Cluster, profile: str, options: argparse.Namespace) -> Figures:
    ports = [cluster.port + 10 * node + TEXT_PORT for node in range(3)]
    answer = await ask(*await asyncio.open_connection("127.0.0.1", ports[0]), f"REGISTER {TOPIC}")
    if answer != "OK":
        raise SystemExit(f"REGISTER got {answer!r}, expected OK")
    writers = Writers(ports, options.connections)
    await writers.run(1.0)
    begun = len(writers.acknowledged)
    before = _segments(cluster.urls[0])[0] if profile == LEASED else 0
    await writers.run(options.seconds)
    times = [at for at, _ in writers.acknowledged[begun:]]
    rollovers = _segments(cluster.urls[0])[0] - before if profile == LEASED else 0
    gaps = sorted((later - at for at, later in pairwise(times)), reverse=True)
    # the control has as many of its longest gaps looked at as a run of this length has rollovers
    looked = gaps[: rollovers or max(1, len(times) // options.records)]
    failover = await _failover(cluster, writers, profile)
    _check(cluster, [record for _, record in writers.acknowledged])
    return {
        "per_second": len(times) / options.seconds,
        "rollovers": rollovers,
        "stall_p50_ms": statistics.median(looked) * 1e3,
        "stall_p90_ms": looked[len(looked) // 10] * 1e3,
        "stall_max_ms": looked[0] * 1e3,
        "failover_s": failover,
    }


async def _failover(cluster: Cluster, writers: Writers, profile: str) -> float:
    """Kill the node that writes; return the seconds until the next acknowledgement."""
    writing = asyncio.create_task(writers.run(FAILOVER_SECONDS))
    await asyncio.sleep(1.0)
    writer = _segments(cluster.urls[0])[1] if profile == LEASED else _leader(cluster)
    for process in cluster.nodes[writer - 1]:
        with suppress(ProcessLookupError):
            process.kill()
    killed = perf_counter()
    while perf_counter() < killed + SETTLE_SECONDS or not _is_acknowledged(writers):
        if writing.done():
            raise SystemExit(f"no append is acknowledged {FAILOVER_SECONDS:.0f} s after the kill")
        await asyncio.sleep(0.01)
    writers.stopping.set()
    await writing
    times = [at for at, _ in writers.acknowledged]
    # what the node had answered may be read after the kill
    return max(later - max(at, killed) for at, later in pairwise(times) if later > killed)


def _is_acknowledged(writers: Writers) -> bool:
    """Report whether an append was acknowledged just now."""
    return perf_counter() - writers.acknowledged[-1][0] < AGAIN_SECONDS


def _segments(url: str) -> tuple[int, int]:
    """Return the rollovers so far, and the writer."""
    with urlopen(f"{url}/v1/segments/{TOPIC}") as response:
        found = json.load(response)
    return found["rollovers"], found["writer"]


def _leader(cluster: Cluster) -> int:
    """Return the node that leads the stream's group, as the port in `Stream-Owner` tells."""
    with urlopen(f"{cluster.urls[0]}/v1/stream/{TOPIC}?offset=now") as response:
        owner = response.headers.get("Stream-Owner", cluster.urls[0])
    return (int(owner.rstrip("/").rpartition(":")[2]) - cluster.port) // 10 + 1


def _check(cluster: Cluster, acknowledged: list[str]) -> None:
    """Exit unless the stream has each acknowledged record once."""
    offset, found, ended = "-1", list[str](), False
    url = next(url for url in cluster.urls if _answers(url))
    while not ended:
        with urlopen(f"{url}/v1/stream/{TOPIC}?offset={offset}") as response:
            found += json.load(response)
            offset = response.headers["Stream-Next-Offset"]
            ended = "Stream-Up-To-Date" in response.headers
    if len(found) != len(set(found)) or not set(acknowledged) <= set(found):
        lost, twice = len(set(acknowledged) - set(found)), len(found) - len(set(found))
        sys.exit(f"{lost} acknowledged records are lost, and {twice} are there twice")


def _answers(url: str) -> bool:
    try:
        urlopen(f"{url}/readyz", timeout=2).close()
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--records", type=int, default=500, help="of a segment")
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    options = parser.parse_args()
    print(machine())
    runs = in_turn([LEASED, REPLICATED], options.rounds, lambda name: run_once(name, options))
    print(table("profile", runs))
    print(json.dumps(runs))
    if options.save:
        _results.save("segments", runs)


if __name__ == "__main__":
    main()
