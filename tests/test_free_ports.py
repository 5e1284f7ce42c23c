"""A port reserved by a test is available only to the servers that it starts, also after their
deaths."""

from __future__ import annotations

import errno
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from free_ports import (
    DIRECT_STEP,
    HOST,
    free_ports,
    hold,
    ports_in_a_row,
    refusing_url,
    two_free_ports,
)
from missing import left_out
from product import RunningNode, running_node

ROUNDS = 3
IP_LOCAL_PORT_RANGE = 51
STRANGER = """
import socket, sys
with socket.socket() as stranger:
    stranger.bind(("127.0.0.1", int(sys.argv[1])))
"""


def is_refused(port: int) -> bool:
    """Report whether a bind without SO_REUSEADDR finds the port taken."""
    with socket.socket() as stranger:
        try:
            stranger.bind((HOST, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def test_a_held_port_is_refused_to_who_looks_for_a_free_one() -> None:
    (port,) = free_ports(1)
    assert is_refused(port)
    with pytest.raises(OSError, match="in use"):
        hold(port)
    with ports_in_a_row(3) as first:
        row = [*range(first, first + 3), *range(first + DIRECT_STEP, first + DIRECT_STEP + 3)]
        assert all(map(is_refused, row))
    assert not any(map(is_refused, row)), "they are another's again"


def test_a_held_port_is_none_that_the_kernel_gives() -> None:
    with hold() as held, socket.create_server((HOST, 0)) as server:
        port = held.getsockname()[1]
        with only(port) as bound, pytest.raises(OSError, match="in use"):
            bound.bind((HOST, 0))
        with only(port) as client:
            assert client.connect_ex(server.getsockname()) == errno.EADDRNOTAVAIL


def only(port: int) -> socket.socket:
    """Make a socket as those of asyncio's servers, for which the kernel has this port alone to
    give."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
    except OSError as reason:
        made.close()
        left_out(f"Linux before 6.3 has no range of ports of a socket: {reason}")
    return made


def test_a_server_comes_and_goes_on_a_held_port() -> None:
    port = two_free_ports()
    for _ in range(ROUNDS):
        with (
            socket.create_server((HOST, port)) as server,
            socket.create_connection((HOST, port)),
        ):
            server.accept()[0].close()  # this side closes first: TIME_WAIT is on the port
        with socket.socket() as client:
            assert client.connect_ex((HOST, port)) == errno.ECONNREFUSED
        assert is_refused(port)


def test_nobody_answers_at_a_held_port() -> None:
    with refusing_url() as url, socket.socket() as client:
        port = int(url.rpartition(":")[2])
        assert client.connect_ex((HOST, port)) == errno.ECONNREFUSED and is_refused(port)


@pytest.mark.process
def test_a_node_has_its_ports_again_after_kill_9_and_a_stranger_never(tmp_path: Path) -> None:
    with ports_in_a_row(4) as port:
        listen, kafka = f"{HOST}:{port}", f"{HOST}:{port + 2}"
        flags = ("--cores", "2", "--listen", listen, "--kafka-listen", kafka)
        for _ in range(2):
            with running_node(tmp_path / "data", *flags) as node:
                assert ports_of(node) == [port, port + 1, port + 2]
                assert f"on ports {port + 2 + DIRECT_STEP} to {port + 3 + DIRECT_STEP}" in "".join(
                    node.log
                )
                node.kill()
            for each in (port, port + 1, port + 2, port + 2 + DIRECT_STEP):
                asked = [sys.executable, "-c", STRANGER, str(each)]
                ran = subprocess.run(asked, capture_output=True, text=True, check=False)
                assert "Address already in use" in ran.stderr


def ports_of(node: RunningNode) -> list[int]:
    return [int(each.rpartition(":")[2]) for each in (node.url, node.admin, node.kafka)]
