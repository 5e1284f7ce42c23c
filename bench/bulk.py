"""Bulk appends of 64 KiB and catch-up reads beside peers: MiB/s, latency, and server CPU per MiB.

    python -m bench.bulk --rounds 3
    python -m bench.bulk --nodes 3 --servers polynya --rounds 3

Each of 16 connections appends to a stream of its own, one append under way, until `--mib` are
acknowledged; then each reads its stream from the start, again and again. The CPU is that of all
server processes, from the first append until they are idle again, so that work that is put off
counts. `faults` are minor page faults. Every run has a fresh server and fresh data.

Peers are found as `bench.compare` says; one that is missing is skipped by name. `--tree
NAME=FOLDER` adds a server of another checkout, in the same virtual environment.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from bench import _results
from bench._nodes import Cluster, machine
from bench._rounds import Figures, in_turn, table
from bench.compare import command, stop, wait_ready
from chaos.ports import keep_row

MIB = 2**20
CONNECTIONS = 16
PAGE_BYTES = 8 * MIB
IDLE_SHARE, IDLE_SECONDS_MAX = 0.05, 20.0


class Servers(NamedTuple):
    """The servers under load: the target of appends and the serving processes."""

    port: int
    processes: list[psutil.Process]

    def cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def faults(self) -> int:
        """Count the minor page faults so far."""
        return sum(
            int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[7])
            for process in self.processes
        )

    def rss(self) -> float:
        return sum(process.memory_info().rss for process in self.processes) / MIB

    def settle(self) -> None:
        """Wait until the processes are idle and have completed deferred work."""
        deadline = time.monotonic() + IDLE_SECONDS_MAX
        before = self.cpu()
        while time.monotonic() < deadline:
            time.sleep(1.0)
            now = self.cpu()
            if now - before < IDLE_SHARE:
                return
            before = now


def lasting(parent: psutil.Process) -> list[psutil.Process]:
    """Return a process and its children, without those that only helped it to start."""
    found = [parent, *parent.children(recursive=True)]
    time.sleep(1.0)
    return [process for process in found if process.is_running()]


@contextmanager
def serving(
    line: list[str], port: int, folder: Path, extra: dict[str, str], cwd: str | None = None
) -> Iterator[Servers]:
    """Run a server by its command line, with `extra` variables. Its folder, which has its log, is
    removed at the end."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            line, env={**os.environ, **extra}, stdout=log, stderr=log, cwd=cwd
        )
        try:
            wait_ready(port, process)
            yield Servers(port, lasting(psutil.Process(process.pid)))
        finally:
            stop(process)
            shutil.rmtree(folder, ignore_errors=True)


def missing(server: str) -> str:
    """Return why a peer cannot be started here, or nothing."""
    if server.startswith("rust-") and shutil.which("durable-streams-server") is None:
        return "durable-streams-server is not in PATH"
    if server == "node-memory" and not (shutil.which("node") and "BENCH_NODE_FOLDER" in os.environ):
        return "there is no node in PATH, or BENCH_NODE_FOLDER is not set"
    return ""


@contextmanager
def one_node(server: str, arguments: argparse.Namespace) -> Iterator[Servers]:
    """Start one server with fresh data."""
    folder = Path(tempfile.mkdtemp(prefix="bench-bulk-", dir=arguments.directory))
    (folder / "data").mkdir()
    port = keep_row(2)
    tree = arguments.trees.get(server)
    line, extra = command("polynya" if tree else server, port, folder / "data")
    if tree:
        extra = {"PYTHONPATH": str(Path(tree).absolute() / "src")}
    with serving(line, port, folder, extra, cwd=tree or None) as servers:
        yield servers


@contextmanager
def three_nodes(server: str, arguments: argparse.Namespace) -> Iterator[Servers]:
    """Start a cluster of three; appends go to the first node."""
    if server != "polynya":
        sys.exit(f"{server} runs on one node here; only polynya runs on three")
    with Cluster(directory=arguments.directory) as cluster:
        yield Servers(cluster.port, [process for node in cluster.nodes for process in node])


class Client(threading.Thread):
    """One connection and its stream. A thread is enough: the system calls release the lock."""

    def __init__(self, port: int, number: int, work: Callable[[Client], None]) -> None:
        super().__init__(daemon=True)
        self.path = f"/v1/stream/bulk-{number}"
        self.seconds: list[float] = []
        self.refused = 0
        self.received = 0
        self.fault: BaseException | None = None
        self._port = port
        self._work = work

    def run(self) -> None:
        try:
            self._work(self)
        except BaseException as fault:  # noqa: BLE001 (told by `together`)
            self.fault = fault

    def create(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("PUT", self.path, headers={"Content-Type": "application/octet-stream"})
        connection.getresponse().read()
        connection.close()

    def append(self, size: int, count: int) -> None:
        """Append `count` payloads, one after the other is acknowledged."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n"
        )
        request = head.encode() + os.urandom(size)
        with self._connect() as link:
            done = 0
            while done < count:
                begin = time.monotonic()
                link.sendall(request)
                answer = _answer_head(link)[0]
                if answer.startswith(b"HTTP/1.1 2"):
                    self.seconds.append(time.monotonic() - begin)
                    done += 1
                else:
                    self.refused += 1
                    time.sleep(0.05)

    def read(self, until: float) -> None:
        """Read the stream from start to end, repeatedly until the time is over."""
        room = memoryview(bytearray(MIB))
        with self._connect() as link:
            offset = "-1"
            while time.monotonic() < until:
                target = f"{self.path}?offset={offset}&max_bytes={PAGE_BYTES}"
                link.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                head, rest = _answer_head(link)
                if not head.startswith(b"HTTP/1.1 200"):
                    self.refused += 1
                    time.sleep(0.05)
                    continue
                fields = _fields(head)
                size = _drain(link, fields, rest, room)
                self.received += size
                following = fields.get(b"stream-next-offset", b"-1").decode()
                ended = size == 0 or following == offset or b"stream-up-to-date" in fields
                offset = "-1" if ended else following

    def _connect(self) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self._port), timeout=60)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return link


def _answer_head(link: socket.socket) -> tuple[bytes, bytes]:
    """Return the head of a response and the bytes behind it."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        more = link.recv(65536)
        if not more:
            raise ConnectionError("the server closed the connection inside an answer")
        data += more
    return data[:end], data[end + 4 :]


def _fields(head: bytes) -> dict[bytes, bytes]:
    return {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }


def _drain(link: socket.socket, fields: dict[bytes, bytes], rest: bytes, room: memoryview) -> int:
    """Read a body to its end and return its bytes; those of a chunked one have its frames."""
    size = len(rest)
    if b"content-length" in fields:
        length = int(fields[b"content-length"])
        while size < length:
            size += _into(link, room[: length - size])
        return length
    last = rest[-5:]
    while not last.endswith(b"0\r\n\r\n"):
        count = _into(link, room)
        last = (last + bytes(room[max(0, count - 5) : count]))[-5:]
        size += count
    return size - 5


def _into(link: socket.socket, room: memoryview) -> int:
    count = link.recv_into(room)
    if not count:
        raise ConnectionError("the server closed the connection inside a body")
    return count


def together(port: int, work: Callable[[Client], None]) -> tuple[list[Client], float]:
    """Run one client for each connection, and return them and the seconds that they took."""
    clients = [Client(port, number, work) for number in range(CONNECTIONS)]
    begin = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    faults = [client.fault for client in clients if client.fault is not None]
    if faults:
        raise faults[0]
    return clients, time.monotonic() - begin


def run_once(server: str, arguments: argparse.Namespace) -> Figures:
    """Run one fresh server under one load and return its figures."""
    start = one_node if arguments.nodes == 1 else three_nodes
    with start(server, arguments) as servers:
        together(servers.port, Client.create)
        count = arguments.mib * MIB // arguments.size // CONNECTIONS
        servers.settle()
        cpu, faults = servers.cpu(), servers.faults()
        clients, took = together(servers.port, lambda client: client.append(arguments.size, count))
        servers.settle()
        mib = count * arguments.size * CONNECTIONS / MIB
        seconds = sorted(second for client in clients for second in client.seconds)
        figures = {
            "mib_per_second": mib / took,
            "p50_ms": statistics.median(seconds) * 1000,
            "p99_ms": seconds[len(seconds) * 99 // 100] * 1000,
            "cpu_ms_per_mib": (servers.cpu() - cpu) * 1000 / mib,
            "faults_per_mib": (servers.faults() - faults) / mib,
            "refused": float(sum(client.refused for client in clients)),
        }
        if arguments.read_seconds:
            figures |= read_figures(servers, arguments.read_seconds)
        return figures | {"rss_mib": servers.rss()}


def read_figures(servers: Servers, wanted: float) -> Figures:
    """Read all streams for some seconds."""
    cpu, until = servers.cpu(), time.monotonic() + wanted
    clients, took = together(servers.port, lambda client: client.read(until))
    mib = sum(client.received for client in clients) / MIB
    return {
        "read_mib_per_second": mib / took,
        "read_cpu_ms_per_mib": (servers.cpu() - cpu) * 1000 / max(mib, 1e-9),
        "read_refused": float(sum(client.refused for client in clients)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="polynya,rust-wal,node-memory")
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--nodes", type=int, choices=[1, 3], default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=768, help="appended by all connections")
    parser.add_argument("--size", type=int, default=64 * 1024, help="bytes of an append")
    parser.add_argument("--read-seconds", type=float, default=3.0, help="0: no reads")
    parser.add_argument("--directory", help="where the servers keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    arguments.trees = dict(each.split("=", 1) for each in arguments.tree)
    wanted = [*filter(None, arguments.servers.split(",")), *arguments.trees]
    for server in wanted:
        if why := missing(server):
            print(f"skipped {server}: {why}", file=sys.stderr)
    print(machine())
    runs = in_turn(
        [server for server in wanted if not missing(server)],
        arguments.rounds,
        lambda server: run_once(server, arguments),
    )
    print(table("server", runs))
    print(json.dumps(runs))
    if arguments.save:
        _results.save("bulk" if arguments.nodes == 1 else "bulk_three", runs)


if __name__ == "__main__":
    main()
