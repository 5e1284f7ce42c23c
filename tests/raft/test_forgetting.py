"""A member that has lost its disk comes back: it costs a hand-over, and an election only where nobody hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from raft_world import Disk, Member, World, commands

from polynya.raft import Configuration, HardState, Message, Role, forgetting


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
    world = World(Configuration((1, 2, 3)))
    for node in (1, 2, 3):
        world.add(node).disk.frames.append(("hard", HardState(forgetful=True)))
    for member in world.members.values():
        member.disk.sync(1)
        member.crash()
        member.start()
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
