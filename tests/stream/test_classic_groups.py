"""The classic group protocol, call by call and by the clock: rebalances, sessions, static members."""

from __future__ import annotations

import random

import pytest

from polynya.stream.features.consumer_groups import classic
from polynya.stream.features.consumer_groups.calls import (
    Answer,
    Commit,
    GroupError,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Outcomes,
    Sync,
    Synced,
)
from polynya.stream.features.consumer_groups.classic import (
    ClassicGroup,
    Log,
    Request,
    State,
    described,
)
from polynya.stream.features.consumer_groups.commands import ConsumerGroupPut
from polynya.stream.features.consumer_groups.state import ConsumerGroup
from polynya.stream.features.consumer_groups.subscription import topics_of

SESSION, REBALANCE = 10_000, 60_000
DELAY = classic.INITIAL_DELAY_MS


class GroupHarness:
    """A group, its clock, its log, and the answers by ticket."""

    def __init__(self, stored: ConsumerGroup | None = None, now: int = 0) -> None:
        self.now, self.tickets, self.ids = now, 0, 0
        self.answers: dict[int, Answer] = {}
        self.log: list[ConsumerGroupPut] = []
        self.unlogged: list[Log] = []
        self.logs_at_once = True
        self.group = ClassicGroup.load(stored or ConsumerGroup("g"), self.new_id, now)

    def new_id(self, hint: str) -> str:
        self.ids += 1
        return f"{hint}{self.ids}"

    def settle(self) -> None:
        while effects := self.group.take_effects():
            for effect in effects:
                if isinstance(effect, Log):
                    self.unlogged.append(effect)
                else:
                    assert effect.ticket not in self.answers, "a call is answered once"
                    self.answers[effect.ticket] = effect.answer
            if self.logs_at_once:
                self.commit()

    def commit(self) -> None:
        """Commit the proposals to the log."""
        for effect in self.unlogged:
            self.log.append(effect.put)
            for reply in effect.then:
                assert reply.ticket not in self.answers
                self.answers[reply.ticket] = reply.answer
            self.group.logged(effect.put)
        self.unlogged = []
        self.settle() if self.group.effects else None

    def join(
        self,
        id_: str = "",
        *,
        instance: str | None = None,
        metadata: bytes = b"s",
        protocols: tuple[str, ...] = ("range",),
        takes_id_first: bool = False,
        skips: bool = False,
        kind: str = "consumer",
    ) -> int:
        self.tickets += 1
        call = Join(
            "g", id_, instance, "c", "/h", kind, [(name, metadata) for name in protocols],
            SESSION, REBALANCE, takes_id_first, skips,
        )  # fmt: skip
        self.group.join(call, self.tickets, self.now)
        self.settle()
        return self.tickets

    def sync(self, id_: str, generation: int, plan: dict[str, bytes] | None = None) -> int:
        self.tickets += 1
        member = self.group.members.get(id_)
        call = Sync(
            "g", generation, id_, member.instance if member else None, None, None,
            list((plan or {}).items()),
        )  # fmt: skip
        self.group.sync(call, self.tickets, self.now)
        self.settle()
        return self.tickets

    def leave(self, *members: tuple[str, str | None]) -> list[int]:
        self.tickets += 1
        self.group.leave(Leave("g", list(members)), self.tickets, self.now)
        self.settle()
        answer = self.answers[self.tickets]
        assert isinstance(answer, Outcomes)
        return answer.errors

    def committing(self, id_: str) -> int:
        """Return the error of a commit in generation 1."""
        return self.group.check(Request.COMMIT, Commit("g", 1, id_, None, []), self.now)

    def heartbeat(self, id_: str, generation: int, instance: str | None = None) -> int:
        return self.group.check(
            Request.HEARTBEAT, Heartbeat("g", generation, id_, instance), self.now
        )

    def pass_time(self, span_ms: int) -> None:
        """Let time pass, and wake the group when it asked for that."""
        end = self.now + span_ms
        while (deadline := self.group.next_deadline()) is not None and deadline <= end:
            assert deadline > self.now or deadline <= self.now
            self.now = max(self.now, deadline)
            before = (self.group.state, self.group.next_deadline())
            self.group.tick(self.now)
            self.settle()
            assert before != (self.group.state, self.group.next_deadline()), "it wakes for nothing"
        self.now = end

    def joined(self, ticket: int) -> Joined:
        answer = self.answers[ticket]
        assert isinstance(answer, Joined)
        return answer

    def synced(self, ticket: int) -> tuple[int, bytes]:
        answer = self.answers[ticket]
        assert isinstance(answer, Synced)
        return answer.error, answer.assignment

    def stable(self, *names: str) -> list[str]:
        """Let members join one after the other and get assignments; return their ids."""
        tickets = [self.join(instance=name if name.startswith("i") else None) for name in names]
        self.pass_time(classic.INITIAL_DELAY_MS_MAX)
        return self.assign(tickets)

    def assign(self, tickets: list[int]) -> list[str]:
        """Sync all of a generation."""
        ids = [self.joined(ticket).member for ticket in tickets]
        generation = self.joined(tickets[0]).generation
        plan = {id_: f"{id_} of {generation}".encode() for id_ in ids}
        syncs = [
            self.sync(id_, generation, plan if id_ == self.group.leader else None) for id_ in ids
        ]
        assert [self.synced(ticket) for ticket in syncs] == [(0, plan[id_]) for id_ in ids]
        assert self.group.state is State.STABLE
        return ids


def test_a_member_gets_an_id_first_then_leads_then_has_its_assignment() -> None:
    harness = GroupHarness()
    harness.logs_at_once = False
    first = harness.joined(harness.join(takes_id_first=True))
    assert (first.error, first.member) == (GroupError.MEMBER_ID_REQUIRED, "c1")
    ticket = harness.join("c1", takes_id_first=True)
    assert ticket not in harness.answers, "others may come at the same time"
    harness.pass_time(DELAY)
    joined = harness.joined(ticket)
    assert (joined.generation, joined.leader, joined.protocol) == (1, "c1", "range")
    assert joined.members == [("c1", None, b"s")]
    assert harness.committing("c1") == GroupError.REBALANCE_IN_PROGRESS
    synced = harness.sync("c1", 1, {"c1": b"all", "stranger": b"x"})
    assert synced not in harness.answers, "the assignment is logged before it is told"
    harness.commit()
    assert harness.synced(synced) == (0, b"all")
    assert [(each.id, each.assignment) for each in harness.log[0].members] == [("c1", b"all")]
    assert (harness.log[0].generation, harness.log[0].leader) == (1, "c1")
    assert harness.heartbeat("c1", 1) == 0
    assert harness.heartbeat("c1", 2) == GroupError.ILLEGAL_GENERATION
    assert harness.heartbeat("x", 1) == GroupError.UNKNOWN_MEMBER_ID
    assert described(harness.group).state == "Stable"


def test_a_reserved_id_that_is_not_used_holds_nobody_up_for_long() -> None:
    harness = GroupHarness()
    harness.join(takes_id_first=True)
    ticket = harness.join()
    harness.pass_time(SESSION - 1)
    assert ticket not in harness.answers
    harness.pass_time(1)
    assert harness.joined(ticket).error == 0
    assert harness.joined(harness.join("c1")).error == GroupError.UNKNOWN_MEMBER_ID


def test_a_new_member_makes_the_others_join_again() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    c = harness.join()
    assert harness.heartbeat(a, 1) == GroupError.REBALANCE_IN_PROGRESS
    assert harness.committing(a) == 0, "what was read may be committed"
    again = [harness.join(a), harness.join(b)]
    assert {harness.joined(ticket).generation for ticket in (*again, c)} == {2}
    assert harness.joined(again[0]).leader == a
    assert [id_ for id_, *_ in harness.joined(again[0]).members] == [a, b, harness.joined(c).member]
    assert harness.joined(again[1]).members == [], "for the leader alone"
    early = harness.sync(b, 2)
    assert early not in harness.answers
    harness.sync(a, 2, {b: b"x"})
    assert harness.synced(early) == (0, b"x")
    assert harness.synced(harness.sync(harness.joined(c).member, 2)) == (0, b"")
    assert harness.synced(harness.sync(b, 1)) == (GroupError.ILLEGAL_GENERATION, b"")


def test_who_does_not_join_again_is_removed() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    ticket = harness.join(a)
    for _ in range(REBALANCE // SESSION):
        harness.pass_time(SESSION - 1)
        harness.heartbeat(b, 1)
    assert ticket not in harness.answers
    harness.pass_time(SESSION)
    assert [id_ for id_, *_ in harness.joined(ticket).members] == [a]
    assert harness.heartbeat(b, 1) == GroupError.UNKNOWN_MEMBER_ID


def test_a_session_ends_without_heartbeats() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    harness.pass_time(SESSION - 1)
    assert harness.heartbeat(a, 1) == 0
    harness.pass_time(1)
    assert harness.heartbeat(a, 1) == GroupError.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(b, 1) == GroupError.UNKNOWN_MEMBER_ID
    ticket = harness.join(a)
    assert harness.joined(ticket).generation == 2


def test_members_leave_and_the_last_one_empties_the_group() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    assert harness.leave((a, None), ("x", None)) == [0, GroupError.UNKNOWN_MEMBER_ID]
    ticket = harness.join(b)
    assert harness.joined(ticket).leader == b, "the first leader is gone"
    harness.assign([ticket])
    assert harness.leave((b, None)) == [0]
    assert harness.group.state is State.EMPTY
    assert (harness.log[-1].generation, harness.log[-1].members, harness.log[-1].protocol_type) == (
        3,
        [],
        "consumer",
    )
    assert harness.group.is_idle
    assert harness.stable("c") == ["c3"]
    assert harness.group.generation == 4, "generations go on"


def test_a_leader_that_brings_nothing_is_removed() -> None:
    harness = GroupHarness()
    tickets = [harness.join(), harness.join()]
    harness.pass_time(DELAY * 2)
    a, b = (harness.joined(ticket).member for ticket in tickets)
    waiting = harness.sync(b, 1)
    for _ in range(REBALANCE // 5000):
        harness.pass_time(5000)
        harness.heartbeat(a, 1)
    harness.pass_time(5000)
    assert harness.synced(waiting) == (GroupError.REBALANCE_IN_PROGRESS, b"")
    assert harness.heartbeat(a, 1) == GroupError.UNKNOWN_MEMBER_ID
    assert harness.joined(harness.join(b)).leader == b


def test_protocols_must_fit() -> None:
    harness = GroupHarness()
    harness.join(protocols=("range", "sticky"))
    harness.join(protocols=("sticky", "range"))
    error = GroupError.INCONSISTENT_GROUP_PROTOCOL
    assert harness.joined(harness.join(protocols=("other",))).error == error
    assert harness.joined(harness.join(kind="connect")).error == error
    assert harness.joined(harness.join(protocols=())).error == error
    third = harness.join(protocols=("sticky",))
    harness.pass_time(DELAY * 3)
    assert harness.joined(third).protocol == "sticky", "all have it"


def test_a_follower_that_joins_again_unchanged_is_answered_at_once() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    again = harness.joined(harness.join(b))
    assert (again.generation, again.leader, again.members) == (1, a, [])
    assert harness.group.state is State.STABLE
    harness.join(b, metadata=b"other topics")
    assert harness.group.state is State.PREPARING


def test_a_leader_that_joins_again_begins_a_rebalance() -> None:
    harness = GroupHarness()
    a, _ = harness.stable("a", "b")
    ticket = harness.join(a)
    assert harness.group.state is State.PREPARING
    harness.join(a)
    assert harness.joined(ticket).error == GroupError.REBALANCE_IN_PROGRESS, "it has come again"


def test_a_static_member_comes_back_without_a_rebalance() -> None:
    harness = GroupHarness()
    a, b = harness.stable("i1", "i2")
    harness.logs_at_once = False
    ticket = harness.join(instance="i2")
    assert ticket not in harness.answers, "the new id is logged before it is told"
    harness.commit()
    new = harness.joined(ticket)
    assert (new.error, new.generation, new.leader) == (0, 1, a)
    assert new.member != b
    assert [each.id for each in harness.log[-1].members] == [a, new.member]
    assert harness.synced(harness.sync(new.member, 1)) == (0, f"{b} of 1".encode())
    assert harness.heartbeat(b, 1, "i2") == GroupError.FENCED_INSTANCE_ID
    assert harness.heartbeat(b, 1) == GroupError.UNKNOWN_MEMBER_ID
    assert harness.joined(harness.join(b, instance="i2")).error == GroupError.FENCED_INSTANCE_ID
    assert harness.heartbeat(a, 1, "i1") == 0


@pytest.mark.parametrize("skips", [False, True])
def test_a_static_leader_comes_back_and_assigns_nothing(skips: bool) -> None:
    harness = GroupHarness()
    a, b = harness.stable("i1", "i2")
    new = harness.joined(harness.join(instance="i1", skips=skips))
    assert new.skips_assignment is skips
    assert new.leader == (new.member if skips else a), "older clients must not think they lead"
    assert bool(new.members) is skips
    assert harness.group.leader == new.member
    assert harness.synced(harness.sync(new.member, 1)) == (0, f"{a} of 1".encode())
    assert harness.heartbeat(b, 1, "i2") == 0


def test_a_static_member_with_other_topics_begins_a_rebalance() -> None:
    harness = GroupHarness()
    harness.stable("i1", "i2")
    harness.join(instance="i2", metadata=b"other")
    assert harness.group.state is State.PREPARING


def test_a_static_member_stays_through_a_rebalance_until_its_session_ends() -> None:
    harness = GroupHarness()
    a, b = harness.stable("i1", "b")
    harness.pass_time(SESSION - 1)
    harness.heartbeat(b, 1)
    ticket = harness.join()
    harness.pass_time(1)
    assert harness.heartbeat(a, 1, "i1") == GroupError.UNKNOWN_MEMBER_ID
    harness.join(b)
    assert harness.joined(ticket).generation == 2
    assert harness.leave(("", "i1")) == [GroupError.UNKNOWN_MEMBER_ID]
    assert harness.leave((b, "i9")) == [GroupError.UNKNOWN_MEMBER_ID]


def test_the_next_coordinator_goes_on_from_the_log() -> None:
    harness = GroupHarness()
    a, b = harness.stable("a", "b")
    put = harness.log[-1]
    stored = ConsumerGroup("g", put.generation, "consumer", put.protocol, put.leader, put.members)
    later = GroupHarness(stored, now=1_000_000)
    assert later.heartbeat(a, 1) == 0
    assert later.synced(later.sync(b, 1)) == (0, f"{b} of 1".encode())
    later.pass_time(SESSION - 1)
    later.heartbeat(a, 1)
    later.pass_time(1)
    assert later.heartbeat(b, 1) == GroupError.UNKNOWN_MEMBER_ID, "a session begins at the load"
    assert later.heartbeat(a, 1) == GroupError.REBALANCE_IN_PROGRESS


def test_the_group_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "GROUP_MEMBERS_MAX", 2)
    monkeypatch.setattr(classic, "GROUP_MEMBERS_BYTES_MAX", 100)
    harness = GroupHarness()
    full = GroupError.GROUP_MAX_SIZE_REACHED
    assert harness.joined(harness.join(metadata=b"x" * 100)).error == full
    a = harness.join()
    harness.join(takes_id_first=True)
    assert harness.joined(harness.join()).error == full
    harness.pass_time(SESSION)
    id_ = harness.joined(a).member
    ticket = harness.sync(id_, 1, {id_: b"x" * 100})
    assert harness.synced(ticket) == (GroupError.INVALID_REQUEST, b"")


def test_topics_are_read_from_subscriptions_alone() -> None:
    data = bytes.fromhex("0001 00000002 0001 61 0002 6262 ffffffff")
    assert topics_of([data, b"", data[:9], b"\0\1\xff\xff\xff\xff"]) == {"a", "bb"}


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_calls_ends_well(seed: int) -> None:
    """Each call is answered once; the generation grows; only the present generation is stable."""
    rng = random.Random(seed)
    harness = GroupHarness()
    generation, waiting = 0, set[int]()
    for _ in range(150):
        ids = [member.id for member in harness.group.members] or ["none"]
        id_ = rng.choice([*ids, "gone"])
        match rng.randrange(8):
            case 0:
                waiting.add(harness.join(takes_id_first=rng.random() < 0.5))
            case 1:
                waiting.add(harness.join(instance=rng.choice(("i1", "i2"))))
            case 2 | 3:
                known = harness.group.members.get(id_)
                waiting.add(harness.join(id_, instance=known.instance if known else None))
            case 4:
                plan = dict.fromkeys(ids, b"x")
                waiting.add(harness.sync(id_, harness.group.generation, plan))
            case 5:
                harness.heartbeat(id_, harness.group.generation)
            case 6:
                harness.leave((id_, None))
            case 7:
                harness.pass_time(rng.choice((10, 1000, 20_000)))
        harness.logs_at_once = rng.random() < 0.7
        harness.settle()
        assert harness.group.generation >= generation
        generation = harness.group.generation
        if harness.group.state is State.STABLE:
            assert harness.log[-1].generation == generation or harness.unlogged
            assert harness.group.members.get(harness.group.leader) is not None
    harness.logs_at_once = True
    harness.commit()
    harness.pass_time(20 * REBALANCE)
    assert waiting <= harness.answers.keys(), "each call has an answer"
    assert harness.group.state is State.EMPTY
    assert not harness.log or not harness.log[-1].members
