"""Stories of links between nodes with certificates: of one authority, of another, of another node,
of none, and new ones."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from polling import wait_for
from worlds.two_nodes import ECHO, Node, each_loop, impatient  # noqa: F401 the fixtures

from polynya.cluster.certificates import make_authority, make_certificate, peer_tls
from polynya.transport import address
from polynya.transport.dialing import PeerTls

run = asyncio.run


pytestmark = pytest.mark.usefixtures("each_loop", "impatient")


def certified(folder: Path, node: int) -> PeerTls:
    make_certificate(folder, node, ["127.0.0.1"])
    return peer_tls(folder / "ca.crt", folder / f"node-{node}.crt", folder / f"node-{node}.key")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ca")
    make_authority(folder)
    return folder


def test_nodes_with_certificates_of_one_authority_talk(tmp_path, authority):
    async def story():
        one, two = Node(tmp_path, 1, cores=2), Node(tmp_path, 2, cores=2)
        await one.start({2: two.port}, tls=certified(authority, 1))
        await two.start({1: one.port}, tls=certified(authority, 2))
        await wait_for(lambda: one.seen and two.seen)
        body = bytes(2 << 20)
        assert await one.transports[0].call(address(2, 1), ECHO, body) == b"1.1: " + body
        await one.stop()
        await two.stop()
        one.held.close()
        two.held.close()

    run(story())


@pytest.mark.parametrize("case", ["another node's", "another authority's", "none"])
def test_who_shows_the_wrong_certificate_does_not_come_in(tmp_path, authority, caplog, case):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    make_authority(foreign)

    async def story():
        one, two = Node(tmp_path, 1), Node(tmp_path, 2)
        tls = {
            "another node's": lambda: certified(authority, 3),
            "another authority's": lambda: certified(foreign, 2),
            "none": lambda: None,
        }[case]()
        await one.start({2: two.port}, tls=certified(authority, 1))
        await two.start({1: one.port}, tls=tls)
        messages = lambda: {record.getMessage() for record in caplog.records}  # noqa: E731
        await wait_for(
            lambda: (
                "a node cannot be reached" in messages()
                and (
                    "a node was refused" in messages()
                    or "a connection to the peer port was refused" in messages()
                )
            )
        )
        assert one.seen == two.seen == []
        await one.stop()
        await two.stop()
        one.held.close()
        two.held.close()

    run(story())


def test_a_new_certificate_is_used_for_the_next_connection(tmp_path, authority, caplog):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    make_authority(foreign)

    async def story():
        one, two = Node(tmp_path, 1), Node(tmp_path, 2)
        await one.start({2: two.port}, tls=certified(authority, 1))
        await two.start({1: one.port}, tls=certified(foreign, 2))
        await wait_for(
            lambda: any(
                record.getMessage() == "a node cannot be reached" for record in caplog.records
            )
        )
        assert one.seen == two.seen == []
        made, known = certified(authority, 2), two.links.tls
        assert known is not None
        known.server, known.client = made.server, made.client
        await wait_for(lambda: one.seen and two.seen)
        await one.stop()
        await two.stop()
        one.held.close()
        two.held.close()

    run(story())


def test_a_key_of_somebody_else_is_an_error_at_the_start(tmp_path, authority):
    make_certificate(authority, 1, [])
    make_certificate(authority, 2, [])
    with pytest.raises((ssl.SSLError, OSError)):
        peer_tls(authority / "ca.crt", authority / "node-1.crt", authority / "node-2.key")
