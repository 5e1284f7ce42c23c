"""Leaderships move to the writers and return when these are gone; never to a node that hands over
its own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sim.cluster import GROUPS, Node, World
from sim.loop import run_simulated
from stories.cluster import A, led, stories

from polynya.engine.append_origins import MANY
from polynya.engine.leadership import PLACED_SECONDS, STAY_SECONDS, LeaderPlacement

story = stories(led)


async def writes(world: World, node: Node, seconds: float, *, each: float = 0.01) -> int:
    """Appends by this node; how many. None is refused."""
    loop, count = asyncio.get_running_loop(), 0
    until = loop.time() + seconds
    while loop.time() < until:
        await node.append(A, b"x")
        await asyncio.sleep(each)
        count += 1
    return count


def other_than(world: World, leader: Node) -> Node:
    return next(node for node in world.alive() if node is not leader)


@story
async def test_a_group_goes_to_the_node_of_its_writers_and_back_when_they_are_gone(
    world: World, leader: Node
) -> None:
    group, near = world.group_of(A), other_than(world, leader)
    written = await writes(world, near, 4.0)
    assert written > MANY
    assert world.leader(group) is near and leader.core.leadership.followed == 1
    assert await leader.read(A) == b"x" * written, "nothing was lost or done twice on the way"
    await asyncio.sleep(STAY_SECONDS / 2)
    assert world.leader(group) is near
    await asyncio.sleep(STAY_SECONDS)
    assert world.leader(group) is leader, "it is to lead, and nobody writes"


@story
async def test_a_lead_that_a_failure_moved_goes_back_while_clients_write_that_go_where_it_is(
    world: World, leader: Node
) -> None:
    group, loop = world.group_of(A), asyncio.get_running_loop()
    written = 0

    async def writes_to_the_owner(seconds: float) -> None:
        nonlocal written
        until = loop.time() + seconds
        while loop.time() < until:
            owner = world.leader(group)
            if owner is not None:
                await owner.append(A, b"x")
                written += 1
            await asyncio.sleep(0.01)

    leader.kill()
    await world.wait(lambda: world.leader(group) not in (None, leader))
    await writes_to_the_owner(4.0)
    assert world.leader(group) is not leader
    leader.start()
    await writes_to_the_owner(10.0)
    assert world.leader(group) is leader, "its writers are where it is, wherever that is"
    await writes_to_the_owner(10.0)
    assert world.leader(group) is leader and await leader.read(A) == b"x" * written


@story
async def test_few_writers_or_writers_everywhere_move_nothing(world: World, leader: Node) -> None:
    group = world.group_of(A)
    await writes(world, other_than(world, leader), 4.0, each=0.2)
    assert world.leader(group) is leader
    await asyncio.gather(*(writes(world, node, 4.0) for node in world.alive()))
    assert world.leader(group) is leader and not any(
        node.core.leadership.followed for node in world.alive()
    )


@story
async def test_a_node_that_may_not_lead_does_not_get_it(world: World, leader: Node) -> None:
    group, near = world.group_of(A), other_than(world, leader)
    leader.core.leadership._may_lead = lambda node: node != near.number
    await writes(world, near, 4.0)
    assert world.leader(group) is leader and not leader.core.leadership.followed


@story
async def test_a_node_that_lags_does_not_get_it_and_holds_nobody_up(
    world: World, leader: Node
) -> None:
    group, near = world.group_of(A), other_than(world, leader)
    near.core._writes.flush = lambda: None  # type: ignore[method-assign]  # a disk that takes nothing any more
    await writes(world, near, 4.0)
    assert world.leader(group) is leader and not leader.core.leadership.followed


def test_a_group_that_comes_with_its_lead_was_put_there_though_it_was_not_here_before() -> None:
    async def run() -> None:
        firsts = {1: 1, 2: 2}
        core: Any = SimpleNamespace(node=1, members={}, led=set(), on_leadership=[])
        leads = LeaderPlacement(
            core,
            SimpleNamespace(waiting_seconds=0.0),  # type: ignore[arg-type]
            SimpleNamespace(first_of=firsts.__getitem__),
        )
        leads.placed_anew(firsts)
        assert not leads._placed, "what was chosen before the start holds nothing"
        firsts[2] = 1
        leads.placed_anew(firsts)
        assert list(leads._placed) == [2]
        leads.close()

    run_simulated(run())


@story
async def test_a_lead_that_was_just_put_somewhere_stays_there_for_a_while(
    world: World, leader: Node
) -> None:
    group, near = world.group_of(A), other_than(world, leader)
    # as before an operator's `polynya cluster transfer`
    leader.core.leadership._firsts[group] = near.number
    leader.core.leadership.placed_anew(range(GROUPS + 1))
    await writes(world, near, 4.0)
    assert world.leader(group) is leader and not leader.core.leadership.followed
    await asyncio.sleep(PLACED_SECONDS)
    await writes(world, near, 4.0)
    assert world.leader(group) is near
