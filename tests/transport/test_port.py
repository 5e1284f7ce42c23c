"""Stories of the peer port: connections whose coming in is broken off, and ones that are just
ending."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop
from polling import wait_for
from worlds.two_nodes import Node

from polynya.transport.handshake import LANE_ASK, MAGIC, PREAMBLE
from polynya.transport.link import FrameLink


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_node_closes_though_somebody_is_just_coming_in(tmp_path, run):
    """uvloop does not say `connection_lost` to one whose connecting is cancelled between
    `connection_made` and its end."""

    async def story():
        node = Node(tmp_path, 1)
        await node.start({})
        closing = []

        class StoppingSet(set):
            def add(self, connection):
                super().add(connection)
                closing.append(asyncio.ensure_future(node.stop()))

        connections = node.transports[0]._connections
        connections.inbound = StoppingSet()
        with socket.create_connection(("127.0.0.1", node.port)) as caller:
            caller.sendall(PREAMBLE.pack(MAGIC, 0, LANE_ASK))
            await wait_for(lambda: closing)
            async with asyncio.timeout(20):
                await closing[0]
            assert not connections.inbound
            caller.settimeout(20)
            assert caller.recv(1) == b""
        node.held.close()

    run(story())


def test_a_connection_that_is_just_ending_may_be_asked_what_is_unsent():
    """Ask for the unsent bytes of a closing TLS connection: its socket is gone one loop pass
    before uvloop reports the end."""

    class Ending:
        def get_write_buffer_size(self) -> int:
            return 7

        def get_extra_info(self, name: str) -> None:
            return None

    async def story():
        link = FrameLink(lambda: None, lambda *frame: None, lambda: None)
        link.transport = Ending()
        assert link.unsent == 7

    asyncio.run(story())
