"""Journal segments that a snapshot round keeps while a full disk takes back assigned positions."""

from __future__ import annotations

import asyncio

import pytest
from sim.cluster import Node, World
from stories.cluster import A, led, stories

from polynya.engine.snapshots import snapshotter
from polynya.engine.snapshots.encode import Delta, encode_delta
from polynya.replica import Group
from polynya.stream.replies import Code
from polynya.wal import Journal, WriteBatch


async def four() -> tuple[World]:
    world = World(count=4, replicas=3)
    world.segment_bytes = 1 << 16
    return (await world.start(),)


story = stories(four)


@story
async def test_no_entry_comes_before_the_floor_of_its_group(world: World) -> None:
    """Keep the floor on a full disk: one in staged data is no floor, as the next write lies before
    it. The segment in between would be dropped with acknowledged entries."""
    group = world.group_of(A)
    await world.nodes[1].create(A)
    name = next(
        each
        for each in (f"test/{letter}" for letter in "bcdefghijk")
        if world.group_of(each) != group
    )
    quiet = world.group_of(name)
    only = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and node.core.replicas.has(quiet)
    )
    await world.nodes[1].create(name)
    world.aim(group, {only.number})
    await world.wait_placed()
    for _ in range(3):
        await only.snapshot()
    assert not only.core.members[quiet].positions, "all of its log is in its snapshot"
    floors: list[int] = []
    discard = Journal.discard

    def look(journal: Journal, batch: WriteBatch) -> None:
        if journal is only.core.journal:
            floors.append(only.core.keeper.floor_of(quiet))
        discard(journal, batch)

    Journal.discard = look  # type: ignore[method-assign]
    try:
        only.disk.capacity = only.disk.used() + 100
        codes = [(await world.nodes[1].append(A, b"x" * 9000)).code for _ in range(9)]
        assert Code.DISK_FULL in codes and floors
    finally:
        Journal.discard = discard  # type: ignore[method-assign]
    only.disk.capacity = 1 << 40
    await asyncio.sleep(1)
    assert (await world.nodes[1].append(name, b"small")).code == Code.OK
    await world.wait(lambda: only.core.members[quiet].positions)
    assert only.core.members[quiet].positions[0] >= max(floors)


async def keeping() -> tuple[World, Node]:
    world = World()
    world.keep_bytes = 1 << 20  # no batch is copied forward
    return await led(world)


@stories(keeping, World.wait_equal)
async def test_what_is_applied_while_a_snapshot_is_encoded_may_lie_before_all_of_the_round(
    world: World, leader: Node
) -> None:
    """The disks of a majority are slow for more than a round of the leader, and done in the midst
    of the next one: that snapshot then has what the leader wrote long ago, and names these
    positions, which the round must not let go of."""
    group = world.group_of(A)
    member, usual = leader.core.members[group], world.disk_seconds
    name = next(
        each for each in (f"test/{number}" for number in range(9)) if world.group_of(each) == group
    )
    world.disk_seconds = lambda node: usual(node) if node is leader else 20.0  # type: ignore[method-assign]
    creating = asyncio.ensure_future(leader.create(name))
    await asyncio.sleep(0.5)
    payloads = [b"%03d" % number * 300 for number in range(80)]
    appending = [asyncio.ensure_future(leader.append(A, payload)) for payload in payloads]
    await world.wait(
        lambda: member.raft.durable == member.raft.log.last >= member.group.applied_index + 2
    )
    await leader.snapshot()
    stood, last = member.group.applied_index, member.raft.log.last
    await world.wait(lambda: member.group.applied_index > stood, seconds=30.0)
    assert (
        member.group.applied_index < last
        and member.group.machine.directory.needed_positions() is None
    )
    world.disk_seconds = usual  # type: ignore[method-assign]

    async def encode(group: Group, *, whole: bool) -> Delta:
        if group is member.group:
            await world.wait(lambda: group.applied_index >= last, seconds=60.0)
        return await encode_delta(group, whole=whole)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshotter, "encode_delta", encode)
        await leader.snapshot()
    await asyncio.gather(creating, *appending, return_exceptions=True)
    expected = await leader.read(A)
    assert expected == b"".join(payloads)
    leader.kill()
    leader.start()
    assert await leader.read(A) == expected
