"""Appends at full speed against a real server for minutes: do memory, descriptors, the journal or
the index grow? `python -m bench.memory [--minutes M]`."""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import cast

import httpx
import msgspec
import uvloop

PIPELINED = 32  # requests on their way on each connection
MIB = 1 << 20


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The append load."""

    streams: int = 500
    connections: int = 8
    record_bytes: int = 256


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The server at one moment, as its metrics and its folder say."""

    seconds: float
    appends: int  # acknowledged
    refused: int
    resident: int
    open_files: int
    journal: int  # bytes
    hot: int
    slices: int  # in all indexes
    flushed: int  # bytes
    merged: int  # bytes, written again
    packs: int
    objects: int  # files of the store, but for copies of states
    loop_lag_max: float


class Writer(asyncio.Protocol):
    """Keeps `PIPELINED` appends on their way on one connection, over all streams in turn."""

    def __init__(self, load: Load, first: int) -> None:
        self.taken = self.refused = 0
        self._load = load
        self._next = first
        self._rest = b""
        body = b"x" * load.record_bytes
        self._head = (
            " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self._send(PIPELINED)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        self._rest = data[-11:]  # a status line may come in two parts
        taken, refused = data.count(b"HTTP/1.1 204"), data.count(b"HTTP/1.1 503")
        self._rest = self._rest[self._rest.rfind(b"\n") + 1 :]
        self.taken += taken
        self.refused += refused
        if taken + refused:
            self._send(taken + refused)

    def _send(self, count: int) -> None:
        streams = self._load.streams
        self.transport.write(
            b"".join(
                b"POST /v1/stream/bench/s%d%b" % ((self._next + at) % streams, self._head)
                for at in range(count)
            )
        )
        self._next += count


@contextmanager
def server(data: Path, *flags: str) -> Iterator[tuple[str, str]]:
    """Run a node of one core until `with` ends; yield its public and its admin address."""
    command = [
        sys.executable,
        "-m",
        "polynya",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--data",
        str(data),
        "--cores",
        "1",
        *flags,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            for line in process.stdout:
                said += line
                urls = re.search(r"listening on (\S+)", said), re.search(r"admin on (\S+)", said)
                if urls[0] and urls[1]:
                    yield urls[0][1], urls[1][1]
                    break
            else:
                raise RuntimeError(f"the server ended:\n{said}")
        finally:
            process.terminate()
            process.communicate()


async def fill(
    load: Load, public: str, admin: str, data: Path, *, seconds: float, every: float
) -> list[Sample]:
    """Append for `seconds`; print a sample at each interval."""
    samples: list[Sample] = []
    loop = asyncio.get_running_loop()
    async with httpx.AsyncClient(timeout=60) as client:
        for number in range(load.streams):
            answer = await client.put(
                f"{public}/v1/stream/bench/s{number}",
                headers={"Content-Type": "application/octet-stream"},
            )
            answer.raise_for_status()
        url = httpx.URL(public)
        writers = []
        for number in range(load.connections):
            first = number * load.streams // load.connections
            _, writer = await loop.create_connection(
                partial(Writer, load, first), url.host, url.port or 0
            )
            writers.append(writer)
        began = monotonic()
        print(HEADING, flush=True)
        for tick in range(1, int(seconds / every) + 1):
            await asyncio.sleep(max(0.0, began + tick * every - monotonic()))
            text = (await client.get(f"{admin}/metrics")).text
            samples.append(_sample(text, writers, data, monotonic() - began))
            print(_row(samples), flush=True)
        for writer in writers:
            writer.transport.close()
    return samples


HEADING = (
    "| minute | appends/s | RSS MiB | hot MiB | fds | journal MiB | slices in the indexes | packs "
    "known | objects | written again | longest stall ms |"
)


def _sample(text: str, writers: list[Writer], data: Path, seconds: float) -> Sample:
    def metric(name: str) -> float:
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found, name
        return float(found[1])

    return Sample(
        seconds=seconds,
        appends=sum(writer.taken for writer in writers),
        refused=sum(writer.refused for writer in writers),
        resident=int(metric("polynya_process_resident_bytes")),
        open_files=int(metric("polynya_process_open_files")),
        journal=int(metric("polynya_journal_disk_bytes")),
        hot=int(metric("polynya_hot_bytes")),
        slices=int(metric("polynya_index_slices")),
        flushed=int(metric("polynya_flush_bytes_total")),
        merged=int(metric("polynya_merge_bytes_total")),
        packs=int(metric("polynya_packs")),
        objects=sum(
            path.is_file() and "copies" not in path.parts for path in (data / "objects").rglob("*")
        ),
        loop_lag_max=metric("polynya_loop_lag_max_seconds"),
    )


def _row(samples: list[Sample]) -> str:
    now = samples[-1]
    appends, seconds = (samples[-2].appends, samples[-2].seconds) if len(samples) > 1 else (0, 0.0)
    cells = (
        f"{now.seconds / 60:.1f}",
        f"{(now.appends - appends) / (now.seconds - seconds):,.0f}",
        f"{now.resident / MIB:.0f}",
        f"{now.hot / MIB:.0f}",
        f"{now.open_files}",
        f"{now.journal / MIB:.0f}",
        f"{now.slices:,}",
        f"{now.packs}",
        f"{now.objects}",
        f"{now.merged / max(now.flushed, 1):.2f}",
        f"{now.loop_lag_max * 1e3:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two rows")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument(
        "--folder", type=Path, help="where data goes; a temporary folder by default"
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        with (
            server(folder) as (public, admin),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            load = Load(streams=options.streams)
            runner.run(
                fill(load, public, admin, folder, seconds=options.minutes * 60, every=options.every)
            )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
