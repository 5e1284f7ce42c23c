"""Where the nodes live: each in a network namespace of its own, with packets dropped by iptables; or on loopback, where only the proxies can cut."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence

from chaos.proxy import Place, Wires

HTTP_PORT, PEER_PORT = 4437, 4439


class Loopback:
    """No privileges. A partition holds up bytes instead of dropping packets."""

    kind = "loopback"
    loses = False

    def __init__(self, nodes: list[int], name: str) -> None:
        self.nodes, self.name = nodes, name
        self._held: list[socket.socket] = []
        self._base = {node: _free_ports(self._held) for node in nodes}

    def http(self, node: int) -> Place:
        return "127.0.0.1", self._base[node]

    def peer(self, node: int) -> Place:
        return "127.0.0.1", self._base[node] + 2

    def proxy(self, pair: tuple[int, int]) -> Place:
        return "127.0.0.1", 0

    def start(self) -> None:
        while self._held:
            self._held.pop().close()

    def inside(self, node: int) -> list[str]:
        """What comes before a command that is to run there."""
        return []

    def cut(self, wires: Wires, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in pairs:
            wires.hold(pair)

    def lose(self, pairs: Sequence[tuple[int, int]], share: float) -> None:
        raise NotImplementedError

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


class Namespaces:
    """A bridge in this namespace, a namespace for each node. Needs root, `ip` and `iptables`."""

    kind = "namespaces"
    loses = True

    def __init__(self, nodes: list[int], name: str) -> None:
        self.nodes, self.name = nodes, name
        self._net = _free_net(name)

    def http(self, node: int) -> Place:
        return f"{self._net}.{node}", HTTP_PORT

    def peer(self, node: int) -> Place:
        return f"{self._net}.{node}", PEER_PORT

    def proxy(self, pair: tuple[int, int]) -> Place:
        return f"{self._net}.{100 + 10 * pair[0] + pair[1]}", PEER_PORT

    def start(self) -> None:
        bridge = self.name
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self._net}.254/24", "dev", bridge)
        for one in self.nodes:
            for other in self.nodes:
                if one != other:
                    _run("ip", "addr", "add", f"{self.proxy((one, other))[0]}/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for node in self.nodes:
            space = self.space(node)
            _run("ip", "netns", "add", space)
            _run("ip", "link", "add", f"{bridge}v{node}", "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "link", "set", f"{bridge}v{node}", "master", bridge, "up")
            for command in (f"addr add {self._net}.{node}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _run("ip", "-n", space, *command.split())
        _run("ip", "netns", "exec", self.space(self.nodes[0]), "iptables", "-L", "-n")

    def space(self, node: int) -> str:
        return f"{self.name}n{node}"

    def inside(self, node: int) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self.space(node)}"]

    def cut(self, wires: Wires, pairs: Sequence[tuple[int, int]]) -> None:
        """Packets from the first to the second of each pair are dropped as they leave."""
        for sender, to in pairs:
            self._filter(sender, [self.proxy((sender, to))[0], self.proxy((to, sender))[0]])

    def lose(self, pairs: Sequence[tuple[int, int]], share: float) -> None:
        for sender, to in pairs:
            chance = ["-m", "statistic", "--mode", "random", "--probability", str(share)]
            self._filter(sender, [self.proxy((sender, to))[0], self.proxy((to, sender))[0]], *chance)

    def heal(self) -> None:
        for node in self.nodes:
            _run("ip", "netns", "exec", self.space(node), "iptables", "-F", "OUTPUT")

    def close(self) -> None:
        remove(self.name)

    def _filter(self, node: int, addresses: list[str], *match: str) -> None:
        for address in addresses:
            _run("ip", "netns", "exec", self.space(node), "iptables", "-A", "OUTPUT", "-d", address, *match, "-j", "DROP")


def why_not() -> str:
    """What namespaces lack here; empty when they work."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [tool for tool in ("ip", "iptables", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = Namespaces([1], f"pch{os.getpid()}p")
    try:
        probe.start()
    except (subprocess.CalledProcessError, OSError) as fault:
        said = fault.stderr.decode().strip() if isinstance(fault, subprocess.CalledProcessError) else str(fault)
        return f"network namespaces do not work here: {said}"
    finally:
        probe.close()
    return ""


def remove(name: str) -> None:
    """All that a network of this name has made. Nothing there is no error."""
    if shutil.which("ip") is None:
        return
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for space in (line.split()[0] for line in listed.splitlines() if line.strip()):
        if space.startswith(f"{name}n"):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
    subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _free_net(name: str) -> str:
    taken = subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=False).stdout
    start = int("".join(filter(str.isdigit, name)) or "0")
    nets = (f"10.{64 + (start + step) // 200 % 60}.{(start + step) % 200}" for step in range(1000))
    return next(net for net in nets if f"{net}." not in taken)


def _free_ports(held: list[socket.socket]) -> int:
    """The first of three neighbours, below where the kernel takes ports for connections."""
    for base in range(20_000 + os.getpid() % 5000, 32_000, 10):
        made: list[socket.socket] = []
        try:
            for port in range(base, base + 3):
                made.append(socket.socket())
                made[-1].bind(("127.0.0.1", port))
        except OSError:
            for each in made:
                each.close()
            continue
        held += made
        return base
    raise OSError("no free ports")
