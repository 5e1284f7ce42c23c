"""Nodes that each lack the replicas of some groups: they learn leaders and epochs of these from
nodes with a replica, and drop old ones."""

from __future__ import annotations

import asyncio

from sim.cluster import Node, World
from stories.cluster import stories

GROUPS = (1, 2)


async def four() -> tuple[World]:
    return (await World(count=4, replicas=3).start(),)


story = stories(four)


def outsider(world: World, group: int) -> Node:
    """Return the node without a replica of the group."""
    return next(each for each in world.alive() if each.number not in world.map.replicas_of(group))


async def known(node: Node, group: int) -> tuple[int, int]:
    """Ask for leaders as the Kafka front does; return the leader and the epoch of a group."""
    service = node.engine.service
    await node.process.drive(service.refresh_leaders())
    return service.directory.leader(group), service.directory.epoch_of(group)


def true(world: World, group: int) -> tuple[int, int]:
    leader = world.leader(group)
    assert leader is not None
    return leader.number, leader.engine.service.directory.epoch_of(group)


@story
async def test_a_node_without_a_replica_knows_leader_and_epoch(world: World) -> None:
    await world.wait_leaders()
    for group in GROUPS:
        node = outsider(world, group)
        service = node.engine.service
        assert (service.directory.leader(group), service.directory.epoch_of(group)) == (0, -1)
        assert await known(node, group) == true(world, group)
        assert true(world, group)[1] > 0


@story
async def test_it_learns_of_the_next_leader(world: World) -> None:
    await world.wait_leaders()
    group = GROUPS[0]
    node, old = outsider(world, group), true(world, group)
    assert await known(node, group) == old
    world.nodes[old[0]].kill()
    await world.wait(lambda: world.leader(group) not in (None, world.nodes[old[0]]))
    new = true(world, group)
    assert new[1] > old[1]
    async with asyncio.timeout(10):
        while await known(node, group) != new:
            await asyncio.sleep(1)
    node.forwarding.exchange.learn({group: old})
    assert node.engine.service.directory.epoch_of(group) == new[1], (
        "an older leader is not taken over"
    )


@story
async def test_a_replica_here_decides(world: World) -> None:
    await world.wait_leaders()
    group = GROUPS[0]
    leader, epoch = true(world, group)
    node = next(
        each
        for each in world.alive()
        if each.number in world.map.replicas_of(group) and each.number != leader
    )
    await world.wait(lambda: node.engine.service.directory.leader(group) == leader)
    other = next(each for each in range(1, 5) if each not in (leader, node.number))
    node.forwarding.exchange.learn({group: (other, epoch + 9)})
    service = node.engine.service
    assert (service.directory.leader(group), service.directory.epoch_of(group)) == (leader, epoch)
