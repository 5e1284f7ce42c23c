"""A cluster in which nothing is written asks its object store for nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from unittest import mock

from sim import tier
from sim.clock import WALL_MS
from sim.cluster import Node, World
from sim.loop import run_simulated
from sim.store import SimStore

from polynya.base import levels
from polynya.cold import CollectorSettings
from polynya.stream.replies import Code

STREAMS = 12
SETTLE_SECONDS = 300.0  # a copy a minute may follow what the last flush, merge and deletion logged
IDLE_SECONDS = 900.0


def requests_of(world: World) -> Counter[str]:
    """The requests of all nodes so far."""
    found: Counter[str] = Counter()
    for node in world.nodes.values():
        assert node.tier is not None
        for (work, request), count in node.tier.store.usage.counts().items():
            if request not in ("up", "down"):
                found[f"{work} {request}"] += count
    return found


def is_raised(node: Node) -> bool:
    machines = node.engine.local.machines.values()
    return all(machine.counters.level == levels.LEVEL for machine in machines)


def test_an_idle_store_gets_no_requests_but_those_of_the_hourly_sweep() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        store = SimStore(1, lambda: int(loop.time() * 1000) + WALL_MS - 1_000_000)
        world = World(1, store=store)
        world.release, world.diskless = levels.LEVEL, 2
        await world.start()
        await world.wait(lambda: all(map(is_raised, world.alive())))
        node = world.nodes[1]
        names = [f"test/{number}" for number in range(STREAMS)]
        assert {world.profile_of(name) for name in names} == {0, 1}
        for name in names:
            assert (await node.create(name)).code == Code.CREATED
        for number in range(40):
            for name in names:
                assert (await node.append(name, b"%d;" % number * 10)).code == Code.OK
        await asyncio.sleep(SETTLE_SECONDS)
        before = requests_of(world)
        assert before.total() > 100 and store.objects
        await asyncio.sleep(IDLE_SECONDS)
        assert requests_of(world) - before == Counter()
        for name in names:
            assert await node.read(name) == b"".join(b"%d;" % number * 10 for number in range(40))
        for each in world.nodes.values():
            each.kill()

    with mock.patch.object(tier, "COLLECT", CollectorSettings(sweep_every_ms=7_200_000)):
        run_simulated(story())
