"""Measure the constants of docs/sizing.md on one node of one core, and write the page.
`python -m bench.sizing [--part P] [--save | --page]`.

What a stream, a table, a producer, a connection, a live reader and a consumer group take of memory;
what appends and reads take of a core; and what a byte takes of the disk. Three minutes on two quiet
cores, which the node and its load share. `--part 0.1` measures a tenth, `--save` writes
bench/results/sizing.json and the page, `--page` the page of that file alone. After a run beside
other work the file says so, the page has no numbers, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import psutil
import uvloop

from bench import _results, _sizing_page
from chaos.checkout import source
from chaos.ports import keep_row
from chaos.quiet import Watch

PIPELINED = 32
PAUSE_SECONDS = 0.1  # after a refused append
IN_FLIGHT_BYTES = 1 << 20  # of appends on one connection, so that few are refused
SMALL, LARGE = 1024, 256 * 1024  # bytes of a record
SETTLE_SECONDS = 3.0  # a flush, and the snapshot after it
START_SECONDS = 120.0
FLUSHED = ("polynya_flush_stored_bytes_total", "polynya_flush_bytes_total")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_NEXT = re.compile(rb"stream-next-offset: (\S+)", re.IGNORECASE)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_METADATA, _OFFSET_COMMIT = (3, 4), (8, 2)  # keys and versions


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The number of each thing that is measured."""

    streams: int
    producers: int
    connections: int
    readers: int
    consumer_groups: int
    tables: int
    seconds: float  # of each load

    @classmethod
    def of(cls, part: float) -> Plan:
        """Return a part of the whole plan."""
        return cls(
            streams=max(1000, int(20_000 * part)),
            producers=max(1000, int(20_000 * part)),
            connections=max(100, int(1000 * part)),
            readers=max(100, int(1000 * part)),
            consumer_groups=max(200, int(2000 * part)),
            tables=max(20, int(200 * part)),
            seconds=max(2.0, 10.0 * part),
        )


class Node:
    """A node of one core in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.port, self.kafka = keep_row(2), keep_row(2)
        self._log = (folder / "log").open("wb")
        command = [sys.executable, "-m", "polynya", "serve", "--cores", "1"]
        command += ["--listen", f"127.0.0.1:{self.port}", "--data", str(self.data)]
        began = time.monotonic()
        self._process = subprocess.Popen(
            [*command, "--kafka-listen", f"127.0.0.1:{self.kafka}"],
            stdout=self._log,
            stderr=self._log,
        )
        while b"listening on" not in (said := (folder / "log").read_bytes()):
            if self._process.poll() is not None or time.monotonic() - began > START_SECONDS:
                self.close()
                raise SystemExit(f"the node did not start:\n{said.decode()}")
            time.sleep(0.02)
        self.start_seconds = time.monotonic() - began
        supervisor = psutil.Process(self._process.pid)
        self._all = [supervisor, *supervisor.children(recursive=True)]

    def memory(self) -> int:
        """Return the bytes of memory that the node's processes have for themselves."""
        return sum(each.memory_full_info().uss for each in self._all)

    def cpu(self) -> float:
        """Return the seconds of CPU that they have used."""
        return sum(sum(each.cpu_times()[:2]) for each in self._all)

    def written(self) -> int:
        """Return the bytes that they have written to the disk."""
        return sum(each.io_counters().write_bytes for each in self._all)

    def metric(self, name: str) -> float:
        """Return a metric of the node."""
        text = urlopen(f"http://127.0.0.1:{self.port + 1}/metrics", timeout=60).read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._log.close()


# --- requests -------------------------------------------------------------------------------------


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    kind = "application/json" if path.startswith("/v1/tables") else "application/octet-stream"
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-type: {kind}", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def append(name: str, body: bytes, *headers: str) -> bytes:
    return request("POST", f"/v1/stream/sizing/{name}", body, *headers)


async def pipelined(
    port: int, requests: Iterable[bytes], *, at_once: int = PIPELINED, waits: bool = False
) -> int:
    """Send requests on one connection, `at_once` at a time. Return how many were served. `waits`:
    pause after a 503, as when more is appended than the store takes. Raises SystemExit for another
    error."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    left, total = iter(requests), 0
    while some := list(islice(left, at_once)):
        writer.write(b"".join(some))
        refused = 0
        for _ in some:
            head = await reader.readuntil(b"\r\n\r\n")
            found, length = _STATUS.match(head), _LENGTH.search(head)
            rest = await reader.readexactly(int(length[1])) if length else b""
            if waits and found is not None and found[1] == b"503":
                refused += 1
            elif found is None or found[1][:1] != b"2":
                raise SystemExit(f"the node answered {head.decode()}{rest.decode()}")
        total += len(some) - refused
        if refused:
            await asyncio.sleep(PAUSE_SECONDS)
    writer.close()
    return total


def until(seconds: float, make: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield requests for so long."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        yield make(number)
        number += 1


async def asked(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, *parts: bytes
) -> bytes:
    """Return the answer to a request of Kafka."""
    data = b"".join((head, _text("bench"), *parts))
    writer.write(struct.pack(">i", len(data)) + data)
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def offsets_committed(port: int, groups: int) -> None:
    """Commit an offset in each of so many consumer groups without members."""
    wire = await asyncio.open_connection("127.0.0.1", port)
    head = struct.pack(">hhi", *_METADATA, 0)  # it creates the topic
    await asked(*wire, head, struct.pack(">i", 1), _text("sizing"), b"\1")
    for number in range(groups):
        answer = await asked(
            *wire,
            struct.pack(">hhi", *_OFFSET_COMMIT, number),
            *(
                _text(f"sizing-{number}"),
                struct.pack(">i", -1),  # the generation of a group without members
                _text(""),
                struct.pack(">qi", -1, 1),
                _text("sizing"),
                struct.pack(">iiq", 1, 0, 7),
                _text(""),
            ),
        )
        if error := int.from_bytes(answer[-2:], "big", signed=True):
            raise SystemExit(f"OffsetCommit failed with error {error}")
    wire[1].close()


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


# --- memory ---------------------------------------------------------------------------------------


class Memory:
    """The memory that a number of things takes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.bytes: dict[str, float] = {}  # of one thing

    @asynccontextmanager
    async def of(self, name: str, count: int) -> AsyncIterator[None]:
        """Measure what the body creates: so many."""
        before = self._node.memory()
        yield
        await asyncio.sleep(SETTLE_SECONDS)
        self.bytes[name] = max(0.0, (self._node.memory() - before) / count)


async def measure_memory(node: Node, plan: Plan) -> dict[str, float]:
    memory, port = Memory(node), node.port
    names = [f"s{number}" for number in range(plan.streams)]
    # what the first requests of each kind load is of the node, not of the things
    await pipelined(port, [request("PUT", "/v1/stream/sizing/first"), append("first", b"x" * 100)])
    began = time.monotonic()
    async with memory.of("stream", plan.streams):
        await pipelined(port, (request("PUT", f"/v1/stream/sizing/{name}") for name in names))
        seconds = time.monotonic() - began
        await pipelined(port, (append(name, b"x" * 100) for name in names))
    async with memory.of("producer", plan.producers):
        numbered = (  # on several streams, as one takes 4,096
            (names[number % 16], f"producer-id: p{number}", "producer-epoch: 0", "producer-seq: 0")
            for number in range(plan.producers)
        )
        await pipelined(port, (append(name, b"x", *headers) for name, *headers in numbered))
    async with memory.of("table", plan.tables):
        body = json.dumps({"prefix": "none/"}).encode()
        bodies = (body.replace(b"none", b"none%d" % number) for number in range(plan.tables))
        await pipelined(
            port, (request("PUT", f"/v1/tables/t{at}", one) for at, one in enumerate(bodies))
        )
    async with memory.of("consumer_group", plan.consumer_groups):
        await offsets_committed(node.kafka, plan.consumer_groups)
    await measure_connections(node, plan, memory)
    return memory.bytes | {"creates_per_second": plan.streams / seconds}


async def measure_connections(node: Node, plan: Plan, memory: Memory) -> None:
    """Measure connections that are idle after a request, and live readers."""
    read = request("HEAD", "/v1/stream/sizing/first")
    live = request("GET", "/v1/stream/sizing/first?live=sse&offset=now")
    for name, count, data in (
        ("connection", plan.connections, read),
        ("live_reader", plan.readers, live),
    ):
        opened = []
        async with memory.of(name, count):
            for _ in range(count):
                reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
                writer.write(data)
                await reader.readuntil(b"\r\n\r\n")
                opened.append(writer)
        for writer in opened:
            writer.transport.abort()
        await asyncio.sleep(1.0)


# --- loads ----------------------------------------------------------------------------------------


class Spent(msgspec.Struct):
    """The time, CPU and disk writes of a load."""

    seconds: float = 0.0
    cpu: float = 0.0
    written: int = 0


async def spent(node: Node, work: Awaitable[Any]) -> tuple[Any, Spent]:
    began, cpu, written = time.monotonic(), node.cpu(), node.written()
    result = await work
    return result, Spent(time.monotonic() - began, node.cpu() - cpu, node.written() - written)


async def appended(node: Node, seconds: float, connections: int, size: int) -> int:
    """Append to a stream on each connection as fast as it goes; return the number."""
    work = (
        pipelined(
            node.port,
            until(seconds, lambda _, name=f"s{at}": append(name, os.urandom(size))),  # type: ignore[misc]
            at_once=min(PIPELINED, max(1, IN_FLIGHT_BYTES // size)),
            waits=True,
        )
        for at in range(connections)
    )
    return sum(await asyncio.gather(*work))


async def read_all(node: Node, name: str, seconds: float) -> int:
    """Read a stream from its beginning, again and again; return the bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    end, total, offset = time.monotonic() + seconds, 0, "-1"
    while time.monotonic() < end:
        writer.write(request("GET", f"/v1/stream/sizing/{name}?offset={offset}"))
        head = await reader.readuntil(b"\r\n\r\n")
        length, found = _LENGTH.search(head), _NEXT.search(head)
        assert length and found, head
        size = len(await reader.readexactly(int(length[1])))
        offset = found[1].decode() if size else "-1"
        total += size
    writer.close()
    return total


async def measure_loads(node: Node, plan: Plan) -> dict[str, float]:
    await appended(node, 1.0, 8, SMALL)  # warm
    count, at_small = await spent(node, appended(node, plan.seconds, 8, SMALL))
    await asyncio.sleep(SETTLE_SECONDS)
    number, at_large = await spent(node, appended(node, plan.seconds, 4, LARGE))
    payload = number * LARGE
    _, after = await spent(node, asyncio.sleep(2 * SETTLE_SECONDS))  # the flush behind it
    stored, flushed = map(node.metric, FLUSHED)
    size, at_read = await spent(node, read_all(node, "s0", plan.seconds))
    return {
        "appends_per_second": count / at_small.seconds,
        "append_cpu_us": at_small.cpu / count * 1e6,
        "append_mb_per_second": payload / at_large.seconds / 1e6,
        "append_cpu_seconds_per_gb": (at_large.cpu + after.cpu) / payload * 1e9,
        "written_per_byte": (at_large.written + after.written) / payload,
        "stored_per_byte": stored / flushed,
        "journal_bytes": node.metric("polynya_journal_disk_bytes"),
        "read_mb_per_second": size / at_read.seconds / 1e6,
        "read_cpu_seconds_per_gb": at_read.cpu / size * 1e9,
    }


async def measure(node: Node, plan: Plan) -> dict[str, float]:
    await asyncio.sleep(1.0)
    _, idle = await spent(node, asyncio.sleep(5.0))
    found = {
        "start_seconds": node.start_seconds,
        "node_bytes": float(node.memory()),
        "idle_cpu_percent": idle.cpu / idle.seconds * 100,
    }
    found |= await measure_memory(node, plan)
    return found | await measure_loads(node, plan)


@contextmanager
def running() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="bench-sizing-"))
    node = Node(folder)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=float, default=1.0, help="measure a part of all")
    parser.add_argument("--save", action="store_true", help="keep the result, write the page")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    options = parser.parse_args()
    if options.page:
        _sizing_page.write()
        return
    watch = Watch()
    watch.start()
    try:
        with running() as node, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(measure(node, plan := Plan.of(options.part)))
        conditions = watch.conditions()
    finally:
        watch.stop()
    result = {
        "commit": _results.commit(),
        "source": source(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _results.machine(),
        "part": options.part,
        "plan": msgspec.to_builtins(plan),
        "conditions": msgspec.to_builtins(conditions),
        "busy": conditions.busy,
        "figures": {name: float(f"{value:.3g}") for name, value in figures.items()},
    }
    print(json.dumps(result, indent=1))
    if options.save:
        _sizing_page.RESULT.write_text(json.dumps(result, indent=1) + "\n")
        _sizing_page.write()
    if conditions.busy:
        sys.exit(f"{conditions.busy}: run it again with nothing beside it")


if __name__ == "__main__":
    main()
