"""Ports that this process holds for servers that it starts.

On Linux several sockets with SO_REUSEADDR are bound to one port as long as none of them
listens, and one that listens may join those that do not. So the owner binds the port and never
listens. A server that it starts, and starts again, listens there (asyncio, Go, Java, Node.js
and Rust set SO_REUSEADDR). The kernel gives the port to no connection and to no `bind` with
port 0. A process that looks for a free port binds without SO_REUSEADDR, and is refused."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOW = 10_200  # above 10092: the cores' Kafka ports of a node that has 9092
TRIES = 1000
_kept: list[socket.socket] = []  # until this process ends


def hold(port: int = 0) -> socket.socket:
    """Bind a port that no other socket has; 0: any. It is this process's until the socket is
    closed. Raises OSError."""
    held = socket.socket()
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        raise
    # only now: with it, a port that another process holds for its server could be bound
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def hold_row(count: int, direct: int = 0) -> tuple[int, list[socket.socket]]:
    """Hold `count` neighbouring ports; `direct`: and as many, that distance behind them. Returns
    the first port and the sockets.

    They lie below the ports that the kernel gives to connections. A server that moves there
    from its default port has its other ports near it, which no other process may hold."""
    chance = random.SystemRandom()
    for _ in range(TRIES):
        first = chance.randrange(LOW, _end() - count - direct)
        steps = (0, direct) if direct else (0,)
        with contextlib.ExitStack() as stack:
            try:
                held = [
                    stack.enter_context(hold(first + step + number))
                    for step in steps
                    for number in range(count)
                ]
            except OSError:
                continue
            stack.pop_all()
            return first, held
    raise AssertionError(f"no {count} neighbouring ports are free")


def keep_row(count: int) -> int:
    """Hold that many adjacent ports until this process ends. Returns the first port."""
    first, held = hold_row(count)
    _kept.extend(held)
    return first


def _end() -> int:
    """Return the beginning of the kernel's range of ephemeral ports. Only Linux reports it; where
    all high ports are in it, these are no worse than others."""
    with contextlib.suppress(OSError):
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if begin > 2 * LOW:
            return begin
    return 32_768
