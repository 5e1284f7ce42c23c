"""A node that the object store refuses hands over its leaderships to others, which flush its
recent data; later it gets them back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sim.clock import WALL_MS
from sim.cluster import GROUPS, Node, World
from sim.store import SimStore, Weather
from sim.tier import chance_of
from stories.cluster import A, led, stories

from polynya.base.errors import OutcomeUnknown, Unavailable


async def begun() -> tuple[World, Node]:
    """Wait until the preferred leaders lead."""
    loop = asyncio.get_running_loop()
    world, _ = await led(
        World(store=SimStore(1, lambda: int(loop.time() * 1000) + WALL_MS - 1_000_000))
    )
    nodes = world.nodes
    await world.wait(
        lambda: all(
            nodes[nodes[1].core.replicas.first_of(group)].core.replicas.is_leader(group)
            for group in range(GROUPS + 1)
        )
    )
    leader = world.leader(world.group_of(A))
    assert leader is not None
    return world, leader


@pytest.fixture(autouse=True)
def chance() -> Iterator[None]:
    with chance_of(1):
        yield


story = stories(begun, World.wait_equal)


def hot_bytes(world: World) -> int:
    """Sum the hot bytes of the leading machines."""
    return sum(
        machine.directory.hot_bytes for node in world.alive() for machine in node.core.led.values()
    )


def store_of(world: World) -> SimStore:
    assert world.store is not None
    return world.store


@story
async def test_others_flush_what_a_refused_node_led(world: World, leader: Node) -> None:
    group = world.group_of(A)
    store_of(world).refused.add(leader.number)
    for _ in range(20):
        await leader.append(A, b"x" * 100)
    await world.wait(lambda: not leader.core.led, seconds=40)
    await world.wait(lambda: not hot_bytes(world), seconds=20)
    await asyncio.sleep(40)
    assert not leader.core.led, "it gets none back while it is refused"
    assert leader.core.replicas.leader_of(group) not in (0, leader.number)
    store_of(world).refused.clear()
    first = leader.core.replicas.first_of(group)
    await world.wait(lambda: world.nodes[first].core.replicas.is_leader(group), seconds=60)


@story
async def test_writers_do_not_notice(world: World, leader: Node) -> None:
    """All appends are answered while leaderships go."""
    store_of(world).refused.add(leader.number)
    sent, loop = 0, asyncio.get_running_loop()
    deadline = loop.time() + 30
    while loop.time() < deadline:
        try:
            await leader.append(A, b"%07d;" % sent)
        except (Unavailable, OutcomeUnknown) as fault:
            pytest.fail(f"an append got {fault!r}")
        sent += 1
        await asyncio.sleep(0.05)
    assert not leader.core.replicas.is_leader(world.group_of(A))
    content = await leader.read(A)
    assert content == b"".join(b"%07d;" % number for number in range(sent))


@story
async def test_nothing_moves_when_all_are_refused(world: World, leader: Node) -> None:
    store_of(world).refused.update(world.nodes)
    terms = dict(world.leaders)
    for _ in range(30):
        await leader.append(A, b"x" * 100)
        await asyncio.sleep(1)
    assert world.leaders == terms
    store_of(world).refused.clear()
    await world.wait(lambda: not hot_bytes(world), seconds=60)


@story
async def test_a_store_that_fails_now_and_then_moves_nothing(world: World, leader: Node) -> None:
    store_of(world).weather = Weather(away=0.5)
    terms = dict(world.leaders)
    for _ in range(30):
        await leader.append(A, b"x" * 100)
        await asyncio.sleep(1)
    assert world.leaders == terms
    store_of(world).weather = Weather()
