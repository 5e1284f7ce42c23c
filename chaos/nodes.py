"""Real nodes: `polynya serve` with settings files of a cluster, each where its network and its disk
are; killed, paused and started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from chaos.disks import Disk, Folder
from chaos.network import Loopback, Namespaces
from chaos.proxy import Address, Pair, Wires
from chaos.shim import Orders
from chaos.wire import Lost, Unsent, ask_once

SOURCE = Path(__file__).parent.parent / "src"
EXIT_CORRUPT, EXIT_STORAGE = 65, 74
FIRST = [1, 2, 3]  # whom the cluster is born with
NUMBERS_MAX = 40  # of nodes in one run: each has a certificate
GROUPS = 8
LAG_MAX = 200  # entries that a replica may be behind while there is load
CORES = re.compile(r"^cores = (\d+)$", re.MULTILINE)  # of the settings
SMALL = {  # so that packs, merges, collections and snapshots happen within a minute
    "COLD_FLUSH_BYTES": str(32 << 10),
    "COLD_FLUSH_MIN_HOT_BYTES": str(8 << 10),
    "COLD_FLUSH_INTERVAL_MS": "500",
    "COLD_FLUSH_MAX_AGE_MS": "8000",
    "COLD_DELETE_GRACE_MS": "3000",
}


class Node:
    """A cluster node: disk, files and running processes."""

    def __init__(
        self,
        number: int,
        disk: Disk | Folder,
        inside: list[str],
        variables: dict[str, str],
        orders: Orders | None,
    ) -> None:
        self.number, self.disk, self.orders = number, disk, orders
        self.log = disk.path.parent / f"node-{number}.log"
        self.config = disk.path.parent / f"node-{number}.toml"
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.source = SOURCE  # of the release that it is started with
        self._inside, self._variables = inside, variables

    @property
    def data(self) -> Path:
        return self.disk.path / "data"

    def start(self) -> None:
        """Start the node in the permanent thread: the kernel kills it when its thread ends."""
        assert not self.is_alive
        serve = [sys.executable, "-m", "polynya", "serve", "--config", str(self.config)]
        command = [
            *self._inside,
            sys.executable,
            "-P",
            "-m",
            "polynya.config.core_start",
            str(os.getpid()),
            *serve,
        ]
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("POLYNYA_")
        }
        environment = kept | {"PYTHONPATH": str(self.source)} | self._variables
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

    @property
    def was_removed(self) -> bool:
        """Report whether the node knows that it was removed from the cluster."""
        return (self.data / "removed").exists()

    def processes(self) -> list[psutil.Process]:
        """Return the supervisor, followed by its cores."""
        if not self.is_alive:
            return []
        assert self.process is not None
        try:
            supervisor = psutil.Process(self.process.pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def has_one_of(self, sockets: set[str]) -> bool:
        """Report whether one of its processes has one of these sockets open. Reads no other
        processes, as it is called for each connection."""
        if self.process is None:
            return False
        return any(sockets & _files_of(pid) for pid in _family_of(self.process.pid))

    def cores(self) -> list[psutil.Process]:
        return self.processes()[1:]

    async def kill(self) -> None:
        """Send SIGKILL to all processes of the node at once."""
        await _killed(self.processes())
        if self.process is not None:
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM, as an operator does."""
        assert self.process is not None
        self.process.terminate()

    async def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        self.terminate()
        return await self.ended(40.0)

    async def ended(self, seconds: float) -> int:
        """Return its exit code once it has ended, or kill it after the time and return -9."""
        assert self.process is not None
        for _ in range(int(seconds / 0.05)):
            if self.process.poll() is not None:
                return self.process.returncode
            await asyncio.sleep(0.05)
        await self.kill()
        return -9

    @property
    def count(self) -> int:
        """Return the number of its cores, as its settings say."""
        found = CORES.search(self.config.read_text())
        assert found is not None
        return int(found[1])

    def share_out(self, count: int) -> None:
        """Set the number of cores for the next start."""
        self.config.write_text(CORES.sub(f"cores = {count}", self.config.read_text()))

    def wipe(self) -> None:
        """Make the machine a new one, whose clock is right: without data, a node is not let in by
        an object store that its clock is too far from."""
        shutil.rmtree(self.data)
        if self.orders is not None:
            self.orders.give(real_ms=0)

    def said(self) -> str:
        """Return the log since the last start."""
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
    """The members of the cluster, their network and their links. `disk_at` makes the disk of a
    node at a path.

    `aims`: the nodes that the current operation concerns; faults prefer them. `leaving`: the
    nodes that end after their removal, with how often each had been started when that was
    requested."""

    def __init__(
        self,
        folder: Path,
        network: Loopback | Namespaces,
        wires: Wires,
        disk_at: Callable[[Path], Disk | Folder],
        *,
        cores: int = 1,
        kafka: bool = False,
    ) -> None:
        self.kafka = kafka  # the nodes serve it where clients reach them
        self.folder, self.network, self.wires, self.cores = folder, network, wires, cores
        self.nodes: dict[int, Node] = {}
        self.addresses: dict[int, Address] = {}  # where those serve that clients may ask
        self.aims: list[int] = []
        self.leaving: dict[int, int] = {}
        self.readers: set[int] = set()  # read replicas
        self.unsure: list[
            tuple[str, dict[str, Any], Callable[[bool], None]]
        ] = []  # requests of unknown outcome
        self.cold = [f'root = "{folder}/objects"']  # settings of the object store
        self.last = 0  # the highest number that was given
        self.all: list[Node] = []  # also those that belong no more
        self._disk_at = disk_at
        self._library: Path | None = None
        self._id = secrets.token_hex(16)

    @property
    def numbers(self) -> list[int]:
        return sorted(self.nodes)

    async def prepare(
        self, library: Path | None, open_store: Callable[[], Awaitable[list[str]]]
    ) -> None:
        """Prepare everything of the first nodes but their processes. `open_store` gives the
        settings of an object store; none: a folder."""
        self._library = library
        self.network.start()
        self.cold = await open_store() or self.cold
        numbers = [f"--node={number}" for number in range(1, NUMBERS_MAX + 1)]
        await self.run("cluster", "ca", str(self.folder / "ca"), *numbers)
        for number in FIRST:
            await self._open_door(number)
        for number in FIRST:
            await self._lay_out(number, FIRST, joins=False)

    async def join(self, *, reader: bool = False) -> Node:
        """Prepare everything of one more node but its process; the others have not heard of it."""
        number, before = self.last + 1, self.numbers
        if reader:
            self.readers.add(number)
        await asyncio.to_thread(self.network.add, number)
        await self._open_door(number)
        return await self._lay_out(number, [number, *before], joins=True)

    def begin_anew(self) -> None:
        """Lose all disks, and start the members as a new cluster."""
        for number, node in self.nodes.items():
            node.wipe()
            node.config.write_text(self._settings(number, self.numbers, joins=False))

    async def hot_bytes(self) -> int:
        """Return the bytes that are in no pack yet, on all nodes; -1 while a node does not
        answer."""
        total = 0
        for number in self.numbers:
            try:
                answer = await ask_once(self.network.http(number), "GET", "/metrics", seconds=5.0)
            except (Lost, Unsent):
                return -1
            found = re.findall(
                r"^polynya_hot_bytes(?:{[^}]*})? ([0-9.e+]+)$", answer.body.decode(), re.MULTILINE
            )
            if not found:
                return -1
            total += int(sum(map(float, found)))
        return total

    def let_go(self, number: int) -> None:
        """Forget a node that was removed and has ended."""
        del self.nodes[number]
        self.addresses.pop(number, None)
        self.leaving.pop(number, None)
        self.readers.discard(number)

    async def run(self, *words: str) -> str:
        """Run a command of the product and return its output."""
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        command = [sys.executable, "-m", "polynya", *words]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    async def _open_door(self, number: int) -> None:
        self.last = max(self.last, number)
        await self.wires.listen(number, self.network.door(number), self.network.peer(number), self)

    def sender(self, address: Address) -> int:
        """Return the node that a connection comes from, for the wires; 0: none."""
        number = self.network.sender(address)
        if number:
            return number
        sockets = sockets_at(address[1])
        nodes = list(self.nodes.values()) if sockets else []
        return next((node.number for node in nodes if node.has_one_of(sockets)), 0)

    def source(self, pair: Pair) -> Address:
        return self.network.source(pair)

    async def _lay_out(self, number: int, peers: list[int], *, joins: bool) -> Node:
        """Make the disk and the settings of a node. The disk is made beside the loop: what passes
        between the nodes passes there."""
        orders = (
            Orders(self.folder / f"node-{number}.orders") if self._library is not None else None
        )
        variables = {f"POLYNYA_{name}": value for name, value in SMALL.items()}
        if orders is not None and self._library is not None:
            variables |= orders.variables(self._library)
        disk = await asyncio.to_thread(self._disk_at, self.folder / f"node-{number}")
        node = Node(number, disk, self.network.inside(number), variables, orders)
        node.config.write_text(self._settings(number, peers, joins=joins))
        self.nodes[number] = node
        self.addresses[number] = self.network.http(number)
        self.all.append(node)
        if self.kafka:
            with self.kafka_servers.open("a") as file:
                file.write("{}:{}\n".format(*self.network.kafka(number)))
        return node

    @property
    def kafka_servers(self) -> Path:
        """Return a file with HOST:PORT of all nodes that ever served Kafka: clients begin there."""
        return self.folder / "kafka-servers"

    def _settings(self, number: int, peers: list[int], *, joins: bool) -> str:
        certificates = self.folder / "ca"
        lines = [
            'listen = "{}:{}"'.format(*self.network.http(number)),
            f'data = "{self.folder}/node-{number}/data"',
            f"cores = {self.cores}",
        ]
        lines += [f"groups = {GROUPS}", "unsafe_no_auth = true", "[cold]", *self.cold]
        if self.kafka:
            lines += ["[kafka]", 'listen = "{}:{}"'.format(*self.network.kafka(number))]
        lines += [
            "[cluster]",
            f'id = "{self._id}"',
            f"node = {number}",
            f'ca = "{certificates}/ca.crt"',
        ]
        lines += [
            f'cert = "{certificates}/node-{number}.crt"',
            f'key = "{certificates}/node-{number}.key"',
        ]
        lines += [
            'listen = "{}:{}"'.format(*self.network.peer(number)),
            *(["join = true"] if joins else []),
        ]
        for other in peers:
            lines += [
                "[[cluster.nodes]]",
                f"id = {other}",
                f'peer = "{self.peer_of(other)}"',
                f'http = "{self.http_of(other)}"',
            ]
            lines += ['role = "reader"'] if other in self.readers else []
        return "\n".join([*lines, ""])

    def peer_of(self, number: int) -> str:
        """Return the address at which other nodes reach it."""
        return "{}:{}".format(*self.wires.doors[number])

    def http_of(self, number: int) -> str:
        return "http://{}:{}".format(*self.network.http(number))

    async def view(self, number: int) -> dict[str, Any] | None:
        """Return a node's view of the cluster; None if it does not answer."""
        try:
            answer = await ask_once(self.network.http(number), "GET", "/v1/cluster", seconds=5.0)
        except (Lost, Unsent):
            return None
        return dict(json.loads(answer.body)) if answer.status == 200 else None

    async def look(self) -> dict[str, Any] | None:
        """Return the first view that a node answers. All are asked at once, as a stopped node
        would delay the answer until its timeout."""
        asked = [
            asyncio.create_task(self.view(number))
            for number in self.numbers
            if self.nodes[number].is_alive
        ]
        try:
            for said in asyncio.as_completed(asked):
                view = await said
                if view is not None and view["nodes"]:
                    return view
            return None
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def unwell(self) -> str:
        """Return the problems that the nodes report; empty when there is none, no replica lags, no
        group moves, and all links work."""
        staying = set(self.nodes) - set(self.leaving)
        for number in sorted(staying):
            view = await self.view(number)
            if view is None:
                return f"node {number} does not answer"
            trouble = "; ".join(view["problems"]) or _unfinished(view, staying)
            if trouble:
                return f"node {number} says: {trouble}"
        missing = {
            (one, other) for one in staying for other in staying - {one}
        } - self.wires.carried()
        return f"no connection through the wires: {sorted(missing)}" if missing else ""

    async def leader_most(self) -> int:
        """Return the node that leads the most."""
        view = await self.look()
        if view is None:
            return self.numbers[0]
        led = {int(node["id"]): node["leader_of"] for node in view["nodes"]}
        return max(self.numbers, key=lambda number: led.get(number, 0))

    async def controller(self) -> int:
        """Return the node that leads the meta group, as far as is known."""
        view = await self.look()
        leader = 0 if view is None else int(view["groups"][0]["leader"])
        return leader if leader in self.nodes else self.numbers[0]

    def odd_lines(self) -> list[str]:
        """Return the log lines that no fault justifies, each with the place of its traceback. A
        disk fault is reported with the place where it was noticed."""
        return [
            f"log: node {node.number}: {line}"
            for node in self.all
            if node.starts
            for line in odd_of(node.log.read_text(errors="replace"))
        ]

    async def close(self) -> None:
        for node in self.all:
            with contextlib.suppress(psutil.NoSuchProcess):
                await node.kill()
        await self.wires.close()


_ODD = re.compile(r"Traceback \(most recent call last\)|AssertionError|was never retrieved")
_EXPLAINED = re.compile(r"OSError: \[Errno (5|28)\]|CorruptData")


def odd_of(log: str) -> list[str]:
    """Return the errors of a log that no fault of the chaos explains. A traceback is one line:
    where it began, the last place in the product, and its error."""
    odd: list[str] = []
    lines = log.splitlines()
    for at, line in enumerate(lines):
        if not _ODD.search(line):
            continue
        text = line
        if "Traceback" in line:
            block = list(itertools.takewhile(lambda one: one.startswith(" "), lines[at + 1 :]))
            end = lines[at + 1 + len(block) : at + 2 + len(block)]
            addresses = [one.strip() for one in block if one.lstrip().startswith("File ")]
            text = " | ".join([line, *addresses[-1:], *end])
        if not _EXPLAINED.search(text):
            odd.append(text)
    return odd


def _unfinished(view: dict[str, Any], staying: set[int]) -> str:
    """Return the unfinished work of a node that reports no problem."""
    there = {int(node["id"]) for node in view["nodes"]}
    if there != staying:
        return f"the nodes are {sorted(there)} instead of {sorted(staying)}"
    if view.get("rebalancing"):
        return "it is being balanced"
    for group in view["groups"]:
        replicas = {int(number) for number in group["behind"]}
        # releases before placement tell neither
        voters, goal = (
            group.get("voters", []),
            group.get("goal", group.get("voters", [])),
        )
        if goal != voters or not set(voters) <= replicas:
            return (
                f"group {group['group']} is on {sorted(replicas)}, has the voters {voters} and is "
                f"to have {goal}"
            )
        if max(group["behind"].values(), default=0) > LAG_MAX:
            return f"replicas are behind in group {group['group']}"
    return ""


def sockets_at(port: int) -> set[str]:
    """Return the connections from that port of the loopback, as the files of a process name
    them."""
    wanted, found = f":{port:04X}", set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=10)
        if fields[1].endswith(wanted):
            found.add(f"socket:[{fields[9]}]")
    return found


def _family_of(pid: int) -> list[int]:
    """Return the ids of a process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *map(int, children)]


def _files_of(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(entry.path))
    return found
