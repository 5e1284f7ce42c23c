"""A batch that is damaged in the memory of a leader, and perhaps in its journal: other members have
it."""

from __future__ import annotations

from sim.cluster import Node, World
from stories.cluster import A, led, stories

from polynya.stream.state.model import HotBatch
from polynya.wire.slice_building import is_intact

story = stories(led)
NOWHERE = 99 << 32  # a segment that the journal does not have


def damaged(world: World, node: Node) -> tuple[int, int, HotBatch]:
    """The second batch of A, of which one byte has changed."""
    group = world.group_of(A)
    stream = node.core.members[group].group.machine.directory.streams[A]
    assert stream.hot
    batch = stream.hot[1]
    batch.payload = b"X" + bytes(batch.payload[1:])
    return group, stream.uid, batch


async def written(leader: Node) -> None:
    for number in range(3):
        await leader.append(A, b"record %d" % number)


@story
async def test_the_journal_of_the_leader_has_it(world: World, leader: Node) -> None:
    await written(leader)
    group, uid, batch = damaged(world, leader)
    assert await leader.engine.groups.repair(group, uid, [batch])
    assert batch.payload == b"record 1" and is_intact(batch)


@story
async def test_another_member_has_it(world: World, leader: Node) -> None:
    await written(leader)
    group, uid, batch = damaged(world, leader)
    batch.position = NOWHERE
    assert await leader.engine.groups.repair(group, uid, [batch])
    assert batch.payload == b"record 1" and is_intact(batch)


@story
async def test_nobody_has_it(world: World, leader: Node) -> None:
    await written(leader)
    group = world.group_of(A)
    for node in world.alive():
        if group in node.core.members:
            damaged(world, node)[2].position = NOWHERE
    stream = leader.core.members[group].group.machine.directory.streams[A]
    assert stream.hot and not await leader.engine.groups.repair(group, stream.uid, stream.hot)
    assert [is_intact(batch) for batch in stream.hot] == [True, False, True]
