"""Return of a member that lost its disk: it costs a leadership transfer, and an election only
where no leader hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds.raft import Disk, Member, World, commands

from polynya.raft import Configuration, HardState, Message, Role, Snapshot, disk_loss
from polynya.raft.messages import AppendAnswer, RecoverVoteAnswer


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
    """A group of three that has a leader, one entry, and a follower of which the disk is gone; the
    leader, and that follower."""
    world, leader = begun(1, 2, 3)
    lost = world.members[leader.node % 3 + 1]
    lost.crash()
    world.pass_time(50)
    lost.disk = Disk()
    lost.disk.frames.append(("hard", HardState(amnesiac=True)))
    lost.disk.sync(1)
    lost.start()
    return world, leader.node, lost.node


def leads(world: World) -> bool:
    return any(
        member.raft is not None and member.raft.role is Role.LEADER
        for member in world.members.values()
    )


def test_the_leader_hands_over_and_the_group_is_never_without_one() -> None:
    world, leader, number = with_a_lost_disk()
    term = world.members[leader].live.term
    for _ in range(300):
        world.pass_time(1)
        assert leads(world)
    lost = world.members[number].live
    assert not lost.amnesiac and lost.commit == lost.log.last >= 2
    assert {member.live.term for member in world.members.values()} == {term + 1}, (
        "one election, which nobody had to wait for"
    )


def test_where_nobody_hands_over_it_ends_the_old_leads_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(disk_loss, "_make_way", lambda raft, sender: None)  # as in releases before
    world, leader, number = with_a_lost_disk()
    term, lost = world.members[leader].live.term, world.members[number]
    world.pass_time(disk_loss.ELECTION_HOLDOFF * world.settings.election_ms - 10)
    assert lost.live.amnesiac and lost.live.commit == 0, "it takes nothing of an older term"
    world.pass_time(5 * world.settings.election_ms)
    assert leads(world) and not lost.live.amnesiac
    assert min(member.live.term for member in world.members.values()) > term + 1


def test_a_leader_that_has_nobody_else_stays() -> None:
    world, number, lost = with_a_lost_disk()
    (other,) = {1, 2, 3} - {number, lost}
    world.members[other].crash()
    leader = world.members[number]
    leader.live.peer_lost(other, leader.now_ms, leader.now_ms)
    term = leader.live.term
    world.pass_time(100)
    assert leader.live.lead.transferee == 0 and leader.live.term == term


def test_a_new_group_is_born_though_its_members_hear_each_other_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All three are blank. What 2 and 3 ask reaches 1, what 1 says is lost for a while: it knows
    first that there is nothing to remember."""
    world = new_group()
    send: Callable[[Message], None] = world.send
    monkeypatch.setattr(world, "send", lambda message: send(message) if message.to == 1 else None)
    world.pass_time(2 * world.settings.election_ms)
    assert not world.members[1].live.amnesiac and not leads(world)
    monkeypatch.undo()
    world.pass_time(20 * world.settings.election_ms)
    assert leads(world) and not any(member.live.amnesiac for member in world.members.values())


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
    lost.disk.frames.append(("hard", HardState(amnesiac=True)))
    lost.disk.sync(1)
    lost.start()


@pytest.mark.parametrize("number", [1, 2])
def test_of_two_the_one_that_has_all_is_elected_by_the_one_that_has_nothing(number: int) -> None:
    world = pair(number)
    world.pass_time(10 * world.settings.election_ms)
    leader, lost = world.leader(), world.members[number].live
    assert leader is not None and leader.node == 3 - number, "who has all leads"
    assert not lost.amnesiac and lost.commit == leader.live.commit >= 3
    lose(world, 3 - number)  # and now the other
    world.pass_time(10 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None and leader.node == number and leader.live.commit >= 4


def test_of_two_that_have_both_forgotten_nobody_leads() -> None:
    """Lose the second disk before the first member has relearned anything: acknowledged data is
    gone, and no leader may hide that."""
    world = pair(2)
    while not world.members[2].live.term:
        world.pass_time(1)
    assert world.members[2].live.amnesiac and not leads(world)
    lose(world, 1)
    world.pass_time(30 * world.settings.election_ms)
    assert world.leader() is None


def test_of_three_nobody_is_elected_by_one_that_has_forgotten() -> None:
    """One has lost its disk, one lags, one is down: the entry may be on the third alone."""
    world, leader, lost = with_a_lost_disk()
    (other,) = {1, 2, 3} - {leader, lost}
    world.members[leader].crash()
    world.pass_time(30 * world.settings.election_ms)
    assert (
        world.members[lost].live.amnesiac
        and not leads(world)
        and world.members[other].raft is not None
    )


def test_one_that_has_forgotten_elects_nobody_who_may_lack_what_it_had() -> None:
    """Lose the leader's disk, which alone holds an acknowledged entry. The amnesiac has heard both
    others; the third never got the entry."""
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
    answer = RecoverVoteAnswer(
        lost, leader.node, 1, leader.disk.hard_state.term, blank=False, members=(1, 2, 3)
    )
    world.run_quiet()
    world.deliver(answer)
    world.pass_time(30 * world.settings.election_ms)
    asked = world.members[lost].live
    assert (
        not asked.loss.awaiting_term and not asked.loss.election_holdoff_until_ms and asked.amnesiac
    ), "it takes part"
    assert not leads(world)
    lose(world, leader.node)
    world.pass_time(30 * world.settings.election_ms)
    assert not leads(world)


@pytest.mark.parametrize("silent", [(1, 2), (2,)])
def test_a_new_group_has_no_leader_before_all_have_found_that_it_is_new(
    silent: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 is heard, and hears not all: it would have no voice, and with another lost disk the group
    would never have a leader again."""
    world = new_group()
    send: Callable[[Message], None] = world.send
    monkeypatch.setattr(
        world,
        "send",
        lambda message: send(message) if message.to != 3 or message.sender not in silent else None,
    )
    world.pass_time(20 * world.settings.election_ms)
    assert (
        not any(world.members[number].live.amnesiac for number in (1, 2))
        and world.members[3].live.amnesiac
    )
    assert not leads(world) and world.members[1].live.status().forgotten == (3,), (
        "who is waited for is told"
    )
    world.members[1].crash()  # it knows still that it has found it
    world.members[1].start()
    world.pass_time(20 * world.settings.election_ms)
    assert not leads(world)
    monkeypatch.undo()
    world.pass_time(20 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None and not any(
        member.live.amnesiac or member.live.group_is_new for member in world.members.values()
    )
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
    while lost.live.amnesiac:
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
        assert lost.live.amnesiac or has > lost.live.loss.reported_term
    assert (1, True) in seen, "it had a part for a while"


def test_one_that_learns_goes_on_though_its_acknowledgements_were_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fill the window: the leader sends nothing more, and a heartbeat's response must not count as
    stored data."""
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
        lambda message: (
            None
            if isinstance(message, AppendAnswer) and message.sender == 4 and message.match
            else send(message)
        ),
    )
    assert leader.live.change(Configuration((1, 2, 3), readers=(4,)), leader.now_ms) is None
    world.pass_time(4 * world.settings.heartbeat_ms)
    peer, settings = leader.live.peers[4], world.settings
    assert made.live.learning and made.live.durable, "it has something"
    assert not peer.has_room(settings.inflight_messages_max, settings.inflight_bytes_max), (
        "the window is full"
    )
    monkeypatch.undo()
    world.pass_time(10 * settings.heartbeat_ms)
    assert peer.match == made.live.commit == leader.live.log.last and not made.live.learning


def new_group() -> World:
    """Build a group of three amnesiac members."""
    world = World(Configuration((1, 2, 3)))
    for node in (1, 2, 3):
        world.add(node).disk.frames.append(("hard", HardState(amnesiac=True)))
    for member in world.members.values():
        member.disk.sync(1)
        member.crash()
        member.start()
    return world


def test_of_two_and_a_third_that_may_be_a_member_all_are_asked() -> None:
    """A change to three had begun: what the new ones committed together is not known to the old one
    alone."""
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
    assert world.members[3 - leader.node].live.amnesiac and not leads(world)
    world.members[3].start()
    world.pass_time(30 * world.settings.election_ms)
    assert not leads(world), "of two with a learner nobody is sure"


def moved(*steps: tuple[int, ...]) -> World:
    """Build a group of 1, 2 and 3 that has had these voters since, one after the other; removed
    members lose all their data."""
    world = World(Configuration((1, 2, 3)))
    for node in sorted({1, 2, 3}.union(*steps)):
        world.add(node)
    world.pass_time(3 * world.settings.election_ms)
    for voters in steps:
        leader = world.leader()
        assert leader is not None
        new = tuple(sorted(set(voters) - set(leader.live.configuration.voters)))
        assert (
            leader.live.change(
                Configuration(leader.live.configuration.voters, learners=new), leader.now_ms
            )
            is None
        )
        world.pass_time(200)
        assert leader.live.change(Configuration(voters), leader.now_ms) is None
        world.pass_time(10 * world.settings.election_ms)
    for node, member in world.members.items():
        if node not in steps[-1]:
            member.crash()
    return world


@pytest.mark.parametrize("steps", [((1, 2, 4),), ((1, 2, 4), (1, 4, 5)), ((1, 2),)])
def test_who_left_the_group_since_has_no_word_in_it_any_more(
    steps: tuple[tuple[int, ...], ...],
) -> None:
    """Ask the current leader for the members: 1 knows the initial ones, of which one or all have
    left."""
    world = moved(*steps)
    lose(world, 1)
    world.pass_time(20 * world.settings.election_ms)
    leader, lost = world.leader(), world.members[1].live
    assert not lost.amnesiac and leader is not None and lost.commit == leader.live.commit
    assert lost.configuration.voters == steps[-1]


def test_who_has_answered_before_it_knew_what_is_committed_is_asked_again() -> None:
    """All lose power: who starts again knows no configuration to be committed but the first, in
    which there is one that is gone."""
    world = moved((1, 2, 4))
    lose(world, 1)
    world.members[1].crash()
    for number in (2, 4):
        world.members[number].crash()
    for number in (1, 2, 4):
        world.members[number].start()
    world.pass_time(30 * world.settings.election_ms)
    leader = world.leader()
    assert leader is not None and not world.members[1].live.amnesiac
    assert world.members[1].live.configuration.voters == (1, 2, 4)


def test_one_that_was_made_anew_where_it_had_a_voice_already_is_taught_by_the_leader_that_counted_on_it() -> (
    None
):
    """Re-create a voter that lost its disk before the map listed it as voter: the leader that
    counts on it sends it the lost data."""
    world = moved((1, 2, 4))
    leader, made = world.leader(), world.members[4]
    assert leader is not None
    if leader is made:
        leader.live.transfer(1, leader.now_ms)
        world.pass_time(100)
        leader = world.members[1]
    made.crash()
    leader.live.peer_lost(4, leader.now_ms, leader.now_ms)
    made.disk = Disk()
    made.disk.frames.append(("hard", HardState(learning=True)))
    made.disk.sync(1)
    made.start()
    leader.live.peer_found(4, leader.now_ms)
    term = leader.live.term
    world.pass_time(10 * world.settings.election_ms)
    assert made.live.commit == leader.live.commit and not made.live.learning
    assert leader.live.role is Role.LEADER and leader.live.term == term


def test_a_change_that_may_come_to_nothing_lets_nobody_out() -> None:
    """2 has proposed to go on without 3, which has not heard of it: what 1 acknowledged may be with
    3 alone."""
    world, leader = begun(1, 2, 3)
    lost, third = (number for number in (1, 2, 3) if number != leader.node)
    world.members[third].crash()
    assert (
        leader.live.change(Configuration(tuple(sorted((leader.node, lost)))), leader.now_ms) is None
    )
    world.settle()
    world.network = []
    lose(world, lost)
    world.run_quiet()
    assert leader.live.configuration.joint and third in world.members[lost].live.loss.awaiting_term
    world.pass_time(30 * world.settings.election_ms)
    assert world.members[lost].live.amnesiac and not leads(world)


def test_who_is_only_on_its_way_into_the_group_is_asked_too() -> None:
    """Tell 3 of the addition of 4, and 2 of the removal of 3: a response of 4 is needed, one of 3
    is not."""
    lost = new_group().members[1]
    lost.live.step(
        RecoverVoteAnswer(
            1,
            3,
            1,
            4,
            members=(1, 2, 3, 4),
            configurations=((0, Configuration((1, 2, 3))), (11, Configuration((1, 2, 4)))),
        ),
        lost.now_ms,
    )
    assert lost.live.loss.queried == {2, 3, 4} and lost.live.loss.awaiting_term == {2, 4}
    lost.live.step(
        RecoverVoteAnswer(1, 2, 1, 5, members=(1, 2), configurations=((9, Configuration((1, 2))),)),
        lost.now_ms,
    )
    assert lost.live.loss.queried == {2, 4} and lost.live.loss.awaiting_term == {4}
    lost.live.step(
        RecoverVoteAnswer(
            1, 4, 1, 5, members=(1, 2, 4), configurations=((11, Configuration((1, 2, 4))),)
        ),
        lost.now_ms,
    )
    assert not lost.live.loss.awaiting_term and lost.live.loss.reported_term == 5


def test_whom_the_group_began_with_says_who_has_data_and_not_the_settings() -> None:
    """Ask the initial members, not the settings: these name others by now, and the log has no
    entry about that."""
    world, leader = begun(1, 2, 3)
    number = leader.node % 3 + 1
    world.identity = Snapshot(0, 0, Configuration(tuple(sorted((number, leader.node, 4)))))
    lose(world, number)
    lost = world.members[number].live
    assert 4 in lost.loss.awaiting_term
    world.pass_time(10 * world.settings.election_ms)
    assert not lost.amnesiac and lost.configuration.voters == (1, 2, 3)
    assert lost.snapshot.configuration == lost.configuration, "what is written of it"


def test_one_that_was_made_anew_and_knows_no_members_yet_lets_nobody_out() -> None:
    lost = new_group().members[1]
    nobody = Configuration(())
    lost.live.step(RecoverVoteAnswer(1, 3, 1, 4, configurations=((0, nobody),)), lost.now_ms)
    assert lost.live.loss.awaiting_term == {2} and lost.live.configuration.voters == (1, 2, 3)
    lost = new_group().members[1]
    lost.live.step(
        RecoverVoteAnswer(
            1,
            3,
            1,
            4,
            members=(1, 3, 4),
            configurations=((0, nobody), (9, Configuration((1, 3, 4)))),
        ),
        lost.now_ms,
    )
    assert lost.live.loss.awaiting_term == {2, 4}


def test_a_release_that_does_not_tell_since_when_lets_nobody_out() -> None:
    lost = new_group().members[1]
    lost.live.step(RecoverVoteAnswer(1, 2, 1, 5, members=(1, 2, 4)), lost.now_ms)
    assert lost.live.loss.awaiting_term == {3, 4}
