"""The consumer protocol (KIP-848), call by call and by the clock: epochs, partitions that move,
static members, lost answers, the log."""

from __future__ import annotations

import pytest
from worlds.modern_group import REBALANCE_MS, Client, Coordinated, topic_id

from polynya.base import limits
from polynya.stream.features.consumer_groups import modern, targets
from polynya.stream.features.consumer_groups.calls import FetchOffsets, GroupError
from polynya.stream.features.consumer_groups.modern import SESSION_MS, described_modern
from polynya.stream.features.consumer_groups.modern_members import fetch_error
from polynya.stream.replies import Code


def test_a_member_joins_and_has_all_partitions_at_once() -> None:
    group = Coordinated(t=4)
    a = Client(group, "a")
    answer = a.ask()
    assert (answer.epoch, answer.interval_ms, a.numbers) == (1, modern.HEARTBEAT_MS, [0, 1, 2, 3])
    assert a.ask().assignment is None, "it said what it has, and nothing changed"
    assert (len(group.log), group.group.state) == (1, "Stable")


def test_partitions_move_after_their_owner_has_confirmed() -> None:
    group = Coordinated(t=4)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask()
    assert (b.ask().epoch, b.numbers) == (2, []), "all are in use"
    answer = a.ask()
    assert (answer.epoch, a.numbers) == (1, [0, 1]), "it stays at its epoch"
    assert b.ask().assignment is None
    assert a.ask().epoch == 2, "it said what it has left"
    assert (b.ask().epoch, b.numbers) == (2, [2, 3])
    assert group.group.state == "Stable"


def test_a_heartbeat_without_partitions_confirms_nothing() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask()
    b.ask()
    lost = a.sent()
    assert lost.assignment is not None, "it never arrived"
    for _ in range(3):
        a.ask()
        assert (b.ask().error, b.numbers) == (0, [])


def test_a_member_that_gives_up_a_part_has_given_up_nothing() -> None:
    group = Coordinated(t=4)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask()
    a.sent()
    a.owned = {(topic_id("t"), number) for number in range(3)}
    a.sent()
    assert (b.ask().error, b.numbers) == (0, []), "at its epoch, it could still commit"
    a.owned = {(topic_id("t"), number) for number in range(2)}
    a.ask()
    b.ask()
    assert b.numbers == [2, 3]


def test_a_lost_answer_is_repeated_at_the_epoch_before() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask()
    a.ask()
    assert a.sent().epoch == 2
    a.lose()
    assert (a.ask().epoch, a.numbers) == (2, [0])
    a.epoch = 1
    assert a.ask().error == 0, "what it has may be the answer's"
    a.epoch, a.owned, a.said = 1, {(topic_id("t"), 0), (topic_id("t"), 1)}, None
    assert a.sent().error == GroupError.FENCED_MEMBER_EPOCH


def test_a_join_whose_answer_was_lost_is_repeated() -> None:
    group = Coordinated(t=2)
    a = Client(group, "a")
    a.sent()
    a.lose()
    assert (a.ask().epoch, a.numbers) == (2, [0, 1])


def test_a_delayed_join_frees_nothing_until_the_member_is_heard_at_its_epoch() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    late = a.call()
    a.ask(), a.ask()
    b.ask()
    group.send(late)
    assert (b.ask().error, b.numbers) == (0, []), "the member still reads both"
    assert a.ask().error == GroupError.FENCED_MEMBER_EPOCH, "it abandons them"
    b.ask()
    assert b.numbers == []
    a.ask()
    assert a.numbers == [0]
    a.ask()
    b.ask()
    assert b.numbers == [1]


def test_a_slow_member_is_fenced_after_its_rebalance_timeout() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.sent()
    for _ in range(6):
        group.pass_time(REBALANCE_MS // 6)
        a.sent(), b.ask()
    assert a.ask().error == GroupError.UNKNOWN_MEMBER_ID
    assert (b.ask().error, b.numbers) == (0, [0, 1])


def test_a_session_ends_without_heartbeats() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), b.ask()
    group.pass_time(SESSION_MS - 1)
    b.ask()
    assert "a" in group.group.members
    group.pass_time(1)
    assert list(group.group.members) == ["b"]
    b.ask()
    assert b.numbers == [0, 1]
    assert a.ask().error == GroupError.UNKNOWN_MEMBER_ID


def test_members_leave_and_the_group_is_empty() -> None:
    group = Coordinated(t=2)
    a = Client(group, "a")
    a.ask()
    assert a.sent(-1).epoch == -1
    assert (group.group.state, group.group.is_idle) == ("Empty", True)
    stored = group.machine.consumer_groups.get("g")
    assert stored is not None
    assert (stored.members, stored.generation, stored.kind) == ([], 2, 1)
    assert a.sent(-1).error == GroupError.UNKNOWN_MEMBER_ID
    b = Client(group, "b")
    assert b.ask().epoch == 3, "epochs go on"


def test_a_static_member_comes_back_and_nothing_moves() -> None:
    group = Coordinated(t=4)
    a, b = Client(group, "a", instance="i"), Client(group, "b")
    a.ask(), b.ask(), a.ask(), a.ask(), b.ask(), b.ask()
    kept = a.numbers
    assert Client(group, "a2", instance="i").sent().error == GroupError.UNRELEASED_INSTANCE_ID
    assert a.sent(-2).epoch == -2
    again = Client(group, "a2", instance="i")
    assert (again.ask().epoch, again.numbers) == (2, kept)
    assert b.ask().assignment is None
    assert a.ask().error == GroupError.FENCED_INSTANCE_ID
    assert list(group.group.members) == ["b", "a2"]


def test_a_static_member_that_does_not_come_back_is_removed() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a", instance="i"), Client(group, "b")
    a.ask(), a.ask(), b.ask()
    a.sent(-2)
    assert b.ask().assignment is None
    group.pass_time(SESSION_MS - 1)
    b.ask()
    group.pass_time(1)
    b.ask()
    assert b.numbers == [0, 1]


def test_a_static_member_that_leaves_while_it_revokes_has_given_all_up() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a", instance="i"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.sent()
    a.sent(-2)
    b.ask()
    assert b.numbers == [1]


def test_topics_appear_grow_and_go() -> None:
    group = Coordinated(t=1)
    a = Client(group, "a", ["t", "u"])
    a.ask()
    group.set_topics(t=2, u=1)
    assert a.ask().epoch == 2
    assert a.owned == {(topic_id("t"), 0), (topic_id("t"), 1), (topic_id("u"), 0)}
    group.set_topics(u=1, other=5)
    a.ask()
    assert (a.ask().epoch, a.owned) == (3, {(topic_id("u"), 0)})
    group.set_topics(u=1, other=6)
    assert a.ask().epoch == 3, "no member reads it"


def test_expressions_match_topics_that_the_member_may_read() -> None:
    group = Coordinated(**{"a.1": 1, "a.2": 1, "b.1": 1})
    a = Client(group, "a", [], regex="a\\..*|b.*", reads=["kafka/a."])
    a.ask()
    assert {topic for topic, _ in a.owned} == {topic_id("a.1"), topic_id("a.2")}
    group.set_topics(**{"a.1": 1, "a.2": 1, "b.1": 1, "a.3": 1})
    a.ask()
    assert len(a.owned) == 3
    assert group.group.subscribed() == {"a.1", "a.2", "a.3"}
    a.reads = ["kafka/a.1/"]
    a.ask()
    a.ask()
    assert {topic for topic, _ in a.owned} == {topic_id("a.1")}, "the token lost a scope"
    wrong = Client(group, "b", [], regex="(a").sent()
    assert wrong.error == GroupError.INVALID_REGULAR_EXPRESSION
    assert wrong.message is not None
    assert "without ')'" in wrong.message


def test_assignors_are_chosen_by_most_members() -> None:
    group = Coordinated(t=2, u=2)
    a = Client(group, "a", ["t", "u"], assignor="range")
    a.ask()
    assert group.group.assignor == "range"
    b = Client(group, "b", ["t", "u"])
    b.ask(), a.ask(), a.ask(), b.ask()
    assert a.numbers == [0, 0]
    assert b.numbers == [1, 1]
    strange = Client(group, "c", assignor="sticky").sent()
    assert strange.error == GroupError.UNSUPPORTED_ASSIGNOR
    assert strange.message is not None
    assert "range, uniform" in strange.message


def test_calls_wait_for_the_log_and_are_answered_together() -> None:
    group = Coordinated(t=4)
    group.logs_at_once = False
    clients = [Client(group, name) for name in "abcd"]
    tickets = [group.send(each.call()) for each in clients]
    assert (group.answers, len(group.unlogged)) == ({}, 1)
    group.commit()
    assert list(group.answers) == tickets[:1]
    group.commit()
    assert list(group.answers) == tickets
    assert [len(put.members) for put in group.log] == [1, 4], "three joins in one command"
    assert group.group.epoch == 2


def test_the_next_coordinator_goes_on_from_the_log() -> None:
    group = Coordinated(t=4)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.ask()
    group.fail_over()
    assert described_modern(group.group).state == "Reconciling"
    a.lose()
    assert (a.ask().epoch, b.ask().epoch) == (2, 2)
    assert (a.numbers, b.numbers) == ([0, 1], [2, 3])
    puts = len(group.log)
    group.fail_over()
    a.ask(), b.ask()
    assert len(group.log) == puts, "nothing changed"
    group.pass_time(SESSION_MS - 1)
    assert len(group.group.members) == 2, "sessions began again"
    group.pass_time(1)
    assert not group.group.members


def test_what_was_not_logged_was_not_said() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.ask()
    group.logs_at_once = False
    tickets = [group.send(a.call()), group.send(b.call())]
    assert not group.answers.keys() & set(tickets)
    group.fail_over()
    group.logs_at_once = True
    a.lose()
    assert (a.ask().epoch, a.numbers) == (2, [0])
    b.ask()
    assert b.numbers == [1]


def test_a_commit_may_cross_a_heartbeat() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.ask(), a.ask(), b.ask()
    assert (a.epoch, b.epoch) == (2, 2)
    assert group.commit_code("a", 1, 0) == Code.OK, "it has this one since epoch 1"
    assert group.commit_code("a", 1, 0, 1) == Code.FENCED
    assert group.commit_code("b", 1, 1) == Code.FENCED, "it got it at epoch 2"
    assert group.commit_code("a", 2, 0) == Code.OK
    assert group.commit_code("a", 3, 0) == Code.FENCED
    assert group.commit_code("c", 1, 0) == Code.NOT_FOUND
    assert group.commit_code("", -1, 0) == Code.HELD
    members = group.group.members
    assert [fetch_error(members["a"], epoch) for epoch in (0, 1, 2, 3)] == [113, 0, 0, 113]
    assert [fetch_error(members["b"], epoch) for epoch in (1, 2)] == [113, 0]
    assert FetchOffsets("g").epoch == -1


def test_a_commit_is_valid_while_its_partition_is_revoked() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask(), a.ask(), b.ask(), a.ask()
    assert group.commit_code("a", 1, 1) == Code.OK, "it commits before it confirms"
    a.ask()
    assert group.commit_code("a", 1, 1) == Code.FENCED


def test_the_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modern, "GROUP_MEMBERS_MAX", 2)
    monkeypatch.setattr(targets, "GROUP_OFFSETS_MAX", 5)
    monkeypatch.setattr(targets, "GROUP_PATTERNS_MAX", 1)
    group = Coordinated(t=4, u=2)
    a = Client(group, "a", ["t"])
    a.ask()
    assert Client(group, "b", ["u"]).sent().error == GroupError.GROUP_MAX_SIZE_REACHED
    group.set_topics(t=6, u=2)
    a.ask()
    assert a.numbers == [0, 1, 2, 3], "what does not fit is not read"
    again = Client(group, "a", ["t"])
    assert again.sent(0).error == GroupError.NONE, "a member that restarts is not locked out"
    b = Client(group, "b", [], regex="x")
    assert b.ask().error == GroupError.NONE
    assert Client(group, "c", ["x"]).sent().error == GroupError.GROUP_MAX_SIZE_REACHED
    b.sent(-1)
    assert Client(group, "b", [], regex="y").ask().error == GroupError.NONE
    many = Client(group, "a", [], regex="z")
    assert many.sent(0).error == GroupError.INVALID_REGULAR_EXPRESSION
    monkeypatch.setattr(targets, "GROUP_MEMBERS_BYTES_MAX", 2)
    assert Client(group, "a", ["long"]).sent(0).error == GroupError.GROUP_MAX_SIZE_REACHED
    assert limits.GROUP_OFFSETS_MAX == 20_000


def test_an_administrator_removes_members() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b", instance="i")
    a.ask(), b.ask()
    assert group.leave(("x", None), ("b2", "i"), ("", "i")) == [25, 82, 0]
    assert group.leave(("a", None)) == [0]
    assert a.ask().error == GroupError.UNKNOWN_MEMBER_ID
    assert not group.group.members


def test_a_member_that_leaves_and_joins_in_one_round_is_answered() -> None:
    group = Coordinated(t=2)
    a, b = Client(group, "a"), Client(group, "b")
    a.ask()
    group.logs_at_once = False
    b_join = group.send(b.call())
    beat, gone = group.send(a.call()), group.send(a.call(-1))
    while group.unlogged:
        group.commit()
    found = [group.answers[each] for each in (b_join, beat, gone)]
    assert [each.error for each in found] == [0, 25, 0]  # type: ignore[union-attr]


def test_members_are_described() -> None:
    group = Coordinated(t=2)
    Client(group, "a", ["t"], instance="i").ask()
    found = described_modern(group.group)
    (member,) = found.members
    assert (found.state, found.protocol, found.kind, found.epoch) == ("Stable", "uniform", 1, 1)
    assert (member.id, member.instance, member.epoch, member.topics) == ("a", "i", 1, ["t"])
    assert member.owned == member.target == [(topic_id("t"), [0, 1])]
