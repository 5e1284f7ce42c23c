"""Live readers of diskless streams: a commit has no payload for them, so they read, and nothing
polls."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from front_world import World, play
from polling import turns
from test_live import control
from worlds.kafka import KafkaWorld, batch, fetch_fields
from worlds.kafka import play as play_kafka
from worlds.packed_appends import PackedAppends

from polynya.base.names import canonical_name, partition_name
from polynya.cold import ColdReader
from polynya.front.http.protocol.settings import HttpSettings
from polynya.objectstore import MemoryStore
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Encoding
from polynya.wire.kafka.batches import batches_of, header_of

TEXT = "text/plain"


async def diskless(world: World, name: str, content_type: str = TEXT) -> PackedAppends:
    """Create a diskless stream, and return its writer."""
    store = MemoryStore()
    service = world.service
    service.local.reads.cold = ColdReader(store)
    encoding = Encoding.JSON if content_type == "application/json" else Encoding.BYTES
    create = Create(
        canonical_name(name), service.clock, content_type, encoding, profile=Profile.DISKLESS
    )
    created = asyncio.get_running_loop().create_future()
    service.propose(create.name, create, created.set_result)
    await created
    return PackedAppends(service, store)


class Reads:
    """Counts the reads that a service serves."""

    def __init__(self, service: object, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        for name in ("read", "read_nowait"):
            self._count(service, name, patch)

    def _count(self, service: object, name: str, patch: pytest.MonkeyPatch) -> None:
        original = getattr(service, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            self.counts[name] += 1
            return original(*arguments, **more)

        patch.setattr(service, name, counted)


def test_an_sse_reader_gets_each_commit() -> None:
    async def story(world: World) -> None:
        writer = await diskless(world, "s", "application/json")
        await writer.append(canonical_name("s"), b"1,", b"2,", content_type="application/json")
        reader = await world.sse("s")
        assert b"data:[1,2]\n" in await reader.chunk()
        for number in (3, 5):
            await writer.append(
                canonical_name("s"),
                *(b"%d," % each for each in (number, 0, number + 1)),
                content_type="application/json",
                refused={1},
            )
            piece = await reader.chunk()
            assert b"event: data\ndata:[%d,%d]\n" % (number, number + 1) in piece
            assert control(piece)["streamNextOffset"] == f"{number + 1:016d}_{2 * number + 2:016d}"
            assert control(piece)["upToDate"] is True
        await writer.append(canonical_name("s"), b"7,", content_type="application/json", close=True)
        piece = await reader.chunk()
        assert b"data:[7]\n" in piece
        assert control(piece)["streamClosed"] is True
        assert await reader.chunk() == b""

    play(story)


def test_an_sse_reader_that_waits_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        writer = await diskless(world, "s")
        reader = await world.sse("s")
        await reader.chunk()
        reads = Reads(world.service.reads, monkeypatch)
        await turns()
        assert not reads.counts
        await writer.append(canonical_name("s"), b"one", b"two")
        assert b"b25ldHdv" in (piece := await reader.chunk()) or b"onetwo" in piece
        assert reads.counts["read"] == 1

    play(story)


def test_a_long_poll_is_answered_by_the_commit() -> None:
    async def story(world: World) -> None:
        writer = await diskless(world, "s")
        waiting = world.meanwhile(world.get("s", "?live=long-poll&offset=-1"))
        await world.until(lambda: world.front.readers.waiters)
        await writer.append(canonical_name("s"), b"no", b"one", refused={0})
        answer = await waiting
        assert (answer.status, answer.body) == (200, b"one")
        assert answer.headers["stream-up-to-date"] == "true"

    play(story, settings=HttpSettings(long_poll_seconds=30))


def test_a_fetch_at_the_tail_waits_for_the_commit_and_reads_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 2)
        writer = PackedAppends(world.core.service, world.core.store)
        names = [partition_name("t", number) for number in range(2)]
        for name in names:
            await writer.turn(name)
        wire = await world.wire()
        reads = Reads(world.core.service.reads, monkeypatch)
        waiting = asyncio.create_task(
            wire.ask("Fetch", 11, **fetch_fields("t", 0, 0, max_wait_ms=30_000, min_bytes=1))
        )
        while not any(each.session.parked for each in world.front.connections):
            await asyncio.sleep(0)
        before = +reads.counts
        await turns()
        assert reads.counts == before
        await writer.produce(names[1], (2, batch(b"a", b"b")), (1, batch(b"c")))
        message = await waiting
        found = [
            (each.high_watermark, len(list(batches_of(each.records or b""))))
            for each in message.responses[0].partitions
        ]
        assert found == [(0, 0), (3, 2)]
        assert reads.counts["read"] - before["read"] == 1

    play_kafka(story)


def test_a_fetch_reads_commits_in_order() -> None:
    async def story(world: KafkaWorld) -> None:
        await world.topic("t", 1)
        store = world.core.store
        assert isinstance(store, MemoryStore)
        writer = PackedAppends(world.core.service, store)
        name = partition_name("t", 0)
        await writer.turn(name)
        for number in range(3):
            await writer.produce(name, (1, batch(b"%d" % number)))
        wire = await world.wire()
        message = await wire.ask("Fetch", 11, **fetch_fields("t", 0))
        (part,) = message.responses[0].partitions
        assert [header_of(bytes(each)).base_offset for each in batches_of(part.records)] == [
            0,
            1,
            2,
        ]

    play_kafka(story)
