"""The leader of a group counts how long its turns take to commit; the followers count nothing."""

from __future__ import annotations

from sim.cluster import Node, World
from stories.cluster import A, led, stories

from polynya.engine.replicated import ReplicatedEngine

story_of_a_leader = stories(led)


def commits(core: ReplicatedEngine) -> int:
    return sum(core.counters.commits.counts)


@story_of_a_leader
async def test_each_turn_of_a_leader_is_timed_until_its_entries_are_applied(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    before = commits(leader.core)
    others = {node: commits(node.core) for node in world.alive() if node is not leader}
    for number in range(3):
        await leader.append(A, b"%d;" % number)
    assert commits(leader.core) == before + 3
    assert leader.core.counters.commits.total > 0
    assert not leader.core.members[group].timed
    assert {node: commits(node.core) for node in others} == others


@story_of_a_leader
async def test_a_leader_that_is_replaced_forgets_what_it_timed(world: World, first: Node) -> None:
    group = world.group_of(A)
    member = first.core.members[group]
    target = next(node for node in world.alive() if node is not first)
    member.timed.append((1 << 40, 0.0))
    first.core.transfer(group, target.number)
    await world.wait(lambda: world.leader(group) is target)
    assert not member.timed
