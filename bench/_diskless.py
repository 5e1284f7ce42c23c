"""A cluster on a real S3 server for benchmarks of diskless streams, and requests to it."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench._nodes import Cluster
from polynya.cli.storage.s3_server import S3Location, running_s3

NODES = 3
INTERVAL = 0.25
CREATORS = 16


class Servers:
    """The cluster and its S3 server. Numbers so far."""

    def __init__(self, location: S3Location, cluster: Cluster) -> None:
        self.location, self.cluster = location, cluster
        self.ports = [cluster.port + 10 * number for number in range(NODES)]
        self._s3 = next(
            child for child in psutil.Process().children() if "weed" in child.cmdline()[0]
        )

    def diskless(self, name: str) -> float:
        return self.cluster.metric(f"polynya_diskless_{name}_total")

    def s3_cpu(self) -> float:
        return sum(self._s3.cpu_times()[:2])

    def between_nodes(self) -> dict[str, float]:
        """Sum the bytes that nodes sent to nodes, by kind."""
        found = {"payload": 0.0, "catalog": 0.0}
        for url in self.cluster.urls:
            text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
            for labels, value in re.findall(
                r"^polynya_zone_bytes_total{(.*)} (\S+)", text, re.MULTILINE
            ):
                found["payload" if "payload" in labels else "catalog"] += float(value)
        return found


@contextmanager
def running_servers(directory: str | None) -> Iterator[Servers]:
    """Run an S3 server, and a cluster that stores its objects there."""
    with (
        tempfile.TemporaryDirectory(dir=directory) as folder,
        running_s3(Path(folder) / "s3") as location,
    ):
        for key, value in location.settings.items():
            os.environ[f"POLYNYA_COLD_{key.upper()}"] = value
        with Cluster(directory=directory) as cluster:
            yield Servers(location, cluster)


async def create(port: int, names: Sequence[str]) -> None:
    """Create streams over a few connections to a node."""

    async def some(own: Sequence[str]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for name in own:
            writer.write(request("PUT", name, port, b""))
            assert await status_of(reader) in (200, 201)
        writer.close()

    await asyncio.gather(*(some(names[at::CREATORS]) for at in range(min(CREATORS, len(names)))))


def request(method: str, name: str, port: int, body: bytes) -> bytes:
    return (
        f"{method} /v1/stream/{name} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        "Content-Type: application/octet-stream\r\nStream-Profile: diskless\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def status_of(reader: asyncio.StreamReader) -> int:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length is not None:
        await reader.readexactly(int(length[1]))
    return int(head[9:12])


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
