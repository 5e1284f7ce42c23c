"""Attacks on the peer port of a node of a cluster, by who has no certificate: the clients of the
node are served meanwhile, and its loop has no turn of a quarter of a second of its own CPU time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from fuzz.cluster import FuzzCluster
from worlds.attacked_node import AttackedNode, attacked_node, unharmed

from polynya.transport.handshake import LANE_ASK, MAGIC, PREAMBLE
from polynya.transport.link import FRAME_BYTES_MAX, HEADER, FrameType
from polynya.transport.port import REFUSED

pytestmark = pytest.mark.process
MIB = 1024 * 1024
CONNECTIONS = 3000
ROUNDS = 3  # of the bystander, while connections of an attack are held
_PREAMBLE = PREAMBLE.pack(MAGIC, 0, LANE_ASK)
Address = tuple[str, int]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AttackedNode, Address]]:
    """Yield the only node of a cluster with certificates, and its peer port."""
    folder = tmp_path_factory.mktemp("attacked")
    cluster = FuzzCluster(folder, nodes=1)
    settings = cluster.settings(1)
    text = settings.read_text().replace("unsafe_no_auth = true\n", "").replace("groups = 4\n", "")
    settings.write_text(text.replace("cores = 1\n", ""))
    listen = f"127.0.0.1:{cluster.ports[1]}"
    with attacked_node(folder, "--config", str(settings), "--listen", listen) as node:
        yield node, ("127.0.0.1", cluster.peers[1])


def wrapped(line: socket.socket) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(line, server_hostname="node-1.polynya.internal")


def in_clear(line: socket.socket) -> socket.socket:
    return line


@pytest.mark.parametrize("begun", [in_clear, wrapped])
@pytest.mark.parametrize("size", [FRAME_BYTES_MAX, 2**32 - 1])
def test_the_largest_frame_without_a_certificate(
    attacked: tuple[AttackedNode, Address],
    size: int,
    begun: Callable[[socket.socket], socket.socket],
) -> None:
    node, address = attacked
    spent = node.cpu_seconds()
    with unharmed(node):
        for _ in range(10):
            with suppress(OSError), socket.create_connection(address, 20) as line:
                line.sendall(_PREAMBLE)
                speaker = begun(line)
                speaker.sendall(HEADER.pack(size, FrameType.HELLO, 0, 0, 0))
                for _ in range(FRAME_BYTES_MAX // MIB):
                    speaker.sendall(bytes(MIB))
                while speaker.recv(65_536):
                    pass
    assert node.cpu_seconds() - spent < 4
    assert any(REFUSED in line for line in node.node.log)


@pytest.mark.parametrize("said", [b"", _PREAMBLE[:-1], _PREAMBLE, _PREAMBLE + b"\x16\x03\x01"])
def test_idle_connections_to_the_peer_port(
    attacked: tuple[AttackedNode, Address], said: bytes
) -> None:
    node, address = attacked
    with ExitStack() as stack, unharmed(node) as bystander:
        for _ in range(CONNECTIONS):
            line = stack.enter_context(socket.create_connection(address, 20))
            with suppress(OSError):
                line.sendall(said)
        bystander.wait_rounds(ROUNDS)
        assert node.core.num_fds() < CONNECTIONS
