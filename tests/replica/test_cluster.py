"""Three whole cores that are one: elected, replicated, failed over, caught up, and read on any of
them."""

from __future__ import annotations

import asyncio

import pytest
from sim.cluster import Node, NotThere, World
from sim.loop import run_simulated
from stories.cluster import A, led, outrun, stories

from polynya.base.errors import NotLeader, OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, Refusal, StreamInfo
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code


async def begun() -> tuple[World]:
    return (await World().start(),)


story, story_of_a_leader = stories(begun), stories(led)


@story
async def test_what_the_leader_acknowledges_is_on_all_nodes_and_read_there(world: World) -> None:
    leader = world.leader(world.group_of(A))
    assert leader is not None
    assert (await leader.create(A)).code == Code.CREATED
    for number in range(20):
        assert (await leader.append(A, b"%d;" % number)).record == number + 1
    expected = b"".join(b"%d;" % number for number in range(20))
    for node in world.alive():
        assert await node.read(A) == expected
    await world.wait_equal()


@story
async def test_others_name_the_leader_and_take_nothing(world: World) -> None:
    group = world.group_of(A)
    leader = world.leader(group)
    assert leader is not None
    other = next(node for node in world.alive() if node is not leader)
    with pytest.raises(NotLeader) as refused:
        await other.core.call(group, Delete(A, 0))
    assert refused.value.node == leader.number


@story_of_a_leader
async def test_a_leader_that_dies_is_followed_by_another_and_comes_back(
    world: World, first: Node
) -> None:
    group = world.group_of(A)
    await first.append(A, b"before;")
    first.kill(power=0.3)
    began = asyncio.get_running_loop().time()
    await world.wait(lambda: world.leader(group))
    second = world.leader(group)
    assert second is not None and second is not first
    assert (await second.append(A, b"after;")).record == 2
    assert asyncio.get_running_loop().time() - began < 2.5
    first.start()
    assert await first.read(A) == b"before;after;"
    await world.wait_equal()


@story_of_a_leader
async def test_who_missed_more_than_the_logs_hold_gets_a_snapshot(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    behind = next(node for node in world.alive() if node is not leader)
    behind.kill()
    await outrun(world, leader)
    assert leader.core.members[group].raft.log.first > 30, "the entries are gone"
    behind.start()
    await world.wait_equal()
    assert behind.core.members[group].raft.snapshot.index > 30
    assert len(await behind.read(A)) == 40 * 1003 + 4 * 9000
    behind.kill(power=0.0)
    behind.start()
    assert len(await behind.read(A)) == 40 * 1003 + 4 * 9000
    await world.wait_equal()


@story_of_a_leader
async def test_a_leader_cut_off_answers_nothing_that_is_old(world: World, old: Node) -> None:
    group = world.group_of(A)
    await old.append(A, b"1")
    world.isolate(old.number)
    lost = asyncio.ensure_future(old.append(A, b"lost"))
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(group) for node in world.alive() if node is not old
        )
    )
    new = next(
        node for node in world.alive() if node is not old and node.core.replicas.is_leader(group)
    )
    assert (await new.append(A, b"2")).record == 2
    with pytest.raises(Unavailable):
        await old.read(A)
    with pytest.raises(OutcomeUnknown):
        await lost
    world.heal()
    assert await old.read(A) == b"12"
    await world.wait_equal()


@story_of_a_leader
async def test_a_hand_over_moves_the_lead_at_once(world: World, old: Node) -> None:
    group = world.group_of(A)
    began = asyncio.get_running_loop().time()
    old.core.leadership.hand_over_all()
    await world.wait(
        lambda: any(
            node.core.replicas.is_leader(group) for node in world.alive() if node is not old
        )
    )
    assert asyncio.get_running_loop().time() - began < 0.1
    assert not old.core.led


@story
async def test_idle_groups_sleep_and_wake(world: World) -> None:
    await asyncio.sleep(6)
    assert all(
        status.quiescent
        for node in world.alive()
        for status in node.core.replicas.statuses().values()
    )
    leader = world.leader(world.group_of(A))
    assert leader is not None
    await leader.create(A)
    other = next(node for node in world.alive() if node is not leader)
    assert await other.read(A) == b""


@story_of_a_leader
async def test_terms_outlive_the_segments_in_which_they_were_written(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    other = next(node for node in world.alive() if node is not leader)
    quiet = next(number for number in other.core.members if number != group)
    term = other.core.members[quiet].raft.term
    first = other.core.journal.segments.sizes()[0][0]
    for _ in range(12):
        for _ in range(4):
            await leader.append(A, b"x" * 3000)
        for node in world.alive():
            await node.snapshot()
    assert other.core.journal.segments.sizes()[0][0] > first, "the segment of the election is gone"
    for node in list(world.alive()):
        node.kill(power=0.0)
    other.start()
    assert other.core.members[quiet].raft.term == term


@story
async def test_a_stream_expires_for_all_when_its_leader_says_so(world: World) -> None:
    group = world.group_of(A)
    leader = world.leader(group)
    assert leader is not None
    now_ms = leader.engine.service.now_ms()
    assert (
        await leader.propose(A, Create(A, now_ms, "text/plain", Encoding.BYTES, ttl_seconds=8))
    ).code == Code.CREATED
    other = next(node for node in world.alive() if node is not leader)
    for _ in range(12):
        await asyncio.sleep(1)
        assert await other.read(A) == b""
        await asyncio.sleep(0.5)
        leader.engine.local.sweep()
    assert leader.core.counters.entries, "reads elsewhere keep it"
    await asyncio.sleep(9.5)
    for _ in range(4):
        leader.engine.local.sweep()
        await asyncio.sleep(0.1)
    for node in world.alive():
        with pytest.raises(NotThere):
            await node.read(A)


@story
async def test_a_put_within_the_grace_finds_the_stream_that_was_read_elsewhere(
    world: World,
) -> None:
    """Find the stream that was read elsewhere. A read that is younger than a part of the TTL is
    not logged yet. A PUT that ensures existence must not re-create the stream."""
    leader = world.leader(world.group_of(A))
    assert leader is not None
    create = Create(A, leader.engine.service.now_ms(), "text/plain", Encoding.BYTES, ttl_seconds=80)
    assert (await leader.propose(A, create)).code == Code.CREATED
    await leader.append(A, b"kept;")
    other = next(node for node in world.alive() if node is not leader)
    await asyncio.sleep(8)
    assert await other.read(A) == b"kept;"
    await asyncio.sleep(75)
    assert (await leader.propose(A, create)).code == Code.EXISTS
    assert await leader.read(A) == b"kept;"
    await asyncio.sleep(95)
    assert (await leader.propose(A, create)).code == Code.CREATED
    assert await leader.read(A) == b""


@story_of_a_leader
async def test_a_node_that_lost_its_disk_catches_up_before_it_votes(
    world: World, leader: Node
) -> None:
    group = world.group_of(A)
    lost, third = (node for node in world.alive() if node is not leader)
    third.kill()
    await leader.append(A, b"on two;")
    lost.kill()
    lost.lose_disk()
    lost.start()
    await asyncio.sleep(5)
    assert not lost.remembers, "it must not help anyone before it has heard of all"
    third.start()
    leader.kill()
    await asyncio.sleep(5)
    assert not any(node.core.replicas.is_leader(group) for node in world.alive()), (
        "who has what was acknowledged is not there"
    )
    leader.start()
    await world.wait(lambda: lost.remembers)
    for node in world.alive():
        assert await node.read(A) == b"on two;"
    await world.wait_equal()


@story_of_a_leader
async def test_a_quiet_node_that_lost_its_disk_catches_up(world: World, leader: Node) -> None:
    await leader.append(A, b"x")
    await asyncio.sleep(5)
    leader.kill()
    leader.lose_disk()
    leader.start()
    assert await leader.read(A) == b"x"
    await world.wait(lambda: leader.remembers)
    await world.wait_equal()


@story
async def test_leads_go_back_to_who_is_to_have_them(world: World) -> None:
    spread = {1: {0}, 2: {1}, 3: {2}}
    await world.wait(
        lambda: {node.number: set(node.core.led) for node in world.alive()} == spread, 60
    )
    world.nodes[1].kill()
    await world.wait_leaders()
    world.nodes[1].start()
    await world.wait(
        lambda: {node.number: set(node.core.led) for node in world.alive()} == spread, 60
    )


@story_of_a_leader
async def test_a_node_that_is_cut_off_answers_local_reads_at_once_and_no_others(
    world: World, leader: Node
) -> None:
    await leader.append(A, b"before;")
    await world.wait_equal()
    lonely = next(node for node in world.alive() if node is not leader)
    world.isolate(lonely.number)
    await leader.append(A, b"after;")
    service, loop = lonely.engine.service, asyncio.get_running_loop()
    began = loop.time()
    page = await service.read(ReadQuery(A, local=True))
    assert isinstance(page, Page) and b"".join(span.payload for span in page.spans) == b"before;"
    assert page.up_to_date and not page.has_all, (
        "it ends here, and this node cannot know whether there is more"
    )
    info = await service.info(A, local=True)
    assert isinstance(info, StreamInfo) and info.record == 1 and not info.known
    assert [found.name for found in await service.list_streams("", "", 9, local=True)] == [A]
    assert loop.time() == began, "nothing was waited for"
    with pytest.raises(Unavailable):
        await lonely.read(A)
    assert loop.time() - began < 3.0
    page = await leader.engine.service.read(ReadQuery(A, local=True))
    assert isinstance(page, Page) and page.has_all, (
        "a leader knows, also when it is not asked to make sure"
    )


@story
async def test_reads_do_not_wait_for_what_is_on_its_way_to_a_disk(world: World) -> None:
    group = world.group_of(A)
    leader = world.leader(group)
    assert leader is not None
    follower = next(node for node in world.alive() if node is not leader)
    await leader.create(A)
    await leader.append(A, b"before;")
    await world.wait_equal()
    world.disk_delay = (1.0, 1.0)
    loop = asyncio.get_running_loop()
    writing = [asyncio.ensure_future(leader.append(A, b"slow;")) for _ in range(20)]
    await asyncio.sleep(0.01)
    for node in (leader, follower):
        began = loop.time()
        assert await node.read(A) == b"before;", "what is not acknowledged is not there yet"
        assert loop.time() - began < 0.05
    assert not any(task.done() for task in writing)
    await asyncio.gather(*writing)
    assert await follower.read(A) == b"before;" + 20 * b"slow;"


@pytest.mark.parametrize("seed", range(12))
def test_a_leader_that_falls_silent_while_its_group_sleeps_costs_writes_less_than_two_seconds(
    seed: int,
) -> None:
    async def run() -> None:
        world = await World(seed).start()
        group, loop = world.group_of(A), asyncio.get_running_loop()
        leader = world.leader(group)
        assert leader is not None
        await leader.create(A)
        await world.wait(lambda: leader.core.members[group].raft.quiescent)
        await asyncio.sleep(world.random.random())  # anywhere between two pulses
        world.isolate(leader.number)
        began = loop.time()
        first, second = (node for node in world.alive() if node is not leader)
        done = [asyncio.ensure_future(node.append(A, b"on;")) for node in (first, second)]
        await asyncio.wait(done)
        # what was on its way to the silent one may be in doubt: a producer asks again
        for each in done:
            if isinstance(each.exception(), OutcomeUnknown | Unavailable):
                assert (await first.append(A, b"on;")).code == Code.OK
        assert loop.time() - began < 2.0
        world.heal()
        await world.stop()

    run_simulated(run())


@story_of_a_leader
async def test_a_follower_goes_by_log_time_though_its_own_clock_is_an_hour_behind(
    world: World, leader: Node
) -> None:
    """Reads there extend a TTL, and what the leader calls expired is not there, either."""
    new = next(
        name
        for number in range(99)
        if world.group_of(name := f"test/new{number}") == world.group_of(A)
    )
    leader.wall_ms = 3_600_000
    follower = next(node for node in world.alive() if node is not leader)
    create = Create(
        new, leader.engine.service.now_ms(), "text/plain", Encoding.BYTES, ttl_seconds=4
    )
    assert (await leader.propose(new, create)).code == Code.CREATED
    for _ in range(20):
        await asyncio.sleep(0.5)
        assert isinstance(await follower.engine.service.read(ReadQuery(new)), Page)
    assert isinstance(await leader.engine.service.info(new), StreamInfo)
    await asyncio.sleep(6.0)
    assert isinstance(await leader.engine.service.info(new), Refusal)
    assert isinstance(await follower.engine.service.info(new), Refusal)


@story_of_a_leader
async def test_log_time_goes_on_after_a_leader_whose_clock_was_an_hour_ahead(
    world: World, leader: Node
) -> None:
    leader.clock.wall_ms = 3_600_000
    await leader.append(A, b"ahead;")
    await world.wait_equal()
    leader.kill()
    group = world.group_of(A)
    await world.wait(lambda: world.leader(group) is not None)
    other = world.leader(group)
    assert other is not None
    began_ms, began = other.engine.service.now_ms(), asyncio.get_running_loop().time()
    assert began_ms > other.clock.log_wall_ms() + 3_500_000
    await asyncio.sleep(20)
    passed_ms = (asyncio.get_running_loop().time() - began) * 1000
    assert abs(other.engine.service.now_ms() - began_ms - passed_ms) < 0.02 * passed_ms
    leader.clock.wall_ms = 0
    leader.start()
