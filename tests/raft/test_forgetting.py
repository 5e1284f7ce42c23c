"""A member that has lost its disk comes back: it costs a hand-over, and an election only where nobody hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from raft_world import Disk, Member, World, commands

from polynya.raft import Configuration, HardState, Message, Role, forgetting
from polynya.raft.messages import AppendAnswer, RecallAnswer


def begun(*voters: int) -> tuple[World, Member]:
    """A group that has a leader and one entry; and that leader."""
    world = World(Configuration(voters))
    for node in voters:
        world.add(node)
    world.pass_time(3 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None
    leader.live.propose(commands("a"), leader.now_ms)
    world.pass_time(100)
    return world, leader


def with_a_lost_disk() -> tuple[World, int, int]:
    """A group of three that has a leader, one entry, and a follower of which the disk is gone; the leader, and that follower."""
    world, leader = begun(1, 2, 3)
    lost = world.members[leader.node % 3 + 1]
    lost.crash()
    world.pass_time(50)
    lost.disk = Disk()
    lost.disk.frames.append(("hard", HardState(forgetful=True)))
    lost.disk.sync(1)
    lost.start()
    return world, leader.node, lost.node


def leads(world: World) -> bool:
    return any(member.raft is not None and member.raft.role is Role.LEADER for member in world.members.values())


def test_the_leader_hands_over_and_the_group_is_never_without_one() -> None:
    world, leader, number = with_a_lost_disk()
    term = world.members[leader].live.term
    for _ in range(300):
        world.pass_time(1)
        assert leads(world)
    lost = world.members[number].live
    assert not lost.forgetful and lost.commit == lost.log.last >= 2
    assert {member.live.term for member in world.members.values()} == {term + 1}, "one election, which nobody had to wait for"


def test_where_nobody_hands_over_it_ends_the_old_leads_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forgetting, "_make_way", lambda raft, sender: None)  # as in releases before
    world, leader, number = with_a_lost_disk()
    term, lost = world.members[leader].live.term, world.members[number]
    world.pass_time(forgetting.PATIENCE * world.settings.election_ms - 10)
    assert lost.live.forgetful and lost.live.commit == 0, "it takes nothing of an older term"
    world.pass_time(5 * world.settings.election_ms)
    assert leads(world) and not lost.live.forgetful
    assert min(member.live.term for member in world.members.values()) > term + 1


def test_a_leader_that_has_nobody_else_stays() -> None:
    world, number, lost = with_a_lost_disk()
    (other,) = {1, 2, 3} - {number, lost}
    world.members[other].crash()
    leader = world.members[number]
    leader.live.peer_lost(other, leader.now_ms, leader.now_ms)
    term = leader.live.term
    world.pass_time(100)
    assert leader.live.transferee == 0 and leader.live.term == term


def test_a_new_group_is_born_though_its_members_hear_each_other_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """All three are blank. What 2 and 3 ask reaches 1, what 1 says is lost for a while: it knows first that there is nothing to remember."""
    world = new_group()
    send: Callable[[Message], None] = world.send
    monkeypatch.setattr(world, "send", lambda message: send(message) if message.to == 1 else None)
    world.pass_time(2 * world.settings.election_ms)
    assert not world.members[1].live.forgetful and not leads(world)
    monkeypatch.undo()
    world.pass_time(20 * world.settings.election_ms)
    assert leads(world) and not any(member.live.forgetful for member in world.members.values())


def pair(blank: int) -> World:
    """A group of two with an entry, of which one has lost its disk."""
    world, _ = begun(1, 2)
    lose(world, blank)
    return world


def lose(world: World, number: int) -> None:
    lost = world.members[number]
    lost.crash()
    world.pass_time(50)
    lost.disk = Disk()
    lost.disk.frames.append(("hard", HardState(forgetful=True)))
    lost.disk.sync(1)
    lost.start()


@pytest.mark.parametrize("number", [1, 2])
def test_of_two_the_one_that_has_all_is_elected_by_the_one_that_has_nothing(number: int) -> None:
    world = pair(number)
    world.pass_time(10 * world.settings.election_ms)
    leader, lost = world.leader(), world.members[number].live
    assert leader is not None and leader.node == 3 - number, "who has all leads"
    assert not lost.forgetful and lost.commit == leader.live.commit >= 3
    lose(world, 3 - number)  # and now the other
    world.pass_time(10 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None and leader.node == number and leader.live.commit >= 4


def test_of_two_that_have_both_forgotten_nobody_leads() -> None:
    """The second lost its disk before the first had learned anything again: what was acknowledged is gone, and nobody may say that it never was."""
    world = pair(2)
    while not world.members[2].live.term:
        world.pass_time(1)
    assert world.members[2].live.forgetful and not leads(world)
    lose(world, 1)
    world.pass_time(30 * world.settings.election_ms)
    assert world.leader() is None


def test_of_three_nobody_is_elected_by_one_that_has_forgotten() -> None:
    """One has lost its disk, one lags, one is down: the entry may be on the third alone."""
    world, leader, lost = with_a_lost_disk()
    (other,) = {1, 2, 3} - {leader, lost}
    world.members[leader].crash()
    world.pass_time(30 * world.settings.election_ms)
    assert world.members[lost].live.forgetful and not leads(world) and world.members[other].raft is not None


def test_one_that_has_forgotten_elects_nobody_who_may_lack_what_it_had() -> None:
    """It has heard both others. What it had acknowledged is on the leader alone, whose disk is lost now; the third never got it."""
    world, leader = begun(1, 2, 3)
    other, lost = (number for number in (1, 2, 3) if number != leader.node)
    world.members[other].crash()
    leader.live.propose(commands("b"), leader.now_ms)
    world.pass_time(50)
    assert leader.live.commit == world.members[lost].live.durable == 3
    world.members[other].start()
    leader.live.unreachable(other, leader.now_ms)
    lose(world, lost)
    leader.crash()  # what it says is lost with it, but for its answer
    answer = RecallAnswer(lost, leader.node, 1, leader.disk.hard_state.term, blank=False, members=(1, 2, 3))
    world.run_quiet()
    world.deliver(answer)
    world.pass_time(30 * world.settings.election_ms)
    asked = world.members[lost].live
    assert not asked.unheard and not asked.patient_ms and asked.forgetful, "it takes part"
    assert not leads(world)
    lose(world, leader.node)
    world.pass_time(30 * world.settings.election_ms)
    assert not leads(world)


@pytest.mark.parametrize("silent", [(1, 2), (2,)])
def test_a_new_group_has_no_leader_before_all_have_found_that_it_is_new(silent: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """3 is heard, and hears not all: it would have no voice, and with another lost disk the group would never have a leader again."""
    world = new_group()
    send: Callable[[Message], None] = world.send
    monkeypatch.setattr(world, "send", lambda message: send(message) if message.to != 3 or message.sender not in silent else None)
    world.pass_time(20 * world.settings.election_ms)
    assert not any(world.members[number].live.forgetful for number in (1, 2)) and world.members[3].live.forgetful
    assert not leads(world) and world.members[1].live.status().forgotten == (3,), "who is waited for is told"
    world.members[1].crash()  # it knows still that it has found it
    world.members[1].start()
    world.pass_time(20 * world.settings.election_ms)
    assert not leads(world)
    monkeypatch.undo()
    world.pass_time(20 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None and not any(member.live.forgetful or member.live.unborn for member in world.members.values())
    lose(world, leader.node)
    world.pass_time(20 * world.settings.election_ms)
    assert leads(world)


def test_it_has_no_voice_before_it_has_something_of_a_leader_that_was_elected_without_it() -> None:
    world, leader = begun(1, 2, 3)
    for number in range(20):
        leader.live.propose(commands(f"{number}" * 100), leader.now_ms)
        world.pass_time(10)
    lost = world.members[leader.node % 3 + 1]
    lose(world, lost.node)
    seen = set()
    while lost.live.forgetful:
        world.now += 1
        world.tick()
        world.settle()
        messages, world.network = world.network, []
        for message in messages:
            world.deliver(message)
        for member in world.members.values():
            member.sync()
        has = lost.live.log.term(lost.live.durable) or 0
        seen.add((has, lost.live.commit > 0))
        assert lost.live.forgetful or has > lost.live.recalled_term
    assert (1, True) in seen, "it had a part for a while"


def test_one_that_learns_goes_on_though_its_acknowledgements_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a window: the leader sends nothing more, and what it answers to heartbeats says nothing of what it has."""
    world, leader = begun(1, 2, 3)
    for number in range(40):
        leader.live.propose(commands(f"{number}" * 50), leader.now_ms)
        world.pass_time(1)
    made = world.add(4)
    made.disk.frames.append(("hard", HardState(learning=True)))
    made.disk.sync(1)
    made.crash()
    made.start()
    send: Callable[[Message], None] = world.send
    monkeypatch.setattr(
        world,
        "send",
        lambda message: None if isinstance(message, AppendAnswer) and message.sender == 4 and message.match else send(message),
    )
    assert leader.live.change(Configuration((1, 2, 3), readers=(4,)), leader.now_ms) is None
    world.pass_time(4 * world.settings.heartbeat_ms)
    peer, settings = leader.live.peers[4], world.settings
    assert made.live.learning and made.live.durable, "it has something"
    assert not peer.has_room(settings.inflight_messages_max, settings.inflight_bytes_max), "the window is full"
    monkeypatch.undo()
    world.pass_time(10 * settings.heartbeat_ms)
    assert peer.match == made.live.commit == leader.live.log.last and not made.live.learning


def new_group() -> World:
    """Of three that know nothing."""
    world = World(Configuration((1, 2, 3)))
    for node in (1, 2, 3):
        world.add(node).disk.frames.append(("hard", HardState(forgetful=True)))
    for member in world.members.values():
        member.disk.sync(1)
        member.crash()
        member.start()
    return world


def test_of_two_and_a_third_that_may_be_a_member_all_are_asked() -> None:
    """A change to three had begun: what the new ones committed together is not known to the old one alone."""
    world = World(Configuration((1, 2)))
    for node in (1, 2, 3):
        world.add(node)
    world.pass_time(3 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None
    assert leader.live.change(Configuration((1, 2), learners=(3,)), leader.now_ms) is None
    world.pass_time(200)
    world.members[3].crash()
    lose(world, 3 - leader.node)
    world.pass_time(30 * world.settings.election_ms)
    assert world.members[3 - leader.node].live.forgetful and not leads(world)
    world.members[3].start()
    world.pass_time(30 * world.settings.election_ms)
    assert not leads(world), "of two with a learner nobody is sure"
