"""Ports that are chosen before a server takes them, or kept over its restarts: nothing else takes
them meanwhile; and one where nobody answers.

They lie below the range from which the kernel gives ports to connections (and to `bind` with port
0), of which every test beside this one uses thousands. Who chose one holds the UDP port of the same
number to its end, so that no other process of the tests chooses it.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

HOST = "127.0.0.1"
LOW = 10_200  # above 10092: the cores' Kafka ports of a node that has 9092
DIRECT_STEP = 1000  # from a Kafka port to those of the cores
TRIES = 1000
_claims: list[socket.socket] = []  # held until this process ends


def free_ports(count: int) -> list[int]:
    """So many different ports."""
    return [_claimed(1) for _ in range(count)]


def two_free_ports() -> int:
    """The first of two neighbours: a node that is told its port has its admin port on the next
    one."""
    return _claimed(2)


@contextlib.contextmanager
def ports_in_a_row(count: int) -> Iterator[int]:
    """The first of so many, which are another's again at the end. Those that the cores of nodes
    take behind them are held, too."""
    port, claims = _claimed_row(count, DIRECT_STEP)
    with contextlib.ExitStack() as stack:
        for claim in claims:
            stack.enter_context(claim)
        yield port


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """A URL at which every connection is refused."""
    with socket.socket() as bound:  # and does not listen
        bound.bind((HOST, 0))
        yield f"http://{HOST}:{bound.getsockname()[1]}"


def _claimed(neighbours: int) -> int:
    port, claims = _claimed_row(neighbours)
    _claims.extend(claims)
    return port


def _claimed_row(count: int, direct: int = 0) -> tuple[int, list[socket.socket]]:
    chance = random.SystemRandom()
    for _ in range(TRIES):
        port = chance.randrange(LOW, _end() - count - direct)
        numbers = [*range(port, port + count)]
        if direct:
            numbers += [number + direct for number in numbers]
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as kept:
            try:
                claims = [kept.enter_context(_claim(number)) for number in numbers]
                # never of a port that is another's: its server may be about to bind it
                for number in numbers:
                    stack.enter_context(socket.socket()).bind((HOST, number))
            except OSError:
                continue
            kept.pop_all()
            return port, claims
    raise AssertionError(f"no {count} neighbouring ports are free")


def _claim(port: int) -> socket.socket:
    made = socket.socket(type=socket.SOCK_DGRAM)
    try:
        made.bind((HOST, port))
    except OSError:
        made.close()
        raise
    return made


def _end() -> int:
    """Where the kernel's range begins. It is Linux that says so; where all high ports are in it,
    these are no worse than others."""
    with contextlib.suppress(OSError):
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if begin > 2 * LOW:
            return begin
    return 32_768
