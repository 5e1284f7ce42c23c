"""The memory of responses that clients do not read: shares, the reserve, and small readers beside
many stalled ones."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from front_world import Wire, World, play, request

from polynya.base.limits import (
    RAW_STEP_BYTES,
    RESPONSE_BYTES_PER_CORE,
    RESPONSE_RESERVE_BYTES_PER_CORE,
)
from polynya.front.common import response_memory

STALLED = 800
READS = 300


def test_clients_that_read_nothing_hold_a_share_and_a_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polynya.front.common.response_memory.RESPONSE_BYTES_PER_CORE", 8 << 20)
    monkeypatch.setattr(
        "polynya.front.common.response_memory.RESPONSE_RESERVE_BYTES_PER_CORE", 4 << 20
    )

    async def story(world: World) -> None:
        for name, size in (("large", 8 << 20), ("small", 100)):
            await world.put(name, "text/plain")
            await world.post(name, b"x" * size, "text/plain")
        await world.put("json")
        await world.post("json", b"[" + b",".join([b'"%s"' % (b"x" * (3 << 20))] * 2) + b"]")
        memory = world.front.context.memory

        await stalled_wire(world, "/v1/stream/large")
        held = sum(each.bytes for each in memory.unread.values())
        assert 3 << 20 < held <= (4 << 20) + 1000, "the kernel has taken some"
        cut = await world.get("large", "?max_bytes=8388608")
        left = (8 << 20) - held
        assert cut.status == 200 and left - RAW_STEP_BYTES < len(cut.body) <= left, (
            "what is left of the share"
        )
        await stalled_wire(world, "/v1/stream/large?max_bytes=8388608")
        assert memory.reserve_bytes == 0
        cut = await world.get("large", "?max_bytes=8388608")
        assert (cut.status, len(cut.body)) == (200, RAW_STEP_BYTES), (
            "the share is used up: the shortest page"
        )
        cut = await world.get("json", "?max_bytes=8388608")
        assert cut.status == 200 and len(cut.body) == (3 << 20) + 4, "one record"
        assert (await world.get("small")).body == b"x" * 100
        live = await world.sse("large")
        assert await live.chunk()
        while memory.reserve_bytes < 4 << 20:
            await stalled_wire(world, "/v1/stream/json")
        refused = await world.get("small")
        assert (refused.status, refused.error, refused.headers["retry-after"]) == (
            503,
            "RESPONSE_MEMORY_LIMIT",
            "1",
        )
        refused = await world.get("small", "?live=long-poll&offset=-1")
        assert (refused.status, refused.error) == (503, "RESPONSE_MEMORY_LIMIT")
        assert (await world.head("small")).status == 200
        for wire in world.wires:
            wire.close()
        await world.until(lambda: not memory.unread)
        assert memory.reserve_bytes == 0
        assert len((await world.get("large", "?max_bytes=8388608")).body) == 8 << 20

    play(story)


def test_another_address_has_a_share_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.front.common.response_memory.RESPONSE_BYTES_PER_CORE", 8 << 20)
    monkeypatch.setattr("polynya.front.common.response_memory.RESPONSE_RESERVE_BYTES_PER_CORE", 0)

    async def story(world: World) -> None:
        await world.put("large", "text/plain")
        await world.post("large", b"x" * (8 << 20), "text/plain")
        memory = world.front.context.memory
        for _ in range(2):
            await stalled_wire(world, "/v1/stream/large?max_bytes=8388608")
        assert (await world.get("large")).status == 503
        stranger = await asyncio.open_connection(
            "127.0.0.1", world.port, local_addr=("127.0.0.2", 0)
        )
        other = Wire(*stranger)
        world.wires.append(other)
        other.send(request("GET", "/v1/stream/large"))
        page = await other.answer()
        assert page.status == 200 and len(page.body) == 4 << 20, "half of it"
        assert memory.unread

    play(story)


@pytest.mark.parametrize(
    ("address", "caller"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::ffff:192.0.2.7", "::ffff:192.0.2.7"),
        ("", ""),
    ],
)
def test_one_host_is_one_caller(address: str, caller: str) -> None:
    assert response_memory.network_of(address) == caller


def test_small_reads_beside_800_stalled_connections_cost_as_much_as_alone() -> None:
    async def story(world: World) -> None:
        await world.put("large", "text/plain")
        await world.post("large", b"x" * (8 << 20), "text/plain")
        await world.put("small", "text/plain")
        await world.post("small", b"y" * 100, "text/plain")
        reader = await world.wire()

        async def read() -> None:
            reader.send(request("GET", "/v1/stream/small"))
            page = await reader.answer()
            assert (page.status, page.body) == (200, b"y" * 100)

        async def calls_of_reads() -> int:
            await read()
            with product_calls() as calls:
                for _ in range(READS):
                    await read()
            return sum(calls.values())

        alone = await calls_of_reads()
        for _ in range(STALLED):
            await stalled_wire(world, "/v1/stream/large?max_bytes=8388608")
        beside = await calls_of_reads()
        assert READS <= alone <= beside <= 2 * alone, (alone, beside)
        held = sum(each.bytes for each in world.front.context.memory.unread.values())
        assert held <= RESPONSE_BYTES_PER_CORE + RESPONSE_RESERVE_BYTES_PER_CORE

    play(story)


@contextmanager
def product_calls() -> Iterator[Counter[str]]:
    """Count the calls of the product's functions."""
    calls: Counter[str] = Counter()

    def note(frame: FrameType, event: str, given: object) -> None:
        if event == "call" and "/polynya/" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


async def stalled_wire(world: World, target: str) -> None:
    """A connection that asks and reads nothing, of which the kernel holds very little."""
    front = world.front
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    known = set(front.connections)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", world.port))
    world.wires.append(Wire(*await asyncio.open_connection(sock=sock, limit=1)))
    await world.until(lambda: set(front.connections) - known)
    (connection,) = set(front.connections) - known
    transport = connection.peer.responses.transport
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    before = front.counters.statuses[200] + front.counters.statuses[503]
    world.wires[-1].send(request("GET", target))
    await world.until(lambda: front.counters.statuses[200] + front.counters.statuses[503] > before)
    await asyncio.sleep(0)
