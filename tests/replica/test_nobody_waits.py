"""Durations in virtual time: nothing waits for a timer, for another append's response, or for the
object store. A cluster that loses power during its creation is created after that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from unittest.mock import patch

import msgspec
import pytest
from sim.cluster import Node, World
from sim.loop import run_simulated
from sim.parts import settings_of
from sim.store import SimStore, Weather
from sim.tier import chance_of
from stories.cluster import A, led, stories

from polynya.cold import steps
from polynya.stream.replies import Code, Reply

NET, DISK = 0.010, 0.100  # seconds of one trip, and of one write with its fsync
SLACK = 0.001

story = stories(led)


async def took(work: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    await work
    return loop.time() - began


def of_exact_times(world: World) -> None:
    world.delay, world.disk_delay = (NET, NET), (DISK, DISK)


@story
async def test_an_append_by_itself_takes_a_trip_and_a_write(world: World, leader: Node) -> None:
    """Measure one round trip and one write, which overlap on both sides. A node that does not lead
    adds a round trip. No timer."""
    follower = next(node for node in world.alive() if node is not leader)
    await follower.append(A, b"the way is known;")
    of_exact_times(world)
    for _ in range(3):
        await asyncio.sleep(0.7)
        assert await took(leader.append(A, b"x;")) == pytest.approx(2 * NET + DISK, abs=SLACK)
        await asyncio.sleep(0.7)
        assert await took(follower.append(A, b"x;")) == pytest.approx(4 * NET + DISK, abs=SLACK)


async def unbounded() -> tuple[World, Node]:
    """The bounds of worlds are small, so that each is met; here they are not to be."""
    world = World()
    world.settings = lambda group, is_first, groups: msgspec.structs.replace(
        settings_of(group, is_first, groups), inflight_messages_max=256
    )
    return await led(world)


@stories(unbounded)
async def test_appends_do_not_wait_for_the_answers_to_others(world: World, leader: Node) -> None:
    """Append every 5 ms with far nodes and quick disks: each is answered after a trip, whatever is
    on its way."""
    await asyncio.sleep(0.7)
    world.delay, world.disk_delay = (0.1, 0.1), (0.0005, 0.0005)
    reply = await leader.append(A, b"%02d;" % 0)
    assert isinstance(reply, Reply)
    times = []

    async def append(number: int) -> None:
        await asyncio.sleep(number * 0.005)
        times.append(await took(leader.append(A, b"%02d;" % number)))

    await asyncio.gather(*(append(number) for number in range(1, 40)))
    assert max(times) < 0.2 + 0.01
    assert await leader.read(A) == b"".join(b"%02d;" % number for number in range(40))


@story
async def test_creations_that_come_together_share_their_writes(world: World, leader: Node) -> None:
    of_exact_times(world)
    names = [
        name
        for number in range(700)
        if world.group_of(name := f"test/burst{number}") == world.group_of(A)
    ][:300]

    async def create_all() -> None:
        replies = await asyncio.gather(*(leader.create(name) for name in names))
        assert {reply.code for reply in replies} == {Code.CREATED}

    assert len(names) == 300
    assert await took(create_all()) < 3 * (2 * NET + DISK)


@pytest.mark.parametrize("untold", [0.0, 0.5])
def test_appends_and_reads_do_not_wait_for_the_object_store(untold: float) -> None:
    """Run flushes, merges, evictions and deletions, each request of which takes seconds."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        store = SimStore(3, lambda: int(loop.time() * 1000))
        world = World(5, store=store)
        world.evict_after_ms = 300
        await led(world)
        store.weather = Weather(untold=untold, delay=(3.0, 3.0))
        slowest, number = 0.0, 0
        # half of the requests are not answered: that takes tries
        while number < 200 or (number < 4000 and not world.idled["Evict"]):
            node = world.alive()[number % 3]
            if number % 40 == 0:  # something to evict
                await node.create(f"test/rare{number}")
            slowest = max(slowest, await took(node.append(A, b"%010d;" % number)))
            local = await took(node.engine.service.info(A))
            slowest = max(slowest, local)
            number += 1
            await asyncio.sleep(0.05)
        assert store.objects, "something was flushed meanwhile"
        assert world.idled["Evict"], "and evicted"
        assert slowest < 0.1
        store.weather = Weather()
        assert await world.nodes[1].read(A) == b"".join(b"%010d;" % each for each in range(number))
        await world.stop()

    with chance_of(3), patch.object(steps, "WRITE_MS_MAX", 60_000):
        run_simulated(run())


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_cluster_that_loses_power_while_it_is_born_is_born_after_that(power: float) -> None:
    """All nodes at once, at any moment from the first write to the first leaders' first entries."""

    async def run(after: float) -> None:
        world = World(7)
        for node in world.nodes.values():
            node.start()
        await asyncio.sleep(after)
        for node in world.alive():
            node.kill(power=power)
        for node in world.nodes.values():
            node.start()
        await world.wait_leaders()
        assert (await world.nodes[2].create(A)).code == Code.CREATED
        assert (await world.nodes[1].append(A, b"1;")).record == 1
        await world.wait_equal()
        await world.stop()

    for hundredth in range(0, 60, 3):
        run_simulated(run(hundredth / 100))
