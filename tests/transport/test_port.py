"""Stories of the peer port: a connection whose coming in is broken off."""

from __future__ import annotations

import asyncio
import socket

import pytest
import uvloop
from two_nodes import Node, until

from polynya.transport.hello import LANE_ASK, MAGIC, PREAMBLE


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_node_closes_though_somebody_is_just_coming_in(tmp_path, run):
    """uvloop does not say `connection_lost` to one whose connecting is cancelled between `connection_made` and its end."""

    async def story():
        node = Node(tmp_path, 1)
        await node.start({})
        closing = []

        class Guests(set):
            def add(self, guest):
                super().add(guest)
                closing.append(asyncio.ensure_future(node.stop()))

        house = node.transports[0]._house
        house.guests = Guests()
        with socket.create_connection(("127.0.0.1", node.port)) as caller:
            caller.sendall(PREAMBLE.pack(MAGIC, 0, LANE_ASK))
            await until(lambda: closing)
            async with asyncio.timeout(20):
                await closing[0]
            assert not house.guests
            caller.settimeout(20)
            assert caller.recv(1) == b""
        node.held.close()

    run(story())
