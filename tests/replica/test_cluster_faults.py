"""Each fault of a simulated cluster, with a defect that it reveals. Nodes pause, crash at a call,
or lose one direction. Links lose, repeat or hold little; clocks are maximally wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from sim.chaos import Episode
from sim.clock import Clock
from sim.cluster import Node, World
from sim.disk import CHANGES, Crash
from sim.faults import FAULTS, weights
from sim.knobs import Knobs
from sim.leases import leases_checked
from sim.loop import run_simulated
from sim.network import Bad
from sim.swarm import SwarmEpisode
from stories.cluster import A, led, stories

from polynya.base.errors import OutcomeUnknown, Unavailable

story = stories(led, World.wait_equal)
Story = Callable[[World, Node], Awaitable[None]]


def run_story(tell: Story) -> None:
    stories(led, World.wait_equal)(tell)()


# --- a node stands still


async def asked_while_it_stands_still(world: World, leader: Node) -> None:
    """A leader with a lease; meanwhile others lead, and the first thing that it does then is to
    answer."""
    await leader.append(A, b"old;")
    assert await leader.read(A) == b"old;"
    leader.pause(4.0)
    asked = asyncio.ensure_future(leader.read(A))
    late = asyncio.ensure_future(leader.append(A, b"late;"))
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(world.group_of(A))
            for node in world.alive()
            if node is not leader
        )
    )
    other = next(
        node
        for node in world.alive()
        if node is not leader and node.core.replicas.is_leader(world.group_of(A))
    )
    await other.append(A, b"new;")
    assert not asked.done() and not late.done()
    try:
        assert b"new;" in await asked
    except Unavailable:
        pass
    try:
        await late
    except (Unavailable, OutcomeUnknown):
        pass
    world.heal()
    await world.wait_leaders()
    assert (await other.read(A)).startswith(b"old;new;")


def test_what_was_asked_of_a_node_that_stands_still_is_answered_by_what_is_true_then() -> None:
    run_story(asked_while_it_stands_still)


@story
async def test_nothing_of_a_node_that_stands_still_happens_and_then_all_of_it(
    world: World, leader: Node
) -> None:
    follower = next(node for node in world.alive() if node is not leader)
    await world.wait_equal()
    applied = {
        number: member.group.applied_index for number, member in follower.core.members.items()
    }
    calls, life = follower.disk.calls, follower.life
    follower.pause(3.0)
    for number in range(5):
        await leader.append(A, b"%d" % number)
    await asyncio.sleep(2.0)
    assert {
        number: member.group.applied_index for number, member in follower.core.members.items()
    } == applied
    assert follower.disk.calls == calls and follower.life == life
    assert follower.number in leader.lost, "it is silent"
    await asyncio.sleep(2.0)
    assert await follower.read(A) == b"01234"


@story
async def test_a_node_dies_while_it_stands_still(world: World, leader: Node) -> None:
    leader.pause(60.0)
    late = asyncio.ensure_future(leader.append(A, b"late;"))
    await asyncio.sleep(1.0)
    leader.kill(power=0.0)
    leader.start()
    await world.wait_leaders()
    await leader.append(A, b"1;")
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await late
    assert await leader.read(A) == b"1;"


# --- a node dies at a call


async def deaths(world: World, leader: Node) -> None:
    """Crash the machine at each call that changes its disk while it writes and takes snapshots. It
    returns with all durable data each time."""
    number = 0
    for after in range(12):
        for moment in ("before", "middle", "after"):
            node = world.nodes[1 + (after % 3)]
            node.disk.crash = Crash(CHANGES, after, moment, (0.0, 0.5)[number % 2])
            node.snapshot_soon()
            for _ in range(20):
                number += 1
                try:
                    await world.alive()[number % len(world.alive())].append(
                        A, b"%06d;" % number + b"x" * 400
                    )
                except (Unavailable, OutcomeUnknown):
                    pass
                if not node.alive:
                    break
            node.disk.crash = None
            if not node.alive:
                assert not node.start_or_say(), (
                    f"node {node.number} refuses its disk: death {moment} call {after}"
                )
            await world.wait_leaders()
            world.check()
    assert sum(world.crashes.values()) > 30, world.crashes


def test_a_node_comes_back_wherever_it_dies() -> None:
    run_story(deaths)


@story
async def test_nobody_hears_of_what_a_node_has_just_synced(world: World, leader: Node) -> None:
    """Crash right after the sync that made an entry durable, before the others got it."""
    world.isolate(leader.number)
    late = asyncio.ensure_future(leader.append(A, b"late;"))
    leader.disk.crash = Crash(("sync",), 0, "after", None)
    with pytest.raises(OutcomeUnknown):
        await late
    assert not leader.alive and world.crashes["after sync"] == 1
    world.heal()
    leader.start()
    await world.wait_leaders()
    await leader.append(A, b"1;")
    assert (await leader.read(A)).endswith(b"1;")


# --- the network


@pytest.mark.parametrize("how", ["both", "in", "out"])
def test_others_lead_when_a_leader_is_cut_off(how: str) -> None:
    """Cut the leader off, also in one direction only: followers that still hear it would wait
    without end."""

    async def cut_off(world: World, leader: Node) -> None:
        world.part((leader.number,), world.voters, back=how == "both")
        if how == "in":
            world.cut = {(to, sender) for sender, to in world.cut}
        await serves_elsewhere(world, leader)

    run_story(cut_off)


async def serves_elsewhere(world: World, old: Node) -> None:
    """Serve from the new leader. The old one knows that it is deposed and does not let requests
    wait."""
    group = world.group_of(A)
    await world.wait(lambda: not old.core.replicas.is_leader(group), 3.0)
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(group) for node in world.alive() if node is not old
        ),
        6.0,
    )
    other = next(
        node for node in world.alive() if node is not old and node.core.replicas.is_leader(group)
    )
    await other.append(A, b"goes on;")
    assert await other.read(A) == b"goes on;"


@pytest.mark.parametrize("count", [3, 5])
def test_a_bridge_serves_and_a_ring_only_loses_time(count: int) -> None:
    async def begin() -> tuple[World, Node]:
        return await led(World(count=count))

    async def parted(world: World, leader: Node) -> None:
        numbers = [number for number in world.voters if number != leader.number]
        middle = count // 2
        world.bridge([*numbers[:middle], leader.number, *numbers[middle:]])
        await leader.append(A, b"1;")
        await asyncio.sleep(5)
        assert (await leader.append(A, b"2;")).record == 2, "the one that hears all leads on"
        world.heal()
        world.ring([*numbers, leader.number])
        heard = {
            sender: {to for to in world.voters if (sender, to) not in world.cut} - {sender}
            for sender in world.voters
        }
        assert {len(others) for others in heard.values()} == {count // 2} and len(
            {frozenset(some) for some in heard.values()}
        ) == count
        await asyncio.sleep(5)
        world.heal()
        await world.wait_leaders()
        await leader.append(A, b"3;")
        assert await leader.read(A) == b"1;2;3;"

    stories(begin, World.wait_equal)(parted)()


@story
async def test_a_way_that_holds_two_messages_loses_the_others_or_lets_them_wait(
    world: World, leader: Node
) -> None:
    other = next(node for node in world.alive() if node is not leader)
    way = (leader.number, other.number)
    got: list[int] = []
    for waits in (False, True):
        world.bad[way] = Bad(capacity=2, waits=waits)
        lost = world.lost_for_room
        for number in range(10):
            world.deliver(leader, other.number, lambda number=number: got.append(number))  # type: ignore[misc]
        await asyncio.sleep(0.2)
        if waits:
            assert sorted(got) == list(range(10)) and world.lost_for_room == lost
        else:
            assert len(got) <= 2 and world.lost_for_room >= lost + 8
        got.clear()
    world.bad[way] = Bad(loss=1.0)
    world.deliver(leader, other.number, lambda: got.append(0))
    await asyncio.sleep(0.2)
    assert not got


@story
async def test_messages_that_come_again_change_nothing(world: World, leader: Node) -> None:
    world.replays, world.delay = 0.5, (0.001, 0.1)
    for number in range(60):
        await leader.append(A, b"%02d;" % number)
    assert world.replayed > 20
    assert await leader.read(A) == b"".join(b"%02d;" % number for number in range(60))


# --- clocks


async def slow_leader(world: World, leader: Node) -> None:
    """Slow the leader's clock and speed up the others' as far as permitted. It is cut off and gets
    requests until another leads."""
    now = asyncio.get_running_loop().time()
    for node in world.alive():
        node.clock.set_rate(1 + world.drift * (-0.99 if node is leader else 0.99), now=now)
    group = world.group_of(A)
    for _ in range(8):
        await world.wait(lambda: leader.core.replicas.is_leader(group), 60.0)
        try:
            await leader.append(A, b".")
        except (Unavailable, OutcomeUnknown):  # it was about to hand over
            continue
        world.isolate(leader.number)
        for _ in range(3000):
            leader.core.reads.readable(group)
            if any(
                node.core.replicas.is_leader(group) for node in world.alive() if node is not leader
            ):
                break
            await asyncio.sleep(0.001)
        world.heal()
        world.check()
        for node in world.alive():
            if node is not leader and node.core.replicas.is_leader(group):
                node.core.leadership.hand_over_all()


def drifting() -> None:
    async def run() -> None:
        knobs, world = Knobs(3, world={"drift": 0.3}), World(3)
        world.turn(knobs)
        await led(world)
        with leases_checked(world):
            leader = world.leader(world.group_of(A))
            assert leader is not None
            await slow_leader(world, leader)
        await world.stop()

    run_simulated(run())


def test_a_lease_outlives_no_promise_however_wrong_the_clocks_may_be() -> None:
    drifting()


def test_a_clock_goes_on_from_where_it_was_at_another_rate() -> None:
    clock = Clock(5000)
    clock.set_rate(0.5)
    clock.set_rate(2.0, now=10.0)
    assert [clock.ms_of(seconds) for seconds in (0.0, 4.0, 10.0, 11.0)] == [
        5000,
        7000,
        10_000,
        12_000,
    ]


# --- what is drawn


def test_every_fault_is_drawn_and_none_where_nothing_is_turned() -> None:
    worlds = [SwarmEpisode(seed) for seed in range(60)]
    drawn = {step.mishap for world in worlds for step in world.schedule}
    assert set(FAULTS) <= drawn
    calm = [world for world in worlds if "faults" not in world.knobs.world]
    assert calm and not any(step.mishap in FAULTS for world in calm for step in world.schedule)
    assert all(sum(weights(seed).values()) for seed in range(60))


def test_an_episode_of_each_fault_alone_ends_well() -> None:
    for number, (name, fault) in enumerate(FAULTS.items()):
        episode = Episode(number, 8, Knobs(number))
        episode.choices = (fault, Episode.start, Episode.heal)
        episode.draw = Random(name)
        assert episode.play()
