"""A leader whose disk takes seconds for a write, or has no room: others lead soon, and it comes back by itself."""

from __future__ import annotations

import asyncio

from cluster_stories import A, led, stories
from sim_cluster import Node, World

from polynya.base.errors import OutcomeUnknown

story = stories(led, World.wait_equal)


@story
async def test_a_leader_whose_disk_stalls_hands_over(world: World, leader: Node) -> None:
    usual = world.disk_seconds
    world.disk_seconds = lambda node: 20.0 if node is leader else usual(node)  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    began = loop.time()
    stuck = asyncio.ensure_future(leader.append(A, b"stuck;"))
    group = world.group_of(A)
    await world.wait(lambda: any(node.core.leads(group) for node in world.alive() if node is not leader))
    other = next(node for node in world.alive() if node is not leader and node.core.leads(group))
    await other.append(A, b"goes on;")
    assert loop.time() - began < 5.0
    try:
        await stuck
    except OutcomeUnknown:
        pass
    world.disk_seconds = usual  # type: ignore[method-assign]
    await asyncio.sleep(25)
    assert await leader.read(A) in (b"stuck;goes on;", b"goes on;")


@story
async def test_a_short_pause_of_the_disk_moves_nothing(world: World, leader: Node) -> None:
    usual = world.disk_seconds
    world.disk_seconds = lambda node: 1.5 if node is leader else usual(node)  # type: ignore[method-assign]
    await leader.append(A, b"1")
    world.disk_seconds = usual  # type: ignore[method-assign]
    await asyncio.sleep(3)
    assert leader.core.leads(world.group_of(A))
