"""After the loss of all nodes the copies of the groups are of different moments; what was flushed
since each of them is found by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
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

COPIES = f"{CLUSTER}/copies/{1:020d}/"
PART = b"0123456789" * 10


async def begun() -> tuple[World, Node]:
    """One node: all groups are flushed to the same packs."""
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


async def recovered(objects: dict[str, object]) -> dict[str, bytes]:
    """The streams that a recovery from these objects finds."""
    store = MemoryStore()
    store.objects = objects  # type: ignore[assignment]
    await claim_root(store, CLUSTER, 1, "lost")
    states = await FromStore.open(store)
    target = Target(states)
    done = await Restorer(states, [target], store, lambda key: key).run()  # type: ignore[list-item]
    assert not done.warnings
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
        """The store once what is appended now is in packs, and these in the copies of both
        groups."""
        for name in (A, other):
            for _ in range(times):
                await node.append(name, PART)
        await world.wait(
            lambda: not any(machine.hot_bytes for machine in node.core.led.values()), seconds=60
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
