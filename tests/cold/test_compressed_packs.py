"""Compressed slices in packs: flushed, merged, read, and refused where something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import cramjam
import pytest
from google_crc32c import value as crc32c
from msgspec import structs
from worlds.cold import GROUPS, MERGE_SETTINGS, SETTINGS, FaultyStore, Tier

from polynya.base.errors import CorruptData
from polynya.base.names import group_of
from polynya.cold import ColdReader, reader
from polynya.cold.verifier import PackVerifier
from polynya.stream.parts import COMPRESSED
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.pack import PackBuilder, damaged_slices, pressed, read_footer
from polynya.wire.slice_building import build_slice

NAME = "default/a"
FLUSH = structs.replace(SETTINGS, slice_bytes_max=4000, zstd_level=3)
MERGE = structs.replace(MERGE_SETTINGS, slice_bytes_max=40_000, pack_bytes_max=80_000, zstd_level=3)


def play(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(story())  # type: ignore[arg-type]


def zstd_tier() -> Tier:
    tier = Tier(settings=FLUSH)
    tier.merger = tier.new_merger(MERGE)
    return tier


def level_of(tier: Tier) -> int:
    return tier.world.machines()[group_of(NAME, GROUPS)].counters.level


def flags_of(tier: Tier) -> set[int]:
    return {cold.flags for slices in tier.indexes().values() for cold in slices}


def test_packs_are_compressed_merged_and_read() -> None:
    async def story() -> None:
        tier = zstd_tier()
        for _ in range(20):
            tier.fill()
            await tier.flusher.flush_now()
        assert flags_of(tier) == {COMPRESSED}
        assert level_of(tier) == 4, "a node without peers gets the level with the first such slice"
        await tier.check()
        counters = tier.flusher.counters
        assert 0 < 3 * counters.stored_bytes < counters.bytes
        await tier.merger.merge_due()
        assert tier.merger.counters.slices > 0
        assert 0 < 3 * tier.merger.counters.stored_bytes < tier.merger.counters.bytes
        assert flags_of(tier) == {COMPRESSED}
        await tier.check()
        for pack, *_ in tier.store.objects.values():
            assert damaged_slices(pack) == []
            assert {entry.flags for entry in read_footer(pack).entries} == {COMPRESSED}

    play(story)


def test_a_merge_compresses_slices_of_before_and_both_kinds_are_read() -> None:
    async def story() -> None:
        tier = Tier(settings=structs.replace(FLUSH, zstd_level=0))
        for _ in range(10):
            tier.fill()
            await tier.flusher.flush_now()
        assert (flags_of(tier), level_of(tier)) == ({0}, 3)
        assert tier.flusher.counters.stored_bytes > tier.flusher.counters.bytes
        tier.flusher._settings = FLUSH
        for _ in range(10):
            tier.fill()
            await tier.flusher.flush_now()
        assert flags_of(tier) == {0, COMPRESSED}
        await tier.check()
        tier.merger = tier.new_merger(MERGE)
        await tier.merger.merge_due()
        assert flags_of(tier) == {COMPRESSED}
        await tier.check_merged()

    play(story)


def test_nothing_is_compressed_while_a_node_runs_an_older_release() -> None:
    async def story() -> None:
        tier = zstd_tier()
        tier.world.may_log = lambda machine, level: machine.counters.level >= level  # type: ignore[method-assign]
        for machine in tier.world.machines().values():
            machine.counters.level = 3
        for _ in range(20):
            tier.fill()
            await tier.flusher.flush_now()
        await tier.merger.merge_due()
        assert tier.merger.counters.slices
        assert (flags_of(tier), level_of(tier)) == ({0}, 3)
        for machine in tier.world.machines().values():
            machine.counters.level = 4
        tier.fill()
        await tier.flusher.flush_now()
        assert flags_of(tier) == {0, COMPRESSED}
        await tier.check()

    play(story)


def test_packs_are_verified_by_their_stored_bytes() -> None:
    async def story() -> None:
        tier = zstd_tier()
        tier.fill(streams=1)
        await tier.flusher.flush_now()
        verifier = PackVerifier(tier.world, tier.store)
        groups = range(GROUPS + 1)
        part = await verifier.verify("", groups)
        assert (part.packs, part.faults) == (1, [])
        (key,) = tier.store.objects
        data, *rest = tier.store.objects[key]
        cold = tier.indexes()["default/s0"][0]
        at = cold.offset + cold.stored - 5
        tier.store.objects[key] = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :], *rest
        part = await verifier.verify("", groups)
        assert [fault.kind for fault in part.faults] == ["damaged"]

    play(story)


async def packed(
    store: FaultyStore, size: int, change: Callable[[bytes], bytes] = lambda frame: frame
) -> tuple[ColdSlice, bytes]:
    """One pack with a compressed slice of so many bytes; `change` makes another frame of its
    payload."""
    payload = (b"%09d," * (size // 10)) % tuple(range(size // 10))
    records = [payload[at : at + 1000] for at in range(0, size, 1000)]
    batches = [
        HotBatch(at, at * 1000, 1, data, b"", crc32c(data), 5, 0, 0, 0)
        for at, data in enumerate(records)
    ]
    meta, (front, frame) = pressed(build_slice(0, 0, 0, batches), 3)
    frame = change(frame)
    meta = structs.replace(meta, stored=len(front + frame), crc=crc32c(front + frame))
    builder = PackBuilder()
    entry = builder.add(1, 1, (meta, [front, frame]))
    parts, _ = builder.finish(owner_group=1, created_ms=0)
    await store.put("pack", parts)
    return entry.at("pack", 0, 0), payload


@pytest.mark.parametrize("size", [10_000, 4 << 20])
def test_ranges_inside_of_a_slice_are_read_and_it_is_decompressed_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[object] = []
    to_thread = asyncio.to_thread

    async def noted(function: Callable[..., object], *arguments: object) -> object:
        threads.append(function)
        return await to_thread(function, *arguments)

    monkeypatch.setattr(reader.asyncio, "to_thread", noted)

    async def story() -> None:
        store = FaultyStore()
        cold, payload = await packed(store, size)
        assert cold.stored < cold.length // 3
        reading = ColdReader(store)
        calls = store.calls
        await asyncio.gather(*(reading.slice(cold) for _ in range(5)))
        for begin, end in ((0, 1), (3, 7), (size // 1000 - 1, size // 1000)):
            assert await reading.payload(cold, begin, end) == payload[begin * 1000 : end * 1000]
        assert store.calls == calls + 1
        assert len(threads) == (size > reader.THREAD_FROM_BYTES)
        assert size < reading.cached_bytes < 1.2 * size, "the stored bytes are not kept"

    play(story)


def test_a_bomb_and_a_corrupt_frame_are_damage_of_their_pack() -> None:
    async def story() -> None:
        bomb = bytes(cramjam.zstd.compress(bytes(200 << 20), level=3))
        for change in (lambda frame: frame[:50], lambda frame: bomb, lambda frame: b""):
            store = FaultyStore()
            cold, _ = await packed(store, 300_000, change)
            reading = ColdReader(store)
            with pytest.raises(CorruptData, match="zstd"):
                await reading.slice(cold)
            assert reading.damage.trouble() is not None
            assert reading.cached_bytes == 0

    play(story)


def test_a_slice_that_would_drive_out_others_is_not_fetched_ahead() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold, _ = await packed(store, 10 << 20)
        assert cold.stored <= reader.AHEAD_BYTES_MAX < cold.length
        reading = ColdReader(store)
        calls = store.calls
        reading.begin(cold)
        await asyncio.sleep(0)
        assert store.calls == calls
        await reading.close()

    play(story)
