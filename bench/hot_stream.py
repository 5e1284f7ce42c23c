"""One hot stream on three nodes through the text protocol: rate, latency, and the CPU of each room.

`python -m bench.hot_stream [--seconds S] [--connections N] [--profile leased] [--sample]`.
`--profile leased` makes the stream a chain of segments of `--segment-records`. Its longest answers
are those that wait for a rollover. `--sample` samples the nodes with py-spy (`pip install py-spy`),
and adds up the samples by the room of the innermost frame of the product. A room's share says what
a cheaper room could save at most. After each round the stream must have every record that was
acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from time import perf_counter
from typing import Any
from urllib.request import Request, urlopen

import uvloop

from bench import _results
from bench._nodes import Cluster, machine
from bench._rounds import Figures, in_turn, table
from polynya.base.names import PROFILES, REPLICATED

TOPIC = "hot"
TEXT_PORT = 4  # after the node's port
WINDOW = 16  # requests of one connection in flight
SAMPLES_PER_SECOND = 200


def framed(text: bytes) -> bytes:
    return len(text).to_bytes(4, "little") + text


async def _ask(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(framed(text))
    answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
    writer.close()
    return answer


async def _writer(port: int, request: bytes, until: float, took: list[float]) -> None:
    """Keep `WINDOW` requests in flight, and append the seconds of each to `took`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent: list[float] = []
    answered = 0
    while perf_counter() < until or answered < len(sent):
        while len(sent) - answered < WINDOW and perf_counter() < until:
            sent.append(perf_counter())
            writer.write(request)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "little"))
        if answer != b"OK":
            raise SystemExit(f"PUT got {answer!r}, expected OK")
        took.append(perf_counter() - sent[answered])
        answered += 1
    writer.close()


async def _load(cluster: Cluster, options: argparse.Namespace) -> tuple[list[float], float]:
    ports = [cluster.port + 10 * node + TEXT_PORT for node in range(3)]
    if (answer := await _ask(ports[0], b"REGISTER " + TOPIC.encode())) != b"OK":
        raise SystemExit(f"REGISTER got {answer!r}, expected OK")
    request = framed(b"PUT " + TOPIC.encode() + b" " + b"x" * options.bytes)
    took: list[float] = []
    began = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(options.connections):
            port = ports[0] if options.one_node else ports[number % 3]
            tasks.create_task(_writer(port, request, began + options.seconds, took))
    return took, perf_counter() - began


def _run(work: Coroutine[Any, Any, tuple[list[float], float]]) -> tuple[list[float], float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run_once(options: argparse.Namespace, rooms: Counter[str]) -> Figures:
    """Start a fresh cluster, run one load, and return its figures; `rooms` gets the samples of its
    nodes."""
    flags = ["--text-listen", "on", "--text-profile", options.profile]
    flags += ["--segments-records", str(options.segment_records)]
    with Cluster(*flags, directory=options.directory) as cluster:
        samplers = _samplers(cluster, options.seconds) if options.sample else []
        before = sum(cluster.cpu())
        took, seconds = _run(_load(cluster, options))
        used = sum(cluster.cpu()) - before
        epoch = _check(cluster, len(took))
        for process, raw in samplers:
            process.wait(60)
            rooms.update(samples_of(raw.read_text()))
    took.sort()
    return {
        "per_second": len(took) / seconds,
        "p50_ms": took[len(took) // 2] * 1e3,
        "p99_ms": took[len(took) * 99 // 100] * 1e3,
        "max_ms": took[-1] * 1e3,
        "rollovers": epoch - 1,
        "cpu_us_each": used * 1e6 / len(took),
    }


def _check(cluster: Cluster, acknowledged: int) -> int:
    """Return the number of the open segment. Exit if the stream has another number of records than
    was acknowledged."""
    url = f"http://127.0.0.1:{cluster.port}/v1/stream/{TOPIC}"
    with urlopen(Request(url, method="HEAD")) as response:
        found = int(response.headers["Stream-Next-Offset"].partition("_")[0])
        if found != acknowledged:
            sys.exit(f"{acknowledged} records were acknowledged, and the stream has {found}")
        return int(response.headers.get("Stream-Segment", 1))


def _samplers(cluster: Cluster, seconds: int) -> list[tuple[subprocess.Popen[bytes], Path]]:
    spy = shutil.which("py-spy")
    if spy is None:
        sys.exit("--sample needs py-spy in PATH: pip install py-spy")
    found = []
    for node in cluster.nodes:
        for process in node[1:]:
            raw = cluster.folder / f"samples-{process.pid}"
            command = [spy, "record", "--pid", str(process.pid), "--duration", str(seconds)]
            command += ["--rate", str(SAMPLES_PER_SECOND), "--format", "raw", "--nonblocking"]
            command += ["--full-filenames", "--output", str(raw)]
            quiet = subprocess.DEVNULL
            found.append((subprocess.Popen(command, stdout=quiet, stderr=quiet), raw))
    return found


def samples_of(raw: str) -> Counter[str]:
    """Return samples by room: the folder of the innermost frame that is the product's."""
    rooms: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        inner = [frame for frame in stack.split(";") if "/polynya/" in frame]
        path = inner[-1].rpartition("/polynya/")[2] if inner else ""
        room = path.partition("/")[0] if "/" in path else "interpreter"
        # The innermost frame is the one that runs the loop: the loop and the kernel have the time.
        rooms["event loop and kernel" if room == "node" else room] += int(count)
    return rooms


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--bytes", type=int, default=256, help="of one payload")
    parser.add_argument("--one-node", action="store_true", help="all connections at one node")
    parser.add_argument("--profile", choices=PROFILES, default=REPLICATED, help="of the stream")
    parser.add_argument("--segment-records", type=int, default=10_000, help="of a leased stream")
    parser.add_argument("--sample", action="store_true", help="sample the nodes with py-spy")
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    options = parser.parse_args()
    print(machine())
    rooms: Counter[str] = Counter()
    runs = in_turn(["polynya"], options.rounds, lambda _: run_once(options, rooms))
    print(table("server", runs))
    total = sum(rooms.values())
    for room, count in rooms.most_common():
        print(f"  {room:16} {count / total:6.1%}")
    print(json.dumps({"runs": runs, "rooms": rooms}))
    if options.save:
        _results.save(
            "hot_stream",
            runs,
            more={f"cpu_share_{room}": {"polynya": count / total} for room, count in rooms.items()},
        )


if __name__ == "__main__":
    main()
