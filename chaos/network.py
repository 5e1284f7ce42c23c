"""The network of the nodes: a network namespace for each, with packets dropped by iptables; or
loopback, where only the proxies can cut. The bridge between the namespaces is in a namespace of
the run (`isolate`).

A node is known to all others by the address of a proxy (`chaos/proxy.py`) and by nothing else:
it announces this address itself."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from chaos.ports import hold_row
from chaos.proxy import Address, Wires

HTTP_PORT, PEER_PORT, KAFKA_PORT = 4437, 4439, 9092
PORTS = 10  # held for a node: HTTP, admin, peers, Kafka; its cores have up to seven …
DIRECT_STEP = 1000  # … so far behind that of Kafka
CLONE_NEWNET = 0x40000000
TOOLS = ("ip", "iptables", "nsenter")
# else it takes the least of its ports', and one more node makes all others lose it until they ask
# for it again
BRIDGE = "02:00:00:00:00:fe"


class Loopback:
    """No privileges. A partition holds up bytes instead of dropping packets."""

    kind = "loopback"
    loses = False
    outside = "127.0.0.1"

    def __init__(self, nodes: list[int], name: str) -> None:
        self.nodes, self.name = list(nodes), name
        self._held: list[socket.socket] = []
        self._base: dict[int, int] = {}
        for node in nodes:
            self._hold(node)

    def http(self, node: int) -> Address:
        return "127.0.0.1", self._base[node]

    def admin(self, node: int) -> Address:
        return "127.0.0.1", self._base[node] + 1

    def dial(self, node: int) -> socket.socket:
        """Return a new socket for `admin`."""
        return socket.socket()

    def peer(self, node: int) -> Address:
        return "127.0.0.1", self._base[node] + 2

    def kafka(self, node: int) -> Address:
        return "127.0.0.1", self._base[node] + 3

    def door(self, node: int) -> Address:
        return "127.0.0.1", 0

    def source(self, pair: tuple[int, int]) -> Address:
        """Return the source address of the proxy's connection to the second of the pair for the
        first."""
        return "127.0.0.1", 0

    def sender(self, address: Address) -> int:
        """Return the node that a connection comes from; 0: its address does not tell."""
        return 0

    def start(self) -> None:
        """Do nothing: the ports are reserved from their choice until `close`."""

    def add(self, node: int) -> None:
        """Reserve the ports of one more node."""
        self._hold(node)
        self.nodes.append(node)

    def inside(self, node: int) -> list[str]:
        """Return the prefix of a command that runs in the namespace of a node."""
        return []

    def cut(self, wires: Wires, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in pairs:
            wires.hold(pair)

    def lose(self, pairs: Sequence[tuple[int, int]], share: float) -> None:
        raise NotImplementedError

    def silence(self, node: int) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        pass

    def close(self) -> None:
        while self._held:
            self._held.pop().close()

    def _hold(self, node: int) -> None:
        self._base[node], held = hold_row(PORTS, DIRECT_STEP)
        self._held += held


class Namespaces:
    """A bridge in this namespace, and a namespace for each node. Needs root and `TOOLS`. Node N is
    NET.0.N, its public address NET.1.N; connections from A reach B from NET.(10 + A).B."""

    kind = "namespaces"
    loses = True

    def __init__(self, nodes: list[int], name: str) -> None:
        self.nodes, self.name = list(nodes), name
        self._net = _free_net(name)

    def http(self, node: int) -> Address:
        return f"{self._net}.0.{node}", HTTP_PORT

    def admin(self, node: int) -> Address:
        return "127.0.0.1", HTTP_PORT + 1

    def dial(self, node: int) -> socket.socket:
        """Open a socket for `admin`, which is the loopback of the node's namespace. A thread enters
        it, and ends there."""

        def enter() -> socket.socket:
            with open(f"/run/netns/{self.space(node)}", "rb") as space:
                if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            return socket.socket()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(enter).result()

    def peer(self, node: int) -> Address:
        return f"{self._net}.0.{node}", PEER_PORT

    def kafka(self, node: int) -> Address:
        return f"{self._net}.0.{node}", KAFKA_PORT

    def door(self, node: int) -> Address:
        return f"{self._net}.1.{node}", PEER_PORT

    def source(self, pair: tuple[int, int]) -> Address:
        return f"{self._net}.{10 + pair[0]}.{pair[1]}", 0

    def sender(self, address: Address) -> int:
        return int(address[0].rpartition(".")[2])

    @property
    def outside(self) -> str:
        """Return this side's address of the bridge, which all nodes reach."""
        return f"{self._net}.0.254"

    def start(self) -> None:
        bridge = self.name
        _run("ip", "link", "add", bridge, "address", BRIDGE, "type", "bridge")
        _run("ip", "addr", "add", f"{self.outside}/16", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            self.add(node)
        _run("ip", "netns", "exec", self.space(self.nodes[0]), "iptables", "-L", "-n")

    def add(self, node: int) -> None:
        bridge, space = self.name, self.space(node)
        pairs = [pair for other in self.nodes for pair in ((node, other), (other, node))]
        for address in (self.door(node), *map(self.source, pairs)):
            _run("ip", "addr", "add", f"{address[0]}/16", "dev", bridge)
        _run("ip", "netns", "add", space)
        _run(
            "ip",
            "link",
            "add",
            f"{bridge}v{node}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            space,
        )
        _run("ip", "link", "set", f"{bridge}v{node}", "master", bridge, "up")
        for command in (
            f"addr add {self._net}.0.{node}/16 dev eth0",
            "link set eth0 up",
            "link set lo up",
        ):
            _run("ip", "-n", space, *command.split())
        self.nodes.append(node)

    def space(self, node: int) -> str:
        return f"{self.name}n{node}"

    def inside(self, node: int) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.space(node)}"]

    def cut(self, wires: Wires, pairs: Sequence[tuple[int, int]]) -> None:
        """Drop packets from the first to the second of each pair as they leave."""
        for sender, to in pairs:
            self._filter(sender, [self.door(to)[0], self.source((to, sender))[0]])

    def lose(self, pairs: Sequence[tuple[int, int]], share: float) -> None:
        for sender, to in pairs:
            chance = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
            self._filter(sender, [self.door(to)[0], self.source((to, sender))[0]], *chance)

    def silence(self, node: int) -> None:
        """Drop all packets from and to the node, its clients' included: as in a power failure, no
        peer gets a reset."""
        for chain in ("INPUT", "OUTPUT"):
            _run(
                "ip",
                "netns",
                "exec",
                self.space(node),
                "iptables",
                "-A",
                chain,
                "!",
                "-i" if chain == "INPUT" else "-o",
                "lo",
                "-j",
                "DROP",
            )

    def heal(self) -> None:
        for node in self.nodes:
            _run("ip", "netns", "exec", self.space(node), "iptables", "-F")

    def close(self) -> None:
        remove(self.name)

    def _filter(self, node: int, addresses: list[str], *match: str) -> None:
        for address in addresses:
            _run(
                "ip",
                "netns",
                "exec",
                self.space(node),
                "iptables",
                "-A",
                "OUTPUT",
                "-d",
                address,
                *match,
                "-j",
                "DROP",
            )


def isolate() -> None:
    """Put this thread, and all that it starts from now on, into a network namespace that has only a
    loopback. Programs beside the run see no interfaces come and go: a browser aborts its requests
    when they do. Where namespaces cannot work, nothing changes. Raises CalledProcessError."""
    if not _lacking() and not ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        _run("ip", "link", "set", "lo", "up")


def why_not() -> str:
    """Return why network namespaces do not work here; empty when they do."""
    if lacking := _lacking():
        return lacking
    probe = Namespaces([1], f"pch{os.getpid()}p")
    try:
        probe.start()
    except (subprocess.CalledProcessError, OSError) as fault:
        said = (
            fault.stderr.decode().strip()
            if isinstance(fault, subprocess.CalledProcessError)
            else str(fault)
        )
        return f"network namespaces do not work here: {said}"
    finally:
        probe.close()
    return ""


def _lacking() -> str:
    if os.geteuid():
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def remove(name: str) -> None:
    """Remove all that a network of this name has made. Nothing there is no error."""
    if shutil.which("ip") is None:
        return
    listed = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    for space in (line.split()[0] for line in listed.splitlines() if line.strip()):
        if space.startswith(f"{name}n"):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _free_net(name: str) -> str:
    taken = subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=False).stdout
    start = int("".join(filter(str.isdigit, name)) or "0")
    nets = (f"10.{64 + (start + step) % 180}" for step in range(180))
    return next(net for net in nets if f"{net}." not in taken)
