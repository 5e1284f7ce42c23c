"""Idle connections without authentication leave room for known callers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import cast

import pytest
from front.test_kafka_access import Gate, produced
from worlds.kafka import KafkaWorld, play
from worlds.service import World

from polynya.front.common.unauthenticated import AUTHENTICATION_SECONDS, Unauthenticated
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.text.protocol import pack_frame
from polynya.front.text.server import TextFront
from polynya.front.text.topics import NodeView

CONNECTIONS_MAX = 16


def test_the_network_with_the_most_loses_its_oldest() -> None:
    found = Unauthenticated[str](16)
    dropped = [
        found.add(name, address, is_full=False)
        for name, address in [
            ("a", "10.0.0.1"),
            ("b", "10.0.0.2"),
            ("c", "10.0.0.2"),
            ("d", "2001:db8::1"),
            ("e", "10.0.0.3"),
            ("f", "2001:db8::2"),
        ]
    ]
    assert dropped == [None, None, None, None, "b", "a"]
    assert len(found) == 4
    for name in "acdef":
        found.remove(name)
    assert len(found) == 0
    assert not found._oldest_first


def test_known_callers_come_in_beside_idle_strangers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(tmp_path)
    gate.token("shop", "all")

    async def story(world: KafkaWorld) -> None:
        await world.topic("t")
        idle = [await world.wire() for _ in range(3 * CONNECTIONS_MAX)]
        known = []
        for _ in range(CONNECTIONS_MAX - CONNECTIONS_MAX // 4):
            known.append(await gate.wire(world, "shop"))
            idle.append(await world.wire())
        for wire in known:
            assert await produced(wire, "t") == 0
        assert await idle[0].ended()
        counters = world.front.context.counters
        assert counters.unauthenticated <= CONNECTIONS_MAX // 4
        assert counters.connections_dropped >= 2 * CONNECTIONS_MAX
        said = [record.message for record in caplog.records]
        assert said == ["dropped a Kafka connection before authentication: there are too many"]
        while counters.unauthenticated or len(world.front.connections) < CONNECTIONS_MAX:
            known.append(await gate.wire(world, "shop"))
        assert await (await world.wire()).ended()
        assert counters.connections_refused == 1

    play(story, KafkaProtection(gate.access), CONNECTIONS_MAX)


def test_a_port_without_authentication_says_that_it_is_full(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: KafkaWorld) -> None:
        for _ in range(CONNECTIONS_MAX):
            await (await world.wire()).ask("ApiVersions", 0)
        for _ in range(3):
            assert await (await world.wire()).ended()
        said = [record.message for record in caplog.records]
        assert said == ["refused a Kafka connection: there are too many"]
        assert world.front.context.counters.unauthenticated == 0
        await asyncio.sleep(0)

    play(story, connections_max=CONNECTIONS_MAX)


class Text:
    """A front of the text protocol with a clock, and a client's connections."""

    def __init__(self, folder: Path) -> None:
        self.gate = Gate(folder)
        self.core = World().start()
        self.front = TextFront(
            self.core.service,
            cast(NodeView, None),
            connections_max=CONNECTIONS_MAX,
            access=self.gate.access,
        )
        self.clock = 1000.0
        self.front.now = lambda: self.clock  # type: ignore[method-assign]
        self.port = 0

    async def start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        await self.front.start([listener])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def authenticated(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.connect()
        writer.write(pack_frame(f"AUTH {self.gate.texts['shop']}"))
        assert await reader.readexactly(6) == pack_frame("OK")
        return reader, writer

    def sweep(self, seconds: float) -> None:
        self.clock += seconds
        for connection in tuple(self.front.connections):
            connection.sweep(self.clock)


def test_the_text_port_has_a_deadline_and_a_reserve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        text = Text(tmp_path)
        text.gate.token("shop", "all")
        await text.start()
        idle = [await text.connect() for _ in range(2 * CONNECTIONS_MAX)]
        reader, _ = await text.authenticated()
        assert len(text.front.unauthenticated) <= CONNECTIONS_MAX // 4
        assert text.front.counters.dropped >= CONNECTIONS_MAX
        assert await idle[0][0].read() == b""
        text.sweep(AUTHENTICATION_SECONDS)
        assert len(text.front.unauthenticated) > 0
        text.sweep(1)
        assert await idle[-1][0].read() == b""
        assert len(text.front.unauthenticated) == 0
        assert len(text.front.connections) == 1
        assert not reader.at_eof()
        assert [record.message for record in caplog.records] == [
            "dropped a connection of the text protocol before AUTH",
            "closing a connection of the text protocol: no AUTH in time",
        ]
        await text.front.stop(0.0)
        await text.core.stop()

    asyncio.run(run())
