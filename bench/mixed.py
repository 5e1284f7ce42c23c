"""A mixed load on three nodes: writers at a fixed rate, readers that catch up, subscribers that
follow. `python -m bench.mixed [--seconds N]`.

Open loop: a writer sends when its time has come, answered or not, and latency counts from that
time. Writer N appends to its own stream; subscribers follow the writers' streams by server-sent
events; readers read streams of 4 MiB from their start, page by page, again and again, with a
pause after each. All are spread over the three nodes. Numbers as JSON on the last line."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
import urllib.request
from collections import deque
from typing import cast

import uvloop

from bench import _results
from bench._nodes import Cluster, machine

STAMP = re.compile(rb"(\d{20})x")
READ_MIB = 4


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


class Writer(asyncio.Protocol):
    """One connection, appends pipelined on it."""

    def __init__(self, name: str, payload_bytes: int) -> None:
        self._head = (
            f"POST /v1/stream/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {payload_bytes}\r\n\r\n"
        ).encode()
        self._filling = b"x" * (payload_bytes - 20)
        self._starts: deque[int] = deque()
        self._rest = b""
        self.latencies_ms: list[float] = []
        self.failed = self.sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def append(self, intended_ns: int) -> None:
        self._starts.append(intended_ns)
        self.sent += 1
        self._transport.write(self._head + b"%020d" % intended_ns + self._filling)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        now = time.monotonic_ns()
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].lower()
            length = re.search(rb"content-length: (\d+)", head)
            end += 4 + (int(length[1]) if length else 0)
            if len(data) < end:
                break
            data = data[end:]
            begun = self._starts.popleft()
            if head[9:10] == b"2":
                self.latencies_ms.append((now - begun) / 1e6)
            else:
                self.failed += 1
        self._rest = data


class Subscriber(asyncio.Protocol):
    """Follows one stream, and sees how old the records are that come."""

    def __init__(self, name: str) -> None:
        self._request = (
            f"GET /v1/stream/{name}?offset=-1&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        self._rest = b""
        self.latencies_ms: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        now = time.monotonic_ns()
        end = 0
        for found in STAMP.finditer(data):
            self.latencies_ms.append((now - int(found[1])) / 1e6)
            end = found.end()
        self._rest = data[end:][-40:]


async def read_on(host: tuple[str, int], name: str, pause: float, read: list[int]) -> None:
    """Read one stream page by page from its start, without end."""
    reader, writer = await asyncio.open_connection(*host)
    offset = "-1"
    while True:
        writer.write(
            f"GET /v1/stream/{name}?offset={offset} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        read[0] += len(await reader.readexactly(size)) if size else 0
        following = re.search(r"stream-next-offset: (\S+)", head)
        ended = "stream-up-to-date: true" in head or following is None
        offset = "-1" if ended or following is None else following[1]
        if ended:
            await asyncio.sleep(pause)


def put(
    url: str, name: str, body: bytes = b"", kind: str = "text/plain", method: str = "PUT"
) -> None:
    request = urllib.request.Request(
        f"{url}/v1/stream/{name}", method=method, data=body, headers={"Content-Type": kind}
    )
    urllib.request.urlopen(request, timeout=30).close()


def prepare(cluster: Cluster, arguments: argparse.Namespace) -> None:
    for number in range(arguments.writers):
        put(cluster.urls[0], f"mixed/w{number}")
    for number in range(arguments.readers):
        put(cluster.urls[0], f"mixed/r{number}", kind="application/octet-stream")
        for _ in range(READ_MIB * 4):
            put(
                cluster.urls[0],
                f"mixed/r{number}",
                b"y" * (256 * 1024),
                "application/octet-stream",
                "POST",
            )


async def load(cluster: Cluster, arguments: argparse.Namespace) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    hosts = [("127.0.0.1", cluster.port + 10 * number) for number in range(3)]
    writers = [Writer(f"mixed/w{number}", arguments.payload) for number in range(arguments.writers)]
    subscribers = [
        Subscriber(f"mixed/w{number % arguments.writers}")
        for number in range(arguments.subscribers)
    ]
    for number, protocol in enumerate([*subscribers, *writers]):
        await loop.create_connection(lambda protocol=protocol: protocol, *hosts[number % 3])  # type: ignore[misc]
    read = [0]
    tasks = [
        loop.create_task(read_on(hosts[number % 3], f"mixed/r{number}", arguments.pause, read))
        for number in range(arguments.readers)
    ]
    await asyncio.sleep(1)
    cpu, begin = sum(cluster.cpu()), time.monotonic()
    await asyncio.gather(
        *(write_on(writer, number, arguments) for number, writer in enumerate(writers))
    )
    elapsed = time.monotonic() - begin
    used = sum(cluster.cpu()) - cpu
    await asyncio.sleep(2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for number, protocol in enumerate(writers):
        assert protocol.sent, number
    return figures(writers, subscribers, (elapsed, used, read[0] / 2**20))


async def write_on(writer: Writer, number: int, arguments: argparse.Namespace) -> None:
    """Append at this writer's due times, staggered against the others'."""
    step = 10**9 // arguments.rate
    due = time.monotonic_ns() + step * number // arguments.writers
    for _ in range(arguments.rate * arguments.seconds):
        await asyncio.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        writer.append(due)
        due += step


def figures(
    writers: list[Writer], subscribers: list[Subscriber], whole: tuple[float, float, float]
) -> dict[str, float]:
    elapsed, used, read_mib = whole
    written = [value for writer in writers for value in writer.latencies_ms]
    seen = [value for subscriber in subscribers for value in subscriber.latencies_ms]
    wanted = sum(
        len(writers[number % len(writers)].latencies_ms) for number in range(len(subscribers))
    )
    return {
        "writes_per_second": round(len(written) / elapsed, 1),
        "writes_failed": sum(writer.failed for writer in writers),
        "writes_unanswered": sum(writer.sent for writer in writers)
        - len(written)
        - sum(writer.failed for writer in writers),
        "write_p50_ms": round(percentile(written, 0.5), 2),
        "write_p99_ms": round(percentile(written, 0.99), 2),
        "delivery_p50_ms": round(percentile(seen, 0.5), 2),
        "delivery_p99_ms": round(percentile(seen, 0.99), 2),
        "deliveries_missing": wanted - len(seen),
        "read_mib_per_second": round(read_mib / elapsed, 1),
        "server_cpu_percent": round(used / elapsed * 100, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--rate", type=int, default=60, help="appends a second of each writer")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.5,
        help="seconds of a reader between two times that it reads all",
    )
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--payload", type=int, default=256)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    runs = []
    for _ in range(arguments.rounds):
        with Cluster(directory=arguments.directory) as cluster:
            prepare(cluster, arguments)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runs.append(runner.run(load(cluster, arguments)))
    print(
        "| | "
        + " | ".join(f"run {number + 1}" for number in range(len(runs)))
        + " |\n|---|"
        + "---|" * len(runs)
    )
    for key in runs[0]:
        print(f"| {key} | " + " | ".join(f"{run[key]:,}" for run in runs) + " |")
    print(json.dumps(runs))
    if arguments.save:
        _results.save("mixed", {"polynya": runs})


if __name__ == "__main__":
    main()
