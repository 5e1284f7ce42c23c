"""Groups with replicas on some of many nodes, which move under load: any node answers, nothing is
lost, and removed replicas are gone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest
from sim.cluster import Node, World
from stories.cluster import A, stories

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import LiveEvent, StreamInfo
from polynya.raft import Configuration, ProposalRefused
from polynya.raft.messages import Vote
from polynya.stream.replies import Code


async def four() -> tuple[World]:
    """Start four nodes, with three replicas of each group."""
    return (await World(count=4, replicas=3).start(),)


story = stories(four)


def off(world: World) -> Node:
    """Return the node without a replica of A's group."""
    return next(
        node
        for node in world.alive()
        if node.number not in world.map.replicas_of(world.group_of(A))
    )


@story
async def test_a_node_without_a_replica_answers_as_any_other(world: World) -> None:
    outsider = off(world)
    group = world.group_of(A)
    assert not outsider.core.replicas.has(group)
    assert (await outsider.create(A)).code == Code.CREATED
    for number in range(20):
        reply = await world.nodes[1 + number % 4].append(A, b"%d;" % number)
        assert reply.record == number + 1
        assert await outsider.read(A) == b"".join(b"%d;" % each for each in range(number + 1))
    service = outsider.engine.service
    info = await service.info(A)
    assert isinstance(info, StreamInfo) and info.record == 20
    assert [found.name for found in await service.list_streams("", "", 9)] == [A]
    assert (await outsider.delete(A)).code == Code.OK
    assert not await service.list_streams("", "", 9)


@story
async def test_a_transfer_to_the_node_that_leads_by_now_is_done(world: World) -> None:
    """The leader may have moved there since the caller looked."""
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    leader = next(node for node in world.alive() if node.core.replicas.is_leader(group))
    assert await outsider.reconfiguration.transfer(group, leader.number) is None
    refused = await outsider.reconfiguration.transfer(group, outsider.number)
    assert refused is ProposalRefused.NOT_A_VOTER


@story
async def test_a_group_moves_while_all_nodes_write_and_read(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    written: list[bytes] = []
    over = False

    async def client(node: Node) -> None:
        while not over:
            payload = b"%05d;" % len(written)
            written.append(payload)
            began = asyncio.get_running_loop().time()
            reply = await node.append(A, payload)
            assert reply.code == Code.OK
            content = await node.read(A)
            assert content[(reply.record - 1) * 6 : reply.record * 6] == payload
            assert asyncio.get_running_loop().time() - began < 1.5, "an election at most"
            await asyncio.sleep(0.005)

    clients = [asyncio.ensure_future(client(node)) for node in world.alive()]
    await asyncio.sleep(1)
    leaving = world.leader(group)
    assert leaving is not None and leaving is not outsider
    goal = {*world.map.goals[group], outsider.number} - {leaving.number}
    world.aim(group, goal)
    await world.wait_placed()
    await asyncio.sleep(1)
    over = True
    await asyncio.gather(*clients)
    assert outsider.core.replicas.has(group) and not leaving.core.replicas.has(group)
    content = await leaving.read(A)
    assert sorted(content[at : at + 6] for at in range(0, len(content), 6)) == sorted(written)
    await world.wait_equal()


@story
async def test_what_has_left_is_gone_from_memory_and_disk(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    for _ in range(20):
        await outsider.append(A, b"x" * 2000)
    leaving = world.leader(group)
    assert leaving is not None
    await leaving.snapshot()
    world.move(group, leaving, outsider)
    await world.wait_placed()
    assert (
        group not in leaving.engine.local.machines
        and group not in leaving.core.core_replicas.groups
    )
    folder = leaving.folder / "snapshots"
    await world.wait(
        lambda: (
            not [path for path in leaving.disk.names(folder) if path.startswith(f"g{group:05d}")]
        )
    )
    other = next(number for number in leaving.core.members if number)
    for _ in range(6):  # segments go as others are written
        await leaving.core.keeper.copy_forward(other, [])
        await leaving.snapshot()
    frames = [
        (frame.group, frame.kind)
        for frame in leaving.core.journal.segments.entries()
        if frame.group == group and frame.kind == 1
    ]
    first = leaving.core.journal.segments.sizes()[0][0]
    assert not frames or first > 1, "the journal lets go of what nobody reads"
    leaving.kill(power=0.0)
    leaving.start()
    assert not leaving.core.replicas.has(group)
    assert len(await leaving.read(A)) == 40_000


@story
async def test_a_crash_between_any_two_steps_of_a_drop_leaves_a_replica_or_none(
    world: World,
) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    await outsider.append(A, b"kept;")
    leaving = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and not node.core.replicas.is_leader(group)
    )
    await leaving.snapshot()
    calls = leaving.disk.calls
    world.move(group, leaving, outsider)
    await world.wait_placed()
    assert leaving.disk.calls > calls
    for power in (None, 0.0, 0.5, 1.0):
        leaving.kill(power=power)
        leaving.start()
        assert not leaving.core.replicas.has(group)
    world.move(group, outsider, leaving)
    await world.wait_placed()
    leaving.kill(power=0.0)
    leaving.start()
    assert leaving.core.replicas.has(group)
    assert await leaving.read(A) == b"kept;"
    await world.wait_equal()


@story
async def test_a_node_that_was_away_learns_that_its_replica_was_moved(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    away = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and not node.core.replicas.is_leader(group)
    )
    away.kill()
    world.move(group, away, outsider)
    await world.wait_placed()
    leader = world.leader(group)
    assert leader is not None
    term = leader.core.replicas.term(group)
    await outsider.append(A, b"without;")
    away.start()
    assert away.core.replicas.has(group), "it does not know yet"
    assert await away.read(A) == b"without;"
    await world.wait(lambda: not away.core.replicas.has(group))
    assert leader.core.replicas.term(group) == term and leader.core.replicas.is_leader(group), (
        "nobody was disturbed"
    )
    assert await away.read(A) == b"without;"


@story
async def test_a_replica_that_still_catches_up_answers_nothing(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    leader = world.leader(group)
    assert leader is not None and outsider.engine.replica_lifecycle is not None
    await outsider.engine.replica_lifecycle.make(group)
    assert outsider.core.replicas.has(group) and not outsider.core.reads.fit(group)
    with pytest.raises(Unavailable):
        await outsider.core.reads.linearize(group)
    began = asyncio.get_running_loop().time()
    assert await outsider.read(A) == b""
    assert (await outsider.append(A, b"1")).record == 1
    assert asyncio.get_running_loop().time() - began < 0.1, "others were asked"


@story
async def test_a_replica_that_belongs_is_not_dropped(world: World) -> None:
    group = world.group_of(A)
    node = next(node for node in world.alive() if node.core.replicas.has(group))
    assert node.engine.replica_lifecycle is not None
    with pytest.raises(Unavailable):
        await node.engine.replica_lifecycle.drop(group)
    assert node.core.replicas.has(group)


@story
async def test_a_leader_puts_nobody_in_who_has_just_left(world: World) -> None:
    """Ignore late messages of a former member: the leader must not add it back because of them."""
    group, outsider = world.group_of(A), off(world)
    leader = world.leader(group)
    assert leader is not None
    voters = world.map.voters[group]
    assert outsider.engine.replica_lifecycle is not None
    await outsider.engine.replica_lifecycle.make(group)
    change = leader.core.leadership.change
    assert change(group, Configuration(voters, (), (outsider.number,))) is None
    await world.wait(lambda: leader.core.replicas.statuses()[group].settled)
    assert change(group, Configuration(voters)) is None
    await world.wait(lambda: leader.core.replicas.statuses()[group].settled)
    assert change(group, Configuration(voters, (), (outsider.number,))) is ProposalRefused.JUST_LEFT
    await asyncio.sleep(1.1)
    assert change(group, Configuration(voters, (), (outsider.number,))) is None


@story
async def test_live_readers_go_on_when_the_replica_they_follow_goes(world: World) -> None:
    outsider = off(world)
    await outsider.create(A)
    heard: list[LiveEvent] = []

    class LiveReader:
        def live(self, event: LiveEvent) -> None:
            heard.append(event)

    service = outsider.engine.service
    first, second = LiveReader(), LiveReader()
    info = await service.open(A).attach(first)
    assert isinstance(info, StreamInfo)
    await service.open(A).attach(second)
    assert len(outsider.world.open) == 1, "one subscription, however many readers"
    await outsider.append(A, b"1")
    await world.wait(lambda: len(heard) == 2)
    followed = world.open[0].there
    followed.kill()
    await world.wait(lambda: len(heard) == 4)
    assert heard[2].cut and heard[3].cut
    await world.wait_leaders()
    third = LiveReader()
    assert isinstance(await service.open(A).attach(third), StreamInfo)
    await outsider.append(A, b"2")
    await world.wait(lambda: len(heard) == 5)
    service.detach(info.uid, third)
    await asyncio.sleep(0.5)
    assert not world.open


@story
async def test_five_replicas_and_three_again(world: World) -> None:
    group = world.group_of(A)
    await world.nodes[1].create(A)
    await world.nodes[1].append(A, b"1")
    fifth = world.add_node()
    await world.wait(lambda: fifth.reconciler is not None)
    world.aim(group, world.nodes)
    await world.wait_placed()
    assert all(node.core.reads.fit(group) for node in world.alive())
    world.nodes[1].kill()
    world.nodes[2].kill()
    await world.wait(lambda: world.leader(group))
    assert await fifth.read(A) == b"1"
    world.aim(group, (3, 4, 5))
    world.nodes[1].start()
    world.nodes[2].start()
    await world.wait_placed()
    for node in world.alive():
        assert node.core.replicas.has(group) == (node.number in (3, 4, 5))
        assert await node.read(A) == b"1"
    await world.wait_equal()


@story
async def test_a_group_with_no_majority_says_so_in_time_and_is_no_404(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    for node in world.alive():
        if node.core.replicas.has(group):
            node.kill()
    began = asyncio.get_running_loop().time()
    for attempt in (outsider.read(A), outsider.append(A, b"1"), outsider.engine.service.info(A)):
        with pytest.raises(Unavailable):
            await attempt
    assert asyncio.get_running_loop().time() - began < 20
    with suppress(Unavailable):
        await outsider.engine.service.list_streams("", "", 9)
        pytest.fail("a list with a hole in it")


@story
async def test_a_lead_that_moves_under_load_loses_no_answer(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    over = False

    async def client(node: Node) -> None:
        while not over:
            assert (await node.append(A, b"x")).code == Code.OK, "neither refused nor unknown"

    clients = [asyncio.ensure_future(client(node)) for node in world.alive() for _ in range(3)]
    for _ in range(10):
        leader = world.leader(group)
        assert leader is not None
        target = next(
            node for node in world.alive() if node.core.replicas.has(group) and node is not leader
        )
        assert leader.core.transfer(group, target.number) is None
        await world.wait(lambda target=target: target.core.replicas.is_leader(group))
        await asyncio.sleep(0.1)
    over = True
    await asyncio.gather(*clients)


@story
async def test_a_full_disk_of_the_only_voter_refuses_and_goes_on(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    only = next(node for node in world.alive() if node.core.replicas.has(group))
    world.aim(group, {only.number})
    await world.wait_placed()
    only.disk.capacity = only.disk.used() + 100
    codes = [(await outsider.append(A, b"x" * 9000)).code for _ in range(6)]
    taken = codes.count(Code.OK)
    assert codes == [Code.OK] * taken + [Code.DISK_FULL] * (6 - taken) and taken < 6
    only.disk.capacity = 1 << 40
    await asyncio.sleep(1)
    assert (await outsider.append(A, b"1")).record == taken + 1
    assert await outsider.read(A) == b"x" * 9000 * taken + b"1"


@story
async def test_what_a_member_promised_outlives_its_data(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    leaving = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and not node.core.replicas.is_leader(group)
    )
    term = leaving.core.replicas.term(group)
    assert term > 0
    world.move(group, leaving, outsider)
    await world.wait_placed()
    for _ in range(3):
        await leaving.snapshot()
    leaving.kill(power=0.0)
    leaving.start()
    assert (
        not leaving.core.replicas.has(group) and leaving.core.replicas.departed[group].term >= term
    )
    assert leaving.engine.replica_lifecycle is not None
    await leaving.engine.replica_lifecycle.make(group)
    assert leaving.core.replicas.term(group) >= term


@story
async def test_a_node_that_knows_only_where_to_look_answers_too(world: World) -> None:
    """Ask a node that has joined but so far knows only some addresses."""
    await world.nodes[1].create(A)
    await world.nodes[1].append(A, b"1;")
    stranger = world.add_node()
    assert not stranger.reconciler._locations.map.epoch
    assert await stranger.read(A) == b"1;"
    assert (await stranger.append(A, b"2;")).record == 2


@story
async def test_an_old_map_costs_nobody_their_data(world: World) -> None:
    """Hand a member an old map that excludes it while the group counts on it."""
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    node = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and not node.core.replicas.is_leader(group)
    )
    rest = tuple(number for number in world.map.voters[group] if number != node.number)
    old = msgspec.structs.replace(
        world.map,
        epoch=99,
        voters={**world.map.voters, group: rest},
        goals={**world.map.goals, group: rest},
    )
    node.reconciler.adopt(old)
    await asyncio.sleep(3)
    assert node.core.replicas.has(group)


@story
async def test_learners_are_not_counted(world: World) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    leader = world.leader(group)
    assert leader is not None and outsider.engine.replica_lifecycle is not None
    fifth = world.add_node()
    await asyncio.sleep(1)
    learners = (outsider, fifth)
    for node in learners:
        assert node.engine.replica_lifecycle is not None
        await node.engine.replica_lifecycle.make(group)
    voters = world.map.voters[group]
    assert (
        leader.core.leadership.change(
            group, Configuration(voters, (), tuple(sorted(node.number for node in learners)))
        )
        is None
    )
    await world.wait(
        lambda: all(peer.match for peer in leader.core.replicas.statuses()[group].peers.values())
    )
    for number in set(voters) - {leader.number}:
        world.isolate(number)
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await leader.append(A, b"on one disk that counts")


@story
async def test_a_node_that_lost_its_disk_needs_no_word_of_those_that_its_groups_have_left(
    world: World,
) -> None:
    """Lose a disk: the node knows the initial members. Some hold no replica any more and stay
    silent; the others name the current members."""
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    lost, leaving, stays = (world.nodes[number] for number in world.map.voters[group])
    world.move(group, leaving, outsider)
    await world.wait_placed()
    await outsider.append(A, b"1;")
    lost.kill(power=0.0)
    lost.lose_disk()
    lost.start()
    await world.wait(lambda: lost.remembers)
    await world.wait_equal()
    stays.kill()
    assert (await outsider.append(A, b"2;")).record == 2, "it counts again"
    assert await lost.read(A) == b"1;2;"


@story
async def test_a_node_that_lost_its_disk_believes_who_has_data_and_not_its_settings(
    world: World,
) -> None:
    """Ignore the settings: they name the current nodes. With these the group would have other
    initial members, which no log contains."""
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    right, numbers = world.placed, world.map.voters[group]
    lost = world.nodes[numbers[0]]
    lost.kill(power=0.0)
    lost.lose_disk()
    world.placed = {**right, group: tuple(sorted({*numbers[:2], outsider.number}))}
    lost.start()
    assert lost.core.members[group].raft.configuration.voters != numbers
    await world.wait(lambda: lost.remembers)
    await world.wait_equal()
    assert lost.core.members[group].raft.configuration.voters == numbers
    lost.kill(power=0.0)
    lost.start()
    assert lost.core.members[group].raft.configuration.voters == numbers, "it is on the disk"


@story
async def test_a_member_that_was_made_anew_votes_for_nobody_before_it_knows_the_group(
    world: World,
) -> None:
    group, outsider = world.group_of(A), off(world)
    await outsider.create(A)
    leaving = next(
        node
        for node in world.alive()
        if node.core.replicas.has(group) and not node.core.replicas.is_leader(group)
    )
    assert leaving.engine.replica_lifecycle is not None
    world.move(group, leaving, outsider)
    await world.wait_placed()
    await leaving.engine.replica_lifecycle.make(group)
    for _ in range(2):
        raft = leaving.core.members[group].raft
        raft.step(
            Vote(leaving.number, 9, group, raft.term + 1, 5, raft.term, forced=True),
            leaving.clock.now_ms(),
        )
        assert raft.vote != 9, "its empty log is older than what it once had"
        leaving.kill()
        leaving.start()
    world.aim(group, {*world.map.goals[group], leaving.number})
    await world.wait_placed()
    await world.wait(lambda: not leaving.core.members[group].raft.learning)
    leaving.kill(power=0.0)
    leaving.start()
    assert not leaving.core.members[group].raft.learning
