"""A group of three from birth to sleep: elects, commits, is read on any member, falls asleep and
wakes."""

from __future__ import annotations

from worlds.raft import World, commands

from polynya.raft import NEVER, Configuration, Role
from polynya.raft.messages import Vote


def group_of_three() -> World:
    world = World(Configuration((1, 2, 3)), seed=1)
    for node in (1, 2, 3):
        world.add(node)
    world.pass_time(1000)
    return world


def test_three_members_commit_and_read_on_each() -> None:
    world = group_of_three()
    leader = world.leader()
    assert leader is not None
    assert leader.live.propose(commands("a", "b"), leader.now_ms) is None
    world.run_quiet()
    assert [member.applied for member in world.members.values()] == [3, 3, 3]
    for member in world.members.values():
        member.live.read(world.checks.token(), member.now_ms)
    world.run_quiet()
    assert world.checks.reads == 3


def test_an_idle_group_sleeps_without_a_deadline_and_wakes_with_an_append() -> None:
    world = group_of_three()
    world.pass_time(4000)
    assert all(
        member.live.quiescent and member.live.deadline_ms >= NEVER
        for member in world.members.values()
    )
    leader = world.leader()
    assert leader is not None
    leader.live.propose(commands("a"), leader.now_ms)
    world.pass_time(100)
    assert not any(member.live.quiescent for member in world.members.values())
    assert [member.applied for member in world.members.values()] == [2, 2, 2]


def test_who_wakes_before_the_leader_sleeps_keeps_it_awake() -> None:
    """One that is out of the group and does not know asks for votes, when all have agreed to sleep
    and the leader has not yet: it would sleep beside members that wait for it."""
    world = group_of_three()
    leader = world.leader()
    assert leader is not None
    others = [member for member in world.members.values() if member is not leader]
    while not all(member.live.quiescent for member in others):
        world.pass_time(1)
    assert not leader.live.quiescent
    term = leader.live.term
    for member in others:
        member.live.step(Vote(member.node, 4, 1, term + 1, 0, 0, pre=True), member.now_ms)
    world.pass_time(4000)
    assert leader.live.role is Role.LEADER and leader.live.term == term, "nobody has missed it"
    assert all(member.live.quiescent for member in world.members.values())
