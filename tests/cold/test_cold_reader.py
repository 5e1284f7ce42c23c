"""The cold reader: one fetch for all, a bounded cache, and no belief in damaged bytes."""

from __future__ import annotations

import asyncio

import pytest
from google_crc32c import value as crc32c
from worlds.cold import FaultyStore

from polynya.base.errors import CorruptData, Unavailable
from polynya.cold import ColdReader
from polynya.stream.state.model import ColdSlice, HotBatch
from polynya.wire.pack import PackBuilder
from polynya.wire.slice_building import build_slice


async def packed(store: FaultyStore, slices: int = 3, size: int = 100) -> list[ColdSlice]:
    """One pack with slices of two records each, as the index names them."""
    builder = PackBuilder()
    entries = []
    for number in range(slices):
        payloads = [b"%d" % number * size, b"tail"]
        batches = [
            HotBatch(n, n * size, 1, data, b"", crc32c(data), 5, 0, 0, 0)
            for n, data in enumerate(payloads)
        ]
        entries.append(builder.add(number, 1, build_slice(0, 0, 0, batches)))
    parts, _ = builder.finish(owner_group=1, created_ms=0)
    await store.put("pack", parts)
    return [
        ColdSlice(10, 1000, each.records, each.length, "pack", each.offset, each.stored, each.crc)
        for each in entries
    ]


def test_batches_and_payload_are_where_the_index_says() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[1]
        reader = ColdReader(store)
        (run,) = await reader.batches(cold)
        assert (run.record, run.byte, run.records, bytes(run.payload)) == (
            10,
            1000,
            2,
            b"1" * 100 + b"tail",
        )
        assert await reader.payload(cold, 11, 12) == b"tail"
        assert await reader.payload(cold, 10, 12) == b"1" * 100 + b"tail"
        with pytest.raises(ValueError):
            await reader.payload(cold, 9, 12)

    asyncio.run(story())


def test_many_who_ask_at_once_share_one_fetch() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        reader = ColdReader(store)
        calls = store.calls
        found = await asyncio.gather(*(reader.slice(cold) for _ in range(10)))
        assert store.calls == calls + 1
        assert all(each is found[0] for each in found)
        await reader.slice(cold)
        assert (reader.counters.hits, reader.counters.misses, store.calls) == (1, 10, calls + 1)

    asyncio.run(story())


def test_one_who_leaves_does_not_end_the_fetch_of_others() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        reader = ColdReader(store)
        leaving, staying = (
            asyncio.create_task(reader.slice(cold)),
            asyncio.create_task(reader.slice(cold)),
        )
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).records == 2

    asyncio.run(story())


def test_a_failed_fetch_is_not_kept() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        reader = ColdReader(store)
        store.fail_at = store.calls + 1
        outcomes = await asyncio.gather(
            reader.slice(cold), reader.slice(cold), return_exceptions=True
        )
        assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
        assert (await reader.slice(cold)).records == 2

    asyncio.run(story())


def test_the_cache_is_bounded_and_forgets_the_least_used() -> None:
    async def story() -> None:
        store = FaultyStore()
        slices = await packed(store, slices=4, size=1000)
        one = slices[0].stored
        reader = ColdReader(store, cache_bytes=2 * one + 200)
        for cold in (slices[0], slices[1], slices[0], slices[2]):
            await reader.slice(cold)
        assert 0 < reader.cached_bytes <= 2 * one + 200
        calls = store.calls
        await reader.slice(slices[0])
        assert store.calls == calls
        await reader.slice(slices[1])
        assert store.calls == calls + 1
        tiny = ColdReader(store, cache_bytes=10)
        await tiny.slice(slices[0])
        assert tiny.cached_bytes == 0

    asyncio.run(story())


def test_damage_is_raised_and_not_kept() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        good, version, modified = store.objects["pack"]
        reader = ColdReader(store)
        for at in range(cold.offset, cold.offset + cold.stored):
            broken = bytearray(good)
            broken[at] ^= 0x10
            store.objects["pack"] = (bytes(broken), version, modified)
            with pytest.raises(CorruptData):
                await reader.slice(cold)
        store.objects["pack"] = (good[: cold.offset + 10], version, modified)
        with pytest.raises(CorruptData, match="shorter"):
            await reader.slice(cold)
        store.objects["pack"] = (good, version, modified)
        assert (await reader.slice(cold)).records == 2

    asyncio.run(story())


def test_another_slice_than_the_index_names_is_refused() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        wrong = ColdSlice(
            cold.record, cold.byte, 3, cold.length, cold.pack, cold.offset, cold.stored, cold.crc
        )
        with pytest.raises(CorruptData, match="does not match its index entry"):
            await ColdReader(store).slice(wrong)

    asyncio.run(story())


def test_close_ends_fetches() -> None:
    async def story() -> None:
        store = FaultyStore()
        cold = (await packed(store))[0]
        reader = ColdReader(store)
        asking = asyncio.create_task(reader.slice(cold))
        await asyncio.sleep(0)
        await reader.close()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(story())
