"""A leader whose disk stalls for seconds or is full: another takes over soon, and it returns
without help."""

from __future__ import annotations

import asyncio

import pytest
from sim.cluster import Node, World
from stories.cluster import A, led, stories
from worlds.service import raw_batch

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.stream.features.appends.commands import Append
from polynya.stream.replies import Reply

story = stories(led, World.wait_equal)


@story
async def test_a_leader_whose_disk_stalls_hands_over(world: World, leader: Node) -> None:
    usual = world.disk_seconds
    world.disk_seconds = lambda node: 20.0 if node is leader else usual(node)  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    began = loop.time()
    stuck = asyncio.ensure_future(leader.append(A, b"stuck;"))
    group = world.group_of(A)
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(group) for node in world.alive() if node is not leader
        )
    )
    other = next(
        node for node in world.alive() if node is not leader and node.core.replicas.is_leader(group)
    )
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
    assert leader.core.replicas.is_leader(world.group_of(A))


@story
async def test_what_a_majority_does_not_write_is_answered_in_time(
    world: World, leader: Node
) -> None:
    """Two of three disks are full: the leader hears the others, and leads on."""
    loop = asyncio.get_running_loop()
    group = world.group_of(A)
    await leader.append(A, b"1;")
    others = [node for node in world.alive() if node is not leader]
    for node in others:
        node.disk.capacity = node.disk.used() + 100
    taken: list[Reply] = []
    large = b"x" * 9000
    with pytest.raises(OutcomeUnknown, match="a quorum did not write the append in 10 s"):
        await _append_on(leader, large, taken)
    began = loop.time()
    for node in world.alive():
        with pytest.raises(Unavailable):
            await node.append(A, b"3;")
    assert loop.time() - began < 8.0 and leader.core.inflight_bytes == 0
    assert await leader.read(A) == b"1;" + large * len(taken)
    for node in others:
        node.disk.capacity = 1 << 40
    await world.wait(lambda: group not in leader.core._commit_timeouts.stuck)
    await leader.append(A, b"4;")
    assert await leader.read(A) == b"1;" + large * (len(taken) + 1) + b"4;"


async def _append_on(node: Node, payload: bytes, taken: list[Reply]) -> None:
    """Append repeatedly and wait for each response without a limit."""
    for _ in range(40):
        command = Append(A, node.engine.service.now_ms(), "text/plain", raw_batch(payload))
        taken.append(await node.core.call(node.engine.service.group_of(A), command))
