"""The listeners of a core: one loop opens, measures and stops the fronts of all protocols."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from polynya.admin.listeners import Listener, Listeners
from polynya.config.core_start import Address
from polynya.cost import UsageHistory
from polynya.observability.metrics import Registry


class Echo:
    """A front that greets every client."""

    def __init__(self, name: str, events: list[str]) -> None:
        self._name, self._events = name, events
        self._servers: list[asyncio.Server] = []
        self.addresses: list[tuple[str, int]] = []

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        for listener in sockets:
            self.addresses.append(listener.getsockname())
            self._servers.append(await asyncio.start_server(self._greet, sock=listener))

    async def stop(self, grace: float) -> None:
        self._events.append(f"{self._name} stops")
        for server in self._servers:
            server.close()
        if self._servers:
            await asyncio.sleep(0)
        self._events.append(f"{self._name} stopped")

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._name.encode())
        writer.close()


def test_every_front_is_opened_at_its_address_measured_and_stopped(tmp_path: Path) -> None:
    async def run() -> None:
        events: list[str] = []
        registry = Registry()
        fronts = {name: Echo(name, events) for name in ("http", "kafka")}
        addresses = {"kafka": Address("127.0.0.1", 0), "http": Address("127.0.0.1", 0)}
        listeners = Listeners(
            [
                Listener("http", fronts["http"], (lambda: {"polynya_http_connections": 7},)),
                Listener("kafka", fronts["kafka"], (lambda: {"polynya_kafka_connections": 8},)),
            ],
            addresses,
            registry,
            UsageHistory(tmp_path, 0, 1),
        )
        await listeners.open()
        for name, front in fronts.items():
            reader, writer = await asyncio.open_connection(*front.addresses[0])
            assert await reader.read() == name.encode()
            writer.close()
        assert registry.read() == {"polynya_http_connections": 7, "polynya_kafka_connections": 8}
        await listeners.close()
        assert events == ["http stops", "kafka stops", "http stopped", "kafka stopped"], (
            "a slow front does not delay the others"
        )
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*fronts["kafka"].addresses[0])

    asyncio.run(run())


def test_what_never_opened_is_stopped_too(tmp_path: Path) -> None:
    async def run() -> None:
        events: list[str] = []
        await Listeners(
            [Listener("text", Echo("text", events))],
            {"text": Address("127.0.0.1", 0)},
            Registry(),
            UsageHistory(tmp_path, 0, 1),
        ).close()
        assert events == ["text stops", "text stopped"]

    asyncio.run(run())


def test_a_listener_without_a_reserved_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="kafka"):
        Listeners(
            [Listener("kafka", Echo("kafka", []))], {}, Registry(), UsageHistory(tmp_path, 0, 1)
        )
