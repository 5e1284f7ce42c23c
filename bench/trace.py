"""Trace one append and one read through a node: rooms, files and calls. `python -m bench.trace
[--calls]`.

Counts the Python calls of this package between the arrival of the request's bytes and the answer,
on the core's loop thread. A *first* append is parsed in full; a *learned* one has the same head as
the append before it on its connection. Calls of comprehensions are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop

import polynya
from polynya.base.limits import HOT_BYTES_PER_GROUP
from polynya.engine.log_clock import LogClock, once_per_pass
from polynya.engine.storage import open_storage
from polynya.front.http.connection import Connection
from polynya.front.http.server import HttpFront
from polynya.service.assembly import CoreRuntime, Shape

PACKAGE = str(Path(polynya.__file__).parent) + "/"
HEAD = (
    "{} /v1/stream/traced HTTP/1.1\r\nhost: 127.0.0.1:4437\r\ncontent-type: "
    "application/octet-stream\r\ncontent-length: {}\r\n{}\r\n"
)


class Wire(asyncio.Transport):
    """The client's side: takes answers, and tells when one has come."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()

    def write(self, data: Any) -> None:
        self.answers.put_nowait(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return False


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

    def summary(self) -> str:
        files = {call.partition(":")[0] for call in self.calls}
        rooms = {file.rpartition("/")[0] for file in files}
        return f"{len(rooms):3} rooms {len(files):3} files {len(self.calls):3} calls"


async def traced(folder: Path) -> list[tuple[str, Trace]]:
    """A create that is not traced, then the traced requests."""
    storage = open_storage(folder / "core-0", core=0, cores=1, groups=16)
    clock = LogClock(storage.log_ms)
    shape = Shape(core=0, cores=1, groups=16, history=1, hot_bytes_max=HOT_BYTES_PER_GROUP)
    now_ms = once_per_pass(clock.now_ms, asyncio.get_running_loop())
    runtime = CoreRuntime(storage, shape, now_ms=now_ms, transport=None, fatal=lambda error: None)
    wire = Wire()
    connection = Connection(HttpFront(runtime.service))
    connection.connection_made(wire)
    found = []
    for name, request in _requests():
        with Trace() as trace:
            connection.data_received(request)
            answer = await wire.answers.get()
        assert answer.startswith(b"HTTP/1.1 2"), answer
        await asyncio.sleep(0.01)
        found.append((name, trace))
    connection.connection_lost(None)
    await runtime.core.drain()
    runtime.close()
    return found


def _requests() -> Iterator[tuple[str, bytes]]:
    yield "create", HEAD.format("PUT", 0, "").encode()
    for name, sequence in (("first append", 0), ("second append", 1), ("learned append", 2)):
        producer = f"producer-id: p\r\nproducer-epoch: 0\r\nproducer-seq: {sequence}\r\n"
        yield name, HEAD.format("POST", 256, producer).encode() + b"x" * 256
    yield "read", b"GET /v1/stream/traced?offset=-1 HTTP/1.1\r\nhost: 127.0.0.1:4437\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", action="store_true", help="print each call, too")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        for name, trace in runner.run(traced(Path(folder))):
            print(f"{name:15} {trace.summary()}")
            if options.calls:
                print(*(f"    {call}" for call in trace.calls), sep="\n")


if __name__ == "__main__":
    main()
