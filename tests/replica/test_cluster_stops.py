"""A node that stops hands its leaderships over, and gets none back before it has come back."""

from __future__ import annotations

import asyncio

from sim.cluster import GROUPS, Node, World
from stories.cluster import A, led, stories

from polynya.engine.leadership import GIVE_BACK_SECONDS
from polynya.transport import address

LOOKS = 40  # more than the groups that one node is to lead


async def at_home() -> tuple[World, Node]:
    """Wait until the preferred leaders lead; return the leader of A's group."""
    world, _ = await led()
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


story = stories(at_home, World.wait_equal)


def leave(node: Node) -> None:
    """Hand over leadership, as a core does before it stops."""
    others = [address(number, 0) for number in node.world.nodes if number != node.number]
    node.core.leadership.leave(node.way, others)


@story
async def test_nothing_comes_back_while_it_stops_and_all_when_it_is_there_again(
    world: World, leader: Node
) -> None:
    homes = set(leader.core.led)
    leave(leader)
    await world.wait(lambda: not leader.core.led)
    for _ in range(LOOKS):
        await asyncio.sleep(GIVE_BACK_SECONDS / 4)
        assert not leader.core.led
    leader.kill()
    await asyncio.sleep(1)
    leader.start()
    await world.wait(
        lambda: homes <= set(leader.core.led), seconds=len(homes) * GIVE_BACK_SECONDS + 10
    )


@story
async def test_a_lead_that_comes_to_it_all_the_same_goes_on(world: World, leader: Node) -> None:
    """Accept a leadership during shutdown, by an operator's request or from a node of a release
    that does not know of the shutdown."""
    group = world.group_of(A)
    leave(leader)
    await world.wait(lambda: not leader.core.led and world.leader(group) is not None)
    other, came = world.leader(group), list[int]()
    assert other is not None
    leader.core.on_leadership.append(lambda number: came.extend({number} & set(leader.core.led)))
    other.core.transfer(group, leader.number)
    await world.wait(
        lambda: group in came and not leader.core.led and world.leader(group) is not None
    )


@story
async def test_of_two_that_stop_neither_gives_its_leads_to_the_other(
    world: World, leader: Node
) -> None:
    other, stays = (node for node in world.alive() if node is not leader)
    leave(leader)
    leave(other)
    await world.wait(lambda: set(stays.core.led) == set(range(GROUPS + 1)))
    for _ in range(LOOKS):
        await asyncio.sleep(GIVE_BACK_SECONDS / 4)
        assert len(stays.core.led) == GROUPS + 1


@story
async def test_where_all_stop_leads_stay_and_nobody_waits(world: World, leader: Node) -> None:
    for node in world.alive():
        node.core.leadership._stopping = dict.fromkeys(world.nodes, float("inf"))
    assert not leader.core.leadership.hand_over_all()
    await asyncio.sleep(1)
    assert leader.core.led
    for node in world.alive():
        node.core.leadership._stopping.clear()
