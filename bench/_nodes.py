"""A benchmark cluster of three on this machine: start, stop, and the CPU and memory of its
processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from chaos.ports import hold_row

START_SECONDS = 180.0
ROW = 30  # ports of three nodes


class ThreeNodes:
    """A cluster of three nodes, in a directory of its own, with ports from `port` on. A context
    manager."""

    nodes: list[list[psutil.Process]]

    def __init__(self, prefix: str, directory: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=directory))
        self.port, self._held = hold_row(ROW)
        self._log = open(self.folder / "log", "wb")  # noqa: SIM115 (closed with the processes)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.port + 10 * number}" for number in range(3)]

    def cpu(self) -> list[float]:
        """Return the CPU seconds of each node so far, a supervisor included."""
        return cpu_of(self.nodes)

    def memory(self) -> float:
        """Return the memory of all nodes in MiB: each process's own pages and its share of shared
        ones."""
        return (
            sum(process.memory_full_info().pss for node in self.nodes for process in node) / 2**20
        )

    def close(self) -> None:
        self._end()
        for held in self._held:
            held.close()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        """End all processes; they are gone when this returns."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cluster(ThreeNodes):
    """`polynya cluster dev --cores 1` in a folder of its own, started by the command `tracer` if
    there is one."""

    def __init__(
        self, *flags: str, directory: str | None = None, tracer: Sequence[str] = ()
    ) -> None:
        super().__init__("bench-cluster-", directory)
        self._tracer = tracer
        command = [
            *tracer,
            sys.executable,
            "-m",
            "polynya",
            "cluster",
            "dev",
            "--cores",
            "1",
            "--listen",
            f"127.0.0.1:{self.port}",
            *flags,
        ]
        self._process = subprocess.Popen(
            [*command, "--data", str(self.folder / "data")],
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        supervisors = [
            _pid((self.folder / "data" / f"node-{number}" / "node.pid").read_text())
            for number in (1, 2, 3)
        ]
        self.nodes = [
            [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            for pid in supervisors
        ]

    def metric(self, name: str) -> float:
        """Sum a metric over all nodes and labels."""
        total = 0.0
        for url in self.urls:
            text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
            total += sum(
                float(value)
                for value in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE)
            )
        return total

    def _end(self) -> None:
        if self._process.poll() is None:
            for process in [
                *psutil.Process(self._process.pid).children()[: len(self._tracer)],
                self._process,
            ]:
                process.send_signal(signal.SIGINT)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while b"Ctrl-C" not in (said := (self.folder / "log").read_bytes()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the cluster did not come up:\n{said.decode(errors='replace')}")
            time.sleep(0.2)


URSULA = """
[server]
listen = "127.0.0.1:{port}"
admin_listen = "127.0.0.1:{admin}"
cluster_id = "bench3"
[runtime]
core_count = 1
cpu_affinity = false
[raft]
node_id = {node}
group_count = 16
[raft.wal]
path = "u{node}"
fsync = "always"
min_available_size = "0"
lease = "10s"
"""


class Ursula(ThreeNodes):
    """Three nodes of Ursula 0.11.5 that fsync (`cargo install ursula --locked` with
    RUSTC_BOOTSTRAP=1; found in PATH)."""

    def __init__(self, directory: str | None = None) -> None:
        super().__init__("bench-ursula-", directory)
        peers = "".join(
            f"[[raft.peers]]\nnode_id = {node}\nurl = "
            f'"http://127.0.0.1:{self.port + 10 * node - 10}"\n'
            for node in (1, 2, 3)
        )
        self._processes = []
        for node in (1, 2, 3):
            port = self.port + 10 * node - 10
            config = self.folder / f"n{node}.toml"
            config.write_text(URSULA.format(port=port, admin=port + 1, node=node) + peers)
            command = ["ursula", "server", "--config", str(config)]
            environment = {**os.environ, "RUST_LOG": "warn", "TOKIO_WORKER_THREADS": "2"}
            self._processes.append(
                subprocess.Popen(
                    command, cwd=self.folder, stdout=self._log, stderr=self._log, env=environment
                )
            )
        self.nodes = [[psutil.Process(process.pid)] for process in self._processes]
        self._wait()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        for url in self.urls:
            while True:
                try:
                    urllib.request.urlopen(f"{url}/__ursula/ready", timeout=2).close()
                    break
                except OSError:
                    if time.monotonic() > deadline or any(
                        process.poll() is not None for process in self._processes
                    ):
                        said = (self.folder / "log").read_bytes().decode(errors="replace")[-2000:]
                        self.close()
                        sys.exit(f"Ursula did not come up:\n{said}")
                    time.sleep(0.3)


class Floor(ThreeNodes):
    """The minimal cost of three nodes (`bench._floor`), with the cores' scheduling."""

    def __init__(self, directory: str | None = None) -> None:
        super().__init__("bench-floor-", directory)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._start(self.port + 10, "follower")
        self._start(self.port + 20, "follower")
        self._start(self.port, str(self.port + 10), str(self.port + 20))
        self.nodes = [
            [psutil.Process(process.pid)] for process in (self._processes[2], *self._processes[:2])
        ]

    def _start(self, port: int, *others: str) -> None:
        command = [
            sys.executable,
            "-m",
            "bench._floor",
            str(port),
            str(self.folder / f"journal-{port}"),
            *others,
        ]
        process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self._processes.append(process)
        os.sched_setscheduler(process.pid, os.SCHED_BATCH, os.sched_param(0))
        deadline = time.monotonic() + START_SECONDS
        while not is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                self.close()
                sys.exit("a node of the floor did not come up")
            time.sleep(0.05)

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cpu_of(nodes: list[list[psutil.Process]]) -> list[float]:
    """Return the CPU seconds of each node so far."""
    return [sum(sum(process.cpu_times()[:2]) for process in node) for node in nodes]


def machine() -> str:
    """Describe the benchmark machine."""
    return (
        f"{os.cpu_count()} cores, Linux {os.uname().release}, Python {sys.version.split()[0]}, "
        f"load {os.getloadavg()[0]:.1f} before"
    )


def _pid(text: str) -> int:
    found = re.search(r"\d+", text)
    assert found is not None
    return int(found[0])
