"""Three real nodes: `polynya serve` with settings files of a cluster, each where its network and its disk are; killed, paused and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from chaos.disks import Disk, Folder
from chaos.network import Loopback, Namespaces
from chaos.proxy import Wires
from chaos.shim import Orders
from chaos.wire import Connection, Lost, Unsent

SOURCE = Path(__file__).parent.parent / "src"
EXIT_CORRUPT, EXIT_STORAGE = 65, 74
ALL = [1, 2, 3]
LAG_MAX = 200  # entries that a replica may be behind while there is load
SMALL = {  # so that packs, merges, collections and snapshots happen within a minute
    "COLD_FLUSH_BYTES": str(32 << 10),
    "COLD_FLUSH_MIN_HOT_BYTES": str(8 << 10),
    "COLD_FLUSH_INTERVAL_MS": "500",
    "COLD_DELETE_GRACE_MS": "3000",
}


class Node:
    """One of them. `down`: nobody is to expect it; `expected`: exit codes that a fault explains."""

    def __init__(self, number: int, disk: Disk | Folder, inside: list[str], variables: dict[str, str], orders: Orders | None) -> None:
        self.number, self.disk, self.orders = number, disk, orders
        self.log = disk.path.parent / f"node-{number}.log"
        self.config = disk.path.parent / f"node-{number}.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._inside, self._variables = inside, variables

    @property
    def data(self) -> Path:
        return self.disk.path / "data"

    def start(self) -> None:
        """In the thread that stays: the kernel kills it when that ends."""
        assert not self.is_alive
        serve = [sys.executable, "-m", "polynya", "serve", "--config", str(self.config)]
        command = [*self._inside, sys.executable, "-P", "-m", "polynya.node.start", str(os.getpid()), *serve]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYNYA_")}
        environment = kept | {"PYTHONPATH": str(SOURCE)} | self._variables
        with self.log.open("ab") as log:
            log.write(f"--- start {self.starts}\n".encode())
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                cwd=self.disk.path.parent,
            )
        self.starts += 1

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """The supervisor, then its cores."""
        if not self.is_alive:
            return []
        assert self.process is not None
        try:
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def cores(self) -> list[psutil.Process]:
        return self.processes()[1:]

    async def kill(self) -> None:
        """SIGKILL to all of it at once."""
        await _killed(self.processes())
        if self.process is not None:
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    async def stop(self) -> int:
        """SIGTERM as an operator sends it, and the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await self.ended(40.0)

    async def ended(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself; killed, and -9, when it does not."""
        assert self.process is not None
        for _ in range(int(seconds / 0.05)):
            if self.process.poll() is not None:
                return self.process.returncode
            await asyncio.sleep(0.05)
        await self.kill()
        return -9

    def wipe(self) -> None:
        """The disk is a new one."""
        shutil.rmtree(self.data)

    def said(self) -> str:
        """Since its last start."""
        text = self.log.read_text(errors="replace")
        return text[text.rindex("--- start ") :] if "--- start " in text else text


async def _killed(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    while any(_is_there(process) for process in processes):
        await asyncio.sleep(0.01)


def _is_there(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Cluster:
    """All of them, their network and their wires."""

    def __init__(self, folder: Path, network: Loopback | Namespaces, wires: Wires, *, cores: int = 1, groups: int = 8) -> None:
        self.folder, self.network, self.wires = folder, network, wires
        self.cores, self.groups = cores, groups
        self.nodes: dict[int, Node] = {}

    async def prepare(self, disks: dict[int, Disk | Folder], library: Path | None) -> None:
        """Everything but the processes."""
        self.network.start()
        for pair in self.wires.pairs:
            await self.wires.listen(pair, self.network.proxy(pair), self.network.peer(pair[1]))
        certificates = self.folder / "ca"
        command = [sys.executable, "-m", "polynya", "cluster", "ca", str(certificates), *(f"--node={number}" for number in ALL)]
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, env=environment)
        cluster_id = secrets.token_hex(16)
        for number in ALL:
            orders = Orders(self.folder / f"node-{number}.orders") if library is not None else None
            variables = {f"POLYNYA_{name}": value for name, value in SMALL.items()}
            if orders is not None and library is not None:
                variables |= orders.variables(library)
            node = Node(number, disks[number], self.network.inside(number), variables, orders)
            node.config.write_text(self._settings(number, cluster_id, certificates))
            self.nodes[number] = node

    def _settings(self, number: int, cluster_id: str, certificates: Path) -> str:
        host, port = self.network.http(number)
        lines = [f'listen = "{host}:{port}"', f'data = "{self.folder}/node-{number}/data"', f"cores = {self.cores}"]
        lines += [f"groups = {self.groups}", "unsafe_no_auth = true", "[cold]", f'root = "{self.folder}/objects"']
        lines += ["[cluster]", f'id = "{cluster_id}"', f"node = {number}", f'ca = "{certificates}/ca.crt"']
        lines += [f'cert = "{certificates}/node-{number}.crt"', f'key = "{certificates}/node-{number}.key"']
        lines += ['listen = "{}:{}"'.format(*self.network.peer(number))]
        for other in ALL:
            peer = self.network.peer(number) if other == number else self.wires.places[number, other]
            http = "http://{}:{}".format(*self.network.http(other))
            lines += ["[[cluster.nodes]]", f"id = {other}", f'peer = "{peer[0]}:{peer[1]}"', f'http = "{http}"']
        return "\n".join([*lines, ""])

    def alive(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_alive]

    async def view(self, number: int) -> dict[str, Any] | None:
        """What a node says of the cluster, if it says something."""
        connection = Connection(*self.network.http(number))
        try:
            answer = await connection.ask("GET", "/v1/cluster", seconds=5.0)
            view: dict[str, Any] | None = json.loads(answer.body) if answer.status == 200 else None
        except (Lost, Unsent):
            view = None
        connection.close()
        return view

    async def unwell(self) -> str:
        """What is wrong, as all nodes say; empty when nothing is, and no replica is behind."""
        for number in ALL:
            view = await self.view(number)
            if view is None:
                return f"node {number} does not answer"
            behind = [
                f"{group['group']}"
                for group in view["groups"]
                if max(group["behind"].values(), default=0) > LAG_MAX or len(group["behind"]) < len(ALL)
            ]
            if view["problems"] or behind:
                return f"node {number} says: " + ("; ".join(view["problems"]) or f"replicas are behind in groups {', '.join(behind)}")
        return ""

    async def leader_most(self) -> int:
        """The node that leads the most."""
        for number in ALL:
            view = await self.view(number) if self.nodes[number].is_alive else None
            if view is not None:
                return int(max(view["nodes"], key=lambda node: node["leads"])["id"])
        return ALL[0]

    def odd_lines(self) -> list[str]:
        """Of the logs: what should not be said whatever fails. A disk that fails is told with where it was noticed."""
        odd, explained = (
            re.compile(r"Traceback \(most recent call last\)|AssertionError"),
            re.compile(r"OSError: \[Errno (5|28)\]|CorruptData"),
        )
        lines = ((node.number, line) for node in self.nodes.values() for line in node.log.read_text(errors="replace").splitlines())
        return [f"log: node {number}: {line}" for number, line in lines if odd.search(line) and not explained.search(line)]

    async def close(self) -> None:
        for node in self.nodes.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                await node.kill()
        await self.wires.close()
