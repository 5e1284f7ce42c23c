"""The whole way of a byte on stores that are real: a folder and an S3 server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from s3_server import s3_server  # noqa: F401  (a fixture)
from worlds.cold import CoreWorld

from polynya.cold import ColdReader, Collector, CollectorSettings, Flusher, FlushSettings
from polynya.objectstore import (
    StoreSettings,
    claim_root,
    open_store,
    owns_root,
    prove_conditional_writes,
)
from polynya.wire.pack import FOOTER_GUESS_BYTES, read_footer
from polynya.wire.slices import parse_slice


@pytest.mark.parametrize("backend", ["local", pytest.param("s3", marks=pytest.mark.process)])
def test_flush_read_describe_and_delete(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    settings = StoreSettings(root=str(tmp_path))
    if backend == "s3":
        settings = StoreSettings(**request.getfixturevalue("s3_server").settings())

    async def story() -> None:
        store = open_store(settings)
        assert store is not None
        await prove_conditional_writes(store)
        claim = await claim_root(store, "c1", 1, "start")
        world = CoreWorld()
        written = {}
        for stream in range(20):
            name = f"default/s{stream}"
            world.create(name)
            pieces = [b"%d-%d;" % (stream, number) * 1000 for number in range(30)]
            for piece in pieces:
                world.append(name, piece)
            written[name] = b"".join(pieces)
        flusher = Flusher(world, store, FlushSettings(pack_bytes_max=1 << 20), "c1")
        await flusher.flush_now()
        assert flusher.counters.packs > 2
        reader = ColdReader(store)
        for name, payload in written.items():
            assert await world.read(name, reader) == payload
        keys = [info.key async for info in store.list("c1/packs/")]
        assert len(keys) == flusher.counters.packs
        found: dict[int, dict[int, bytes]] = {}
        for key in keys:  # in any order: the footers say what belongs where
            info = await store.head(key)
            tail_bytes = min(info.size, FOOTER_GUESS_BYTES)
            footer = read_footer(await store.get_range(key, info.size - tail_bytes, tail_bytes))
            for entry in footer.entries:
                assert bool(entry.path) == (entry.base_byte == 0)
                stored = await store.get_range(key, entry.offset, entry.stored)
                found.setdefault(entry.uid, {})[entry.base_byte] = bytes(
                    parse_slice(stored, entry.crc).payload
                )
        whole = [
            b"".join(payload for _, payload in sorted(slices.items())) for slices in found.values()
        ]
        assert sorted(whole) == sorted(written.values())
        for name in written:
            world.delete(name)
        world.deliver()
        world.now += 120_000
        collector = Collector(
            world,
            store,
            CollectorSettings(),
            packs_prefix="c1/packs/",
            in_flight=flusher.in_flight,
            owns_root=lambda: owns_root(store, claim),
            sweep_deletes=True,
        )
        await collector.collect()
        assert [info.key async for info in store.list("c1/")] == []
        await reader.close()
        await store.close()

    asyncio.run(story())
