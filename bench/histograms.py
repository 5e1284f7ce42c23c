"""The CPU that the latency histograms cost an append: `python -m bench.histograms [--rounds 6]`.

Each round starts two nodes of one core. One runs this source; the other runs a copy without the
histograms of an append: HTTP, commit and journal write. Slices of appends alternate between the two, so
that other work of the machine meets both. A figure is the CPU of a node by append. The result is the
median of the rounds' ratios; the goal is 1.01.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import polynya

CONNECTIONS = 32
BODY = b"x" * 100
START_SECONDS = 60.0
# by file: what is taken out of the copy, and what takes its place
WITHOUT = {
    "front/http/routes/append_request.py": (
        ("        self.since = perf_counter()\n", ""),
        (
            "        seconds, histogram = perf_counter() - self.since, context.counters.append_seconds\n"
            "        histogram.counts[bisect_left(BOUNDS, seconds)] += 1  # `observe`, without a call\n"
            "        histogram.total += seconds\n",
            "        seconds, histogram = 0.0, context.counters.append_seconds\n",
        ),
    ),
    "engine/standalone.py": (
        (
            "                    seconds, commits = self._loop.time() - since, counters.commits\n"
            "                    commits.counts[bisect_left(BOUNDS, seconds)] += 1\n"
            "                    commits.total += seconds\n",
            "                    seconds, commits = 0.0, counters.commits\n",
        ),
    ),
    "system/disk_pace.py": (("            self.writes.observe(taken)\n", ""),),
}


def without_histograms(folder: Path) -> Path:
    """Return a copy of the package's source in which an append has no histograms."""
    source = Path(polynya.__file__).parent
    copy = folder / "polynya"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in WITHOUT.items():
        text = (copy / name).read_text("utf-8")
        for old, new in changes:
            if text.count(old) != 1:
                raise SystemExit(f"{name} has changed: adapt WITHOUT of bench/histograms.py")
            text = text.replace(old, new)
        (copy / name).write_text(text, "utf-8")
    return folder


class Node:
    """A node of one core of a source tree, with a connection and a stream for each writer."""

    def __init__(self, tree: Path, folder: Path) -> None:
        folder.mkdir()
        log = folder / "log"
        command = [
            sys.executable,
            "-m",
            "polynya",
            "serve",
            "--cores",
            "1",
            "--data",
            str(folder / "data"),
        ]
        addresses = ("--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0")
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*command, *addresses],
                env={**os.environ, "PYTHONPATH": str(tree)},
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        port = self._port(log)
        supervisor = psutil.Process(self._process.pid)
        self._processes = [supervisor, *supervisor.children(recursive=True)]
        self._selector = selectors.DefaultSelector()
        for number in range(CONNECTIONS):
            writer = socket.create_connection(("127.0.0.1", port))
            writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            writer.sendall(_request("PUT", number))
            _check(writer.recv(4096))
            self._selector.register(writer, selectors.EVENT_READ, _request("POST", number, BODY))

    def _port(self, log: Path) -> int:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            found = re.search(rb"listening on http://127\.0\.0\.1:(\d+)", log.read_bytes())
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise SystemExit(f"the node did not start:\n{log.read_text()}")

    def appends(self, count: int) -> float:
        """Append, one in flight for each connection. Return the node's CPU in seconds."""
        before = self._cpu()
        sent = done = 0
        for key in self._selector.get_map().values():
            key.fileobj.send(key.data)  # type: ignore[union-attr]
            sent += 1
        while done < sent:
            for key, _ in self._selector.select():
                _check(key.fileobj.recv(4096))  # type: ignore[union-attr]
                done += 1
                if sent < count:
                    key.fileobj.send(key.data)  # type: ignore[union-attr]
                    sent += 1
        return self._cpu() - before

    def _cpu(self) -> float:
        """Return the CPU seconds of all threads, counted in nanoseconds: `cpu_times` counts in
        hundredths of a second."""
        tasks = (
            task for each in self._processes for task in Path(f"/proc/{each.pid}/task").iterdir()
        )
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _request(method: str, number: int, body: bytes = b"") -> bytes:
    head = (
        f"{method} /v1/stream/s{number} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _check(answer: bytes) -> None:
    if not answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 201")):
        raise SystemExit(f"the node answered {answer[:200]!r}")


@contextlib.contextmanager
def pair(trees: dict[str, Path], folder: Path) -> Iterator[dict[str, Node]]:
    """Run a node of each tree at once until `with` ends, then remove their folders."""
    nodes: dict[str, Node] = {}
    folder.mkdir()
    try:
        for name, tree in trees.items():
            nodes[name] = Node(tree, folder / name)
        yield nodes
    finally:
        for node in nodes.values():
            node.close()
        shutil.rmtree(folder, ignore_errors=True)


def measured(nodes: dict[str, Node], appends: int, slices: int) -> dict[str, float]:
    """Return the microseconds of CPU of an append, by node. Every other slice begins with the other."""
    names = list(nodes)
    for node in nodes.values():
        node.appends(appends // slices)  # warms up
    used = dict.fromkeys(names, 0.0)
    for number in range(slices):
        for name in names if number % 2 == 0 else names[::-1]:
            used[name] += nodes[name].appends(appends // slices)
    return {name: seconds / (appends // slices * slices) * 1e6 for name, seconds in used.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--appends", type=int, default=80_000, help="of each node and round")
    parser.add_argument("--slices", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="histograms-") as folder:
        root = Path(folder)
        (root / "without").mkdir()
        here = Path(polynya.__file__).parent.parent
        trees = {"with": here, "without": without_histograms(root / "without")}
        ratios = []
        for number in range(options.rounds):
            order = dict(list(trees.items())[:: 1 if number % 2 == 0 else -1])
            with pair(order, root / f"round-{number}") as nodes:
                found = measured(nodes, options.appends, options.slices)
            ratios.append(found["with"] / found["without"])
            rounded = {name: round(value, 2) for name, value in found.items()} | {
                "ratio": round(ratios[-1], 4)
            }
            print(f"round {number + 1}: {json.dumps(rounded)}", flush=True)
    spread = f"{min(ratios):.4f} to {max(ratios):.4f}"
    print(f"ratio {statistics.median(ratios):.4f} ({spread}); load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
