"""Recovery after the loss of all nodes from group copies of different moments. Later flushes are
found without them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from google_crc32c import value as crc32c
from sim.clock import WALL_MS
from sim.cluster import Node, World
from sim.loss import Recovered, Target
from sim.store import SimStore
from sim.tier import CLUSTER, chance_of
from stories.cluster import A, led, stories

from polynya.backup.streams import streams_of
from polynya.cold import Collector
from polynya.objectstore import MemoryStore, claim_root
from polynya.recovery.from_store import FromStore
from polynya.recovery.restore import Restorer
from polynya.stream.parts import Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder, pack_key
from polynya.wire.slice_building import build_slice

COPIES = f"{CLUSTER}/copies/{1:020d}/"
PART = b"0123456789" * 10


async def begun() -> tuple[World, Node]:
    """Start one node, where all groups are flushed to the same packs."""
    loop = asyncio.get_running_loop()
    return await led(
        World(count=1, store=SimStore(1, lambda: int(loop.time() * 1000) + WALL_MS - 1_000_000))
    )


@pytest.fixture(autouse=True)
def chance(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def nothing(_: Collector) -> None:
        await asyncio.Event().wait()

    # the packs of the first round are there still: which of them are needed is another question
    monkeypatch.setattr(Collector, "run", nothing)
    with chance_of(1):
        yield


story = stories(begun, World.wait_equal)


async def recovered(
    objects: dict[str, object], warnings: list[str] | None = None
) -> dict[str, bytes]:
    """The streams that a recovery from these objects finds, which gives these warnings."""
    store = MemoryStore()
    store.objects = objects  # type: ignore[assignment]
    await claim_root(store, CLUSTER, 1, "lost")
    states = await FromStore.open(store)
    target = Target(states)
    done = await Restorer(states, [target], store, lambda key: key).run()  # type: ignore[list-item]
    assert done.warnings == (warnings or [])
    library = Recovered(store, target.machines)
    return {
        stream.name: b"".join([piece.payload async for piece in library.pieces(machine, stream)])
        for machine in target.machines.values()
        for stream in streams_of(machine)
    }


@story
async def test_a_pack_that_one_group_knows_is_looked_into_for_the_others(
    world: World, node: Node
) -> None:
    other = next(
        name
        for name in (f"other-{number}" for number in range(99))
        if world.group_of(name) != world.group_of(A)
    )
    store = world.store
    assert store is not None

    async def written(times: int) -> dict[str, object]:
        """Return the store once the current appends are in packs, and these in the copies of both
        groups."""
        for name in (A, other):
            for _ in range(times):
                await node.append(name, PART)
        await world.wait(
            lambda: not any(machine.directory.hot_bytes for machine in node.core.led.values()),
            seconds=60,
        )
        await asyncio.sleep(200)
        return dict(store.objects)

    await node.create(other)
    early, late = await written(3), await written(2)
    for stale in (A, other):
        folder = f"{COPIES}{world.group_of(stale):05d}/"
        mixed = {key: data for key, data in late.items() if not key.startswith(folder)}
        mixed |= {key: data for key, data in early.items() if key.startswith(folder)}
        assert await recovered(mixed) == {A: PART * 5, other: PART * 5}


@story
async def test_slices_without_a_place_are_reported_and_not_guessed(
    world: World, node: Node
) -> None:
    store = world.store
    assert store is not None
    await node.append(A, PART)
    await world.wait(
        lambda: not any(machine.directory.hot_bytes for machine in node.core.led.values()),
        seconds=60,
    )
    await asyncio.sleep(200)
    (stream,) = [
        found
        for machine in node.core.led.values()
        for found in machine.directory.streams.values()
        if found.name == A
    ]
    batch = HotBatch(0, 0, 1, PART, b"", crc32c(PART), 1, 0, Encoding.BYTES, 0)
    builder = PackBuilder()
    builder.add(stream.uid, world.group_of(A), build_slice(Encoding.BYTES, -1, -1, [batch]))
    key = pack_key(CLUSTER, owner_group=1, now_ms=WALL_MS, random=bytes(16))
    data = b"".join(builder.finish(owner_group=1, created_ms=WALL_MS)[0])
    objects = {**store.objects, key: (data, "1", 0.0)}
    warning = (
        f"{key} has 1 slices of diskless streams that no copy of an index names; their records are "
        "not recovered"
    )
    assert await recovered(dict(objects), [warning]) == {A: PART}
