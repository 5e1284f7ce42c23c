"""Reads of compressed packs over the paths of clients give the bytes of raw ones."""

from __future__ import annotations

import pytest
import worlds.service
from msgspec import structs
from stories.service import story
from worlds.kafka import KafkaWorld, batch, fetch_fields, play, produce_fields
from worlds.service import World

from polynya.stream.features.profiles.commands import Profile
from polynya.stream.replies import Code
from polynya.wire.kafka.batches import batches_of

NAME = "docs/a"
BODIES = [b"%03d the same words again and again;" % number * 40 for number in range(6)]
WHOLE = b"".join(BODIES)


@pytest.fixture(autouse=True)
def zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, diskless = worlds.service.FLUSH, worlds.service.DISKLESS
    monkeypatch.setattr(worlds.service, "FLUSH", structs.replace(flush, zstd_level=3))
    monkeypatch.setattr(worlds.service, "DISKLESS", structs.replace(diskless, zstd_level=1))


def check_compressed(world: World, name: str = NAME) -> None:
    machine = world.local.machines[world.service.group_of(name)]
    stream = machine.directory.streams[name]
    entries = list(machine.packs.index_of(stream))
    assert entries and not stream.hot
    assert all(cold.is_compressed for cold in entries)


@story
@pytest.mark.parametrize("profile", [Profile.NAMED_REPLICATED, Profile.DISKLESS])
async def test_pages_begin_anywhere_and_forks_at_any_byte(world: World, profile: int) -> None:
    await world.create(NAME, profile=profile)
    for body in BODIES:
        await world.append(NAME, body)
    await world.flusher.flush_now()
    check_compressed(world)
    await world.reader.close()
    world.local.reads.cold = type(world.reader)(world.store)
    for size in (1, 777, 1 << 20):
        assert await world.read(NAME, bytes_max=size) == WHOLE
    before = world.local.reads.cold.counters.misses
    for record, body in enumerate(BODIES):
        page = await world.page(NAME, record, bytes_max=1)
        assert b"".join(bytes(span.payload) for span in page.spans).startswith(body[:1])
    assert world.local.reads.cold.counters.misses == before, "each slice was decompressed once"
    for number, sub in enumerate((1, 13, len(BODIES[0]) - 1)):
        reply = await world.fork(f"docs/fork{number}", NAME, (2, 2 * len(BODIES[0])), sub)
        assert reply.code == Code.CREATED
        assert await world.read(f"docs/fork{number}") == WHOLE[: 2 * len(BODIES[0]) + sub]


@pytest.mark.parametrize("part_bytes", [1, 3000, 1 << 20])
def test_a_fetch_gets_the_batches_that_were_produced(part_bytes: int) -> None:
    async def tale(world: KafkaWorld) -> None:
        await world.topic("t")
        wire = await world.wire()
        produced = [batch(*[body] * 3) for body in BODIES]
        for each in produced:
            answer = await wire.ask("Produce", 9, **produce_fields("t", each))
            assert answer.responses[0].partition_responses[0].error_code.value == 0
        await world.core.flusher.flush_now()
        check_compressed(world.core, "kafka/t/0")
        found: list[bytes] = []
        while len(found) < len(produced):
            fields = fetch_fields("t", 3 * len(found), partition_max_bytes=part_bytes)
            answer = await wire.ask("Fetch", 11, **fields)
            records = answer.responses[0].partitions[0].records
            found += [bytes(each) for each in batches_of(records)]
        assert [each[16:] for each in found] == [each[16:] for each in produced]

    play(tale)
