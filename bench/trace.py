"""Trace single requests through a node: calls, files and changes of rooms. `python -m bench.trace
[--calls] [--json | --save]`.

Counts the Python calls of this package between the arrival of the request's bytes and the answer,
on the core's loop thread, and takes the least of some repeats: a timer may fall between. A *first*
append is parsed in full; a *learned* one has the same head as the append before it on its
connection. A coroutine that goes on counts as a call. A Kafka Produce has one batch of one record
of an idempotent producer, acks=-1. A Fetch is of one partition; one that *wakes* came before its
record, and counts what it adds to the Produce of that record. Calls of comprehensions are left out.
`--save` writes bench/trace_counts.json."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
import uvloop

import polynya
from bench import _kafka_requests as kafka
from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.engine.log_clock import LogClock
from polynya.engine.storage import open_storage
from polynya.front.http.connection import Connection
from polynya.front.http.server import HttpFront
from polynya.front.kafka.connection import Connection as KafkaConnection
from polynya.front.kafka.server import KafkaFront
from polynya.service.assembly import CoreRuntime, Shape

PACKAGE = str(Path(polynya.__file__).parent) + "/"
COUNTS = Path(__file__).with_name("trace_counts.json")
REPEATS = 12
PAUSE = 0.01  # seconds, until what a request leaves behind is done
HEAD = (
    "{} /v1/stream/traced HTTP/1.1\r\nhost: 127.0.0.1:4437\r\ncontent-type: "
    "application/octet-stream\r\ncontent-length: {}\r\n{}\r\n"
)


class Counts(msgspec.Struct, frozen=True):
    """Calls, files and rooms that one request passes through."""

    calls: int
    files: int
    rooms: int
    room_changes: int

    def summary(self) -> str:
        return (
            f"{self.calls:3} calls {self.files:3} files {self.rooms:3} rooms "
            f"{self.room_changes:3} room changes"
        )


class Wire(asyncio.Transport):
    """The client's side: takes answers, and tells when one has come."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.answer = b""  # the last one that was taken

    def write(self, data: Any) -> None:
        self.answers.put_nowait(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None:
        raise AssertionError("a request at a time needs no pause")

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Take any limit: nothing is held."""

    def close(self) -> None:
        """Leave the end to the caller."""

    def abort(self) -> None:
        raise AssertionError("the node gave the connection up")


class Trace:
    """Calls in order, as `file:function`, while it is entered."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        code: CodeType = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(PACKAGE)
            and not code.co_name.startswith("<")
        ):
            self.calls.append(f"{code.co_filename[len(PACKAGE) :]}:{code.co_qualname}")

    def counts(self) -> Counts:
        files, rooms = {*map(_file, self.calls)}, {*map(_room, self.calls)}
        return Counts(len(self.calls), len(files), len(rooms), _changes(self.calls))


def _file(call: str) -> str:
    return call.partition(":")[0]


def _room(call: str) -> str:
    return _file(call).rpartition("/")[0]


def _changes(calls: list[str]) -> int:
    return sum(_room(one) != _room(other) for one, other in pairwise(calls))


class Traced(msgspec.Struct):
    """A request with the smallest of its traces and the counts."""

    name: str
    trace: Trace
    counts: Counts

    @classmethod
    def of(cls, name: str, traces: list[Trace]) -> Traced:
        trace = _least(traces)
        return cls(name, trace, trace.counts())


def without(both: Trace, produce: Trace, fetch: Trace) -> Counts:
    """Count a Fetch that a Produce woke: what both took, less the Produce alone. Files and rooms
    are those of an answer at once, and those that neither uses."""
    files = ({*map(_file, both.calls)} - {*map(_file, produce.calls)}) | {*map(_file, fetch.calls)}
    return Counts(
        len(both.calls) - len(produce.calls),
        len(files),
        len({file.rpartition("/")[0] for file in files}),
        _changes(both.calls) - _changes(produce.calls),
    )


def _least(traces: list[Trace]) -> Trace:
    return min(traces, key=lambda trace: len(trace.calls))


async def traced(folder: Path) -> list[Traced]:
    """Trace the requests of HTTP and of Kafka on one node."""
    storage = open_storage(folder / "core-0", core=0, cores=1, groups=16)
    clock = LogClock(storage.log_ms, loop=asyncio.get_running_loop())
    shape = Shape(core=0, cores=1, groups=16, history=1, hot_bytes_max=HOT_BYTES_PER_GROUP)
    runtime = CoreRuntime(
        storage, shape, now_ms=clock.now_ms, transport=None, fatal=lambda error: None
    )
    found = await _http(runtime) + await _kafka(runtime)
    await runtime.core.drain()
    runtime.close()
    return found


async def _http(runtime: CoreRuntime) -> list[Traced]:
    wire = Wire()
    connection = Connection(HttpFront(runtime.service).context)
    connection.connection_made(wire)
    found: dict[str, list[Trace]] = {}
    for name, request in _requests():
        trace = await _ask(connection, wire, request)
        found.setdefault(name, []).append(trace)
        answer = wire.answer
        assert answer.startswith(b"HTTP/1.1 2"), answer
    connection.connection_lost(None)
    return [Traced.of(name, traces) for name, traces in found.items() if name != "create"]


def _feed(connection: Any, data: bytes) -> None:
    """Hand bytes to a protocol, into its own buffer if it has one."""
    if not isinstance(connection, asyncio.BufferedProtocol):
        connection.data_received(data)
        return
    while data:
        room = memoryview(connection.get_buffer(len(data)))
        count = min(len(data), len(room))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


async def _ask(connection: Any, wire: Wire, request: bytes) -> Trace:
    with Trace() as trace:
        _feed(connection, request)
        wire.answer = await wire.answers.get()
    await asyncio.sleep(PAUSE)
    return trace


def _requests() -> Iterator[tuple[str, bytes]]:
    yield "create", HEAD.format("PUT", 0, "").encode()
    names = ("first append", "second append", *["learned append"] * REPEATS)
    for sequence, name in enumerate(names):
        producer = f"producer-id: p\r\nproducer-epoch: 0\r\nproducer-seq: {sequence}\r\n"
        yield name, HEAD.format("POST", 256, producer).encode() + b"x" * 256
    for _ in range(REPEATS):
        yield "read", b"GET /v1/stream/traced?offset=-1 HTTP/1.1\r\nhost: 127.0.0.1:4437\r\n\r\n"


async def _kafka(runtime: CoreRuntime) -> list[Traced]:
    front = KafkaFront(
        runtime.service,
        kafka.OneBroker(),
        runtime.group_coordinator,
        runtime.kafka_transactions,
        new_id=kafka.new_id,
    )
    await front.start([])
    await front.context.topics.create(kafka.TOPIC, 1, [])
    (writer, written), (reader, received) = _connected(front), _connected(front)
    await _ask(writer, written, kafka.init_producer_id())
    producer = kafka.read_response("InitProducerId", written.answer).producer_id
    produces, fetches, wakes = [], [], []
    for offset in range(REPEATS):
        produces.append(await _ask(writer, written, kafka.produce(producer, offset)))
        _check("Produce", written.answer)
        fetches.append(await _ask(reader, received, kafka.fetch(offset)))
        _check("Fetch", received.answer)
    for offset in range(REPEATS, 2 * REPEATS):
        asked, waking = kafka.fetch(offset), kafka.produce(producer, offset)
        wakes.append(await _woken(reader, asked, writer, waking))
        await asyncio.gather(received.answers.get(), written.answers.get())
    for connection in (writer, reader):
        connection.connection_lost(None)
    await front.stop(1.0)
    both = _least(wakes)
    return [
        produce := Traced.of("Kafka Produce", produces),
        fetch := Traced.of("Kafka Fetch", fetches),
        Traced("Kafka Fetch, wakes", both, without(both, produce.trace, fetch.trace)),
    ]


async def _woken(reader: Any, fetch: bytes, writer: Any, produce: bytes) -> Trace:
    """Trace a Fetch until it waits, and the Produce that wakes it until both are answered."""
    with Trace() as trace:
        _feed(reader, fetch)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.sleep(PAUSE)
    with trace:
        _feed(writer, produce)
        while not (
            reader.responses.transport.answers.qsize()
            and writer.responses.transport.answers.qsize()
        ):
            await asyncio.sleep(0)
    await asyncio.sleep(PAUSE)
    return trace


def _connected(front: KafkaFront) -> tuple[KafkaConnection, Wire]:
    connection, wire = KafkaConnection(front.connections), Wire()
    connection.connection_made(wire)
    return connection, wire


def _check(name: str, frame: bytes) -> None:
    (topic,) = kafka.read_response(name, frame).responses
    (partition,) = getattr(topic, "partition_responses", None) or topic.partitions
    assert partition.error_code.value == 0, partition


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="print each call, too")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--save", action="store_true", help=f"write the counts to {COUNTS.name}")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        found = runner.run(traced(Path(folder)))
    text = json.dumps({each.name: msgspec.to_builtins(each.counts) for each in found}, indent=1)
    if options.save:
        COUNTS.write_text(text + "\n")
    if options.json:
        print(text)
        return
    for each in found:
        print(f"{each.name:18} {each.counts.summary()}")
        if options.calls:
            print(*(f"    {call}" for call in each.trace.calls), sep="\n")


if __name__ == "__main__":
    main()
