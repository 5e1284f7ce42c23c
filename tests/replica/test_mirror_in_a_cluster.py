"""Mirrored batches in a simulated cluster: sent to each node, in order, while leaders change."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from replica.test_conditions_in_a_cluster import before, begun
from sim.cluster import Node, World
from stories.cluster import stories
from worlds.stream import kafka_batch

from polynya.base.errors import OutcomeUnknown, Unavailable, UpgradePending
from polynya.stream.features.appends.commands import MirrorBatch, MirrorGap
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply

NAME = "kafka/t/0"
story = stories(begun)
story_of_an_upgrade = stories(before)


async def create(world: World) -> None:
    node = world.alive()[0]
    made = await node.propose(NAME, Create(NAME, 0, "", Encoding.KAFKA))
    assert made.code == Code.CREATED


async def sent(node: Node, begin: int, record: int, records: int = 2) -> Reply:
    batch = kafka_batch(records, b"%d;" % record)
    return await node.propose(NAME, MirrorBatch(NAME, 0, batch, None, 0, begin, record))


@story
async def test_each_node_takes_batches_in_order(world: World) -> None:
    await create(world)
    at = 0
    for node in (*world.alive(), *world.alive()):
        many = await asyncio.gather(
            *(sent(node, at + 3 * number, at + 3 * number + 1) for number in range(20))
        )
        assert [reply.code for reply in many] == [Code.OK] * 20
        assert many[-1].record == at + 60
        repeat = await sent(node, at, at + 1)
        assert (repeat.code, repeat.record) == (Code.DUPLICATE, at + 60)
        gap = await node.propose(NAME, MirrorGap(NAME, 0, 0, at + 60, at + 70))
        assert (gap.code, gap.record) == (Code.OK, at + 70)
        assert (await sent(node, at + 99, at + 99)).code == Code.OFFSET_BEYOND_TAIL
        at += 70
    await world.wait_equal()


@story
async def test_nothing_is_lost_or_twice_while_a_leader_dies(world: World) -> None:
    """The sender sends the batches that have no answer again, to another node."""
    await create(world)
    at = turn = 0
    while at < 200:
        turn += 1
        if turn == 3:
            group = world.group_of(NAME)
            leader = next(each for each in world.alive() if each.core.replicas.is_leader(group))
            leader.kill()
        node = world.alive()[turn % len(world.alive())]
        for record in range(at, at + 20, 2):
            with suppress(Unavailable, OutcomeUnknown):
                reply = await sent(node, record, record)
                at = max(at, reply.record)
    assert len(world.alive()) == 2
    content = await world.alive()[0].read(NAME)
    assert [int(each) for each in content.split(b";")[:-1]] == list(range(0, at, 2))


@story_of_an_upgrade
async def test_an_older_node_keeps_them_out(world: World) -> None:
    await create(world)
    with pytest.raises(UpgradePending):
        await sent(world.alive()[0], 0, 0)
    with pytest.raises(UpgradePending):
        await world.alive()[0].propose(NAME, MirrorGap(NAME, 0, 0, 0, 5))
