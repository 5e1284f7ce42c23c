"""A defect per kind of failure of a simulated cluster: rings, bridges, lost or repeated messages,
narrow links, strobing clocks, unreadable disks, an object store that hides outcomes, paused
nodes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from sim.cluster import Node, World
from sim.network import Bad
from stories.cluster import A, led, outrun, stories

from polynya.backup.source import Captured
from polynya.cli.storage.source import PATH
from polynya.stream.replies import Code


def term_of(world: World) -> int:
    return max(node.core.members[world.group_of(A)].raft.term for node in world.alive())


async def in_a_ring(world: World, leader: Node) -> None:
    """Cut the links to a ring, where no node can win. Then terms must not rise either: that would
    depose the leader after healing."""
    before = term_of(world)
    world.ring(list(world.voters))
    await asyncio.sleep(15)
    assert term_of(world) <= before + 2, "terms grow though no node can be elected"
    world.heal()
    await world.wait_leaders()
    node = world.leader(world.group_of(A))
    assert node is not None
    await node.append(A, b"1;")


async def at_one_end_of_a_bridge(world: World, leader: Node) -> None:
    """Stand at one end of a bridge: the node at the other end hears nothing; the middle one hears
    both, and keeps its leader."""
    middle, other = (node for node in world.alive() if node is not leader)
    before = term_of(world)
    await world.wait_equal()
    world.bridge([leader.number, middle.number, other.number])
    await asyncio.sleep(6)  # the other has all that there is: it would win
    for number in range(30):
        assert (await leader.append(A, b"%02d;" % number)).record == number + 1
        await asyncio.sleep(0.3)
    assert term_of(world) == before and leader.core.replicas.is_leader(world.group_of(A))


async def the_last_is_lost(world: World, leader: Node) -> None:
    """Lose the last message: no later one shows the follower the gap."""
    other = next(node for node in world.alive() if node is not leader)
    await world.wait_equal()
    world.bad[leader.number, other.number] = Bad(loss=1.0)
    await leader.append(A, b"1;")
    await asyncio.sleep(0.02)
    world.bad.clear()


async def much_comes_again(world: World, leader: Node) -> None:
    """Replay many messages while others are in flight: acknowledged data stays, under any next
    leader."""
    world.replays, world.delay, world.disk_delay = 0.7, (0.001, 0.3), (0.0005, 0.002)
    world.replay_seconds = 2.0
    appends = []
    for number in range(150):
        appends.append(asyncio.ensure_future(leader.append(A, b"%03d;" % number)))
        await asyncio.sleep(0.01)
        world.check()
    assert {(await append).code for append in appends} == {Code.OK}


async def far_behind_a_narrow_way(world: World, leader: Node) -> None:
    """Send a large backlog over a narrow link: the part that finds no room is sent again from that
    point."""
    other = next(node for node in world.alive() if node is not leader)
    other.kill()
    await outrun(world, leader)
    other.start()
    world.bad[leader.number, other.number] = Bad(capacity=2)
    group = world.group_of(A)
    await world.wait(
        lambda: (
            other.core.members[group].group.applied_index
            == leader.core.members[group].group.applied_index
        ),
        60.0,
    )


async def a_clock_that_strobes(world: World, leader: Node) -> None:
    """Forth by a minute and back, many times: log time may be a minute ahead then."""
    began_ms = leader.engine.service.now_ms()
    leader.clock.strobe(asyncio.get_running_loop().time() + 5.0, 0.1, 60_000)
    for _ in range(50):
        await leader.append(A, b".")
        await asyncio.sleep(0.1)
    assert leader.engine.service.now_ms() - began_ms < 60_000 + 10_000


async def a_start_that_reads_badly(world: World, leader: Node) -> None:
    """Start on a disk with read errors: the start is refused, and nothing is lost."""
    for number in range(20):
        await leader.append(A, b"%02d;" % number)
    await world.wait_equal()
    refused = 0
    for node in list(world.alive()):
        node.kill()
        node.disk.bad_reads = 0.3
        for _ in range(5):
            why = node.start_or_say()
            if not why:
                break
            refused += why == "OSError"
            assert why == "OSError", f"what cannot be read is called {why}"
        node.disk.bad_reads = 0.0
        if not node.alive:
            assert not node.start_or_say()
        await world.wait_leaders()
    assert refused
    await world.wait_equal()
    assert await world.alive()[0].read(A) == b"".join(b"%02d;" % number for number in range(20))


async def backed_up_by_one_that_stood_still(world: World, leader: Node) -> None:
    """Back up from a paused node: it believes that it leads when it is asked for the state. The
    others have a new leader by then."""
    group = world.group_of(A)
    await leader.append(A, b"old;")
    leader.pause(4.0)
    question = leader.admin_endpoint.answer("POST", f"{PATH}/capture", {}, b'{"group":%d}' % group)
    asked = asyncio.ensure_future(leader.process.drive(question))
    others = [node for node in world.alive() if node is not leader]
    await world.wait(lambda: any(node.core.replicas.is_leader(group) for node in others))
    await next(node for node in others if node.core.replicas.is_leader(group)).append(A, b"new;")
    assert not asked.done()
    status, body = await asked
    assert status == 200 and msgspec.json.decode(body, type=Captured).records == 2, (
        "what was acknowledged before is not in the backup"
    )


STORIES = {
    "a backup is taken from a deposed leader": backed_up_by_one_that_stood_still,
    "a candidate skips the pre-vote": in_a_ring,
    "who hears a leader votes for others": at_one_end_of_a_bridge,
    "what was lost is not missed": the_last_is_lost,
    "what comes again cuts what came after": much_comes_again,
    "chunks that found no room are never sent again": far_behind_a_narrow_way,
    "log time follows each step of the wall's clock": a_clock_that_strobes,
    "what cannot be read is taken for zeros": a_start_that_reads_badly,
}


@pytest.mark.parametrize("name", STORIES)
def test_it_ends_well(name: str) -> None:
    stories(led, World.wait_equal)(STORIES[name])()
