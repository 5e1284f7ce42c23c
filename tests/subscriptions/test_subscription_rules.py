"""The rules of subscriptions one by one, where a story would be long: bounds, other incarnations,
late and repeated messages, state after a restart."""

from __future__ import annotations

from typing import Any

import pytest
from subscription_script import check_links
from worlds.stream import World, raw_batch

from polynya.base.limits import PATH_BYTES_MAX
from polynya.base.names import BadName, canonical_name
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import PinSource
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.retention.commands import Trim
from polynya.stream.features.settings.commands import MetaSet
from polynya.stream.features.subscriptions import links
from polynya.stream.features.subscriptions import rules as subscriptions
from polynya.stream.features.subscriptions.commands import (
    AckLinks,
    LinkSubscription,
    SubscriptionConfig,
    SubscriptionDelete,
    SubscriptionEvent,
    SubscriptionLinked,
    SubscriptionPut,
    SubscriptionStreams,
    UnlinkSubscription,
)
from polynya.stream.features.subscriptions.globs import BadPattern, check_pattern, compile_pattern
from polynya.stream.features.subscriptions.links import named_links, oldest_links, page_of_links
from polynya.stream.features.subscriptions.rules import PULL_WAKE, WEBHOOK, Event
from polynya.stream.features.subscriptions.state import State, Subscription
from polynya.stream.replies import Code

A, B, C = "test/a", "test/b", "test/c"


class One:
    """One group, which is home of all and has all streams."""

    def __init__(self) -> None:
        self.world = World(1)
        self.uid = 0  # of the subscription `s`

    def apply(self, command: Any) -> Any:
        reply = self.world.apply(1, command)
        check_links(self.world)
        return reply

    @property
    def state(self) -> Any:
        return self.world.machines[1].subscriptions

    @property
    def owned(self) -> Subscription:
        return self.state.owned["s"]

    def put(
        self,
        key: str = "s",
        kind: int = WEBHOOK,
        base: str = "http://n",
        streams: tuple[str, ...] = (),
    ) -> int:
        config = SubscriptionConfig(kind, "test/*", list(streams), "https://h", "test/wake", 1000)
        reply = self.apply(SubscriptionPut(key, 0, config, base))
        self.uid = reply.uid or self.uid
        return int(reply.code)

    def event(self, event: Event, now_ms: int = 0, uid: int | None = None, **more: Any) -> int:
        fence = {"generation": self.owned.generation, "wake_id": self.owned.wake_id}
        return int(
            self.apply(
                SubscriptionEvent(
                    "s", self.uid if uid is None else uid, event, now_ms, **{**fence, **more}
                )
            ).code
        )

    def link(
        self, uid: int, revision: int = 1, *, pattern: str = "", streams: tuple[str, ...] = ()
    ) -> int:
        return int(
            self.apply(
                LinkSubscription("s", uid, revision, pattern, "test/wake", list(streams))
            ).code
        )

    def linked(self, uid: int) -> set[str]:
        return {info.name for info in oldest_links(self.world.machines[1], "s", uid, 100)}

    def create(self, name: str, *records: bytes) -> int:
        uid = int(self.apply(Create(name, 0, "text/plain", 0)).uid)
        for record in records:
            self.apply(Append(name, 0, "text/plain", raw_batch(record)))
        return uid

    def ack(self, uid: int, name: str, stream_uid: int, record: int, byte: int) -> Any:
        return self.apply(AckLinks("s", uid, [(name, stream_uid, record, byte)]))

    def cursor(self, uid: int, name: str) -> tuple[int, int]:
        (info,) = named_links(self.world.machines[1], "s", uid, [name])
        return info.record, info.byte


@pytest.fixture
def one() -> One:
    return One()


# --- the home


def test_a_repeated_put_gives_callbacks_the_new_address(one: One) -> None:
    assert one.put(base="http://old") == Code.CREATED
    assert one.put(base="http://new") == Code.EXISTS
    assert one.owned.base_url == "http://new"


def test_subscriptions_of_a_group_are_bounded(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_PER_GROUP_MAX", 2)
    assert [one.put(key) for key in "abc"] == [Code.CREATED, Code.CREATED, Code.TOO_MANY]
    assert one.put("a") == Code.EXISTS
    one.apply(SubscriptionDelete("a", 0))
    assert one.put("c") == Code.CREATED


def test_explicit_streams_are_bounded(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTION_STREAMS_MAX", 2)
    one.put()
    assert one.apply(SubscriptionStreams("s", [A, B], [], 0)).code == Code.OK
    assert one.apply(SubscriptionStreams("s", [C], [], 0)).code == Code.TOO_MANY
    assert one.apply(SubscriptionStreams("s", [C], [A], 0)).code == Code.OK
    assert list(one.owned.streams) == [B, C]


def test_a_subscription_deleted_in_the_middle_of_a_wake_is_not_tended(one: One) -> None:
    one.put()
    assert one.event(Event.WAKE, wake_id="w1") == Code.OK
    assert list(one.state.awake) == ["s"]
    one.apply(SubscriptionDelete("s", 0))
    assert not one.state.awake and not one.state.owned
    (grave,) = one.world.restored(one.world.machines[1]).subscriptions.graves.values()
    assert (grave.id, grave.uid) == ("s", one.uid), "a restart still knows whom to tell"
    assert one.apply(SubscriptionLinked("s", one.uid, 0)).code == Code.OK
    assert not one.state.graves


def test_graves_are_bounded(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "ATTEMPTS_REMEMBERED_MAX", 2)
    for key in "abc":
        one.put(key)
        one.apply(SubscriptionDelete(key, 0))
    assert [grave.id for grave in one.state.graves.values()] == ["b", "c"]


def test_late_news_of_links_do_not_take_back_newer_ones(one: One) -> None:
    one.put()
    assert one.apply(SubscriptionLinked("s", one.uid, 2)).code == Code.OK
    assert one.apply(SubscriptionLinked("s", one.uid, 1)).code == Code.OK
    assert one.owned.linked == 2


def test_another_life_of_an_id_is_not_meant(one: One) -> None:
    one.put()
    before = one.uid
    one.apply(SubscriptionDelete("s", 0))
    one.apply(SubscriptionLinked("s", before, 0))
    one.put()
    assert one.apply(SubscriptionLinked("s", before, 5)).code == Code.NOT_FOUND
    assert one.event(Event.WAKE, uid=before, wake_id="w") == Code.NOT_FOUND
    assert (one.owned.linked, one.owned.state) == (0, State.IDLE)
    assert one.event(Event.WAKE, uid=0, wake_id="w") == Code.OK, "0 means any life"


def test_a_lease_ends_at_its_millisecond(one: One) -> None:
    one.put(kind=PULL_WAKE)
    assert one.event(Event.CLAIM, 0, wake_id="w1", text="a") == Code.OK
    assert one.owned.lease_until_ms == 1000
    assert one.event(Event.EXPIRE, 999) == Code.ACTIVE
    assert one.event(Event.CLAIM, 999, wake_id="w2", text="b") == Code.HELD
    assert one.event(Event.CLAIM, 1000, wake_id="w2", text="b") == Code.OK
    assert (one.owned.generation, one.owned.holder) == (2, "b")
    assert one.event(Event.EXPIRE, 2000) == Code.OK
    assert (one.owned.holder, one.owned.wake_id, one.owned.lease_until_ms) == ("", "", 0)


def test_the_first_key_stays(one: One) -> None:
    assert one.apply(MetaSet("key", b"first")).code == Code.OK
    again = one.apply(MetaSet("key", b"second"))
    assert (again.code, again.detail) == (Code.EXISTS, b"first")
    assert one.apply(MetaSet("key", b"first")).code == Code.OK


# --- the streams' groups


def test_a_life_that_is_over_registers_nothing_any_more(one: One) -> None:
    one.create(A)
    one.apply(UnlinkSubscription("s", 7))
    one.world.restart(1)
    assert one.link(7, pattern="test/*") == Code.ATTEMPT_REFUSED
    assert one.link(9, pattern="test/*") == Code.OK
    assert one.link(8, pattern="**") == Code.ATTEMPT_REFUSED, "an older life comes late"
    assert one.linked(9) == {A}


def test_a_newer_life_takes_the_place_of_an_older_one(one: One) -> None:
    one.create(A, b"x")
    one.create(B)
    assert one.link(1, pattern="test/a", streams=(C,)) == Code.OK
    one.apply(Append(A, 0, "text/plain", raw_batch(b"y")))
    assert one.link(2, pattern="test/b") == Code.OK
    assert (one.linked(1), one.linked(2)) == (set(), {B})
    one.create(C, b"z")
    assert one.linked(2) == {B}
    one.apply(UnlinkSubscription("s", 1))
    assert one.linked(2) == {B}, "the end of the older one is not that of the newer"
    one.apply(UnlinkSubscription("s", 3))
    assert not one.state.watches, "whoever is over, those before were too"


def test_revisions_are_applied_once_and_in_order(one: One) -> None:
    for name in (A, B, C):
        one.create(name)
    assert one.link(1, 1, streams=(A,)) == Code.OK
    assert one.link(1, 3, streams=(B,)) == Code.OK
    for late in (1, 2, 3):
        assert one.link(1, late, streams=(C,)) == Code.OK
        assert one.linked(1) == {B}


def test_lives_that_are_over_are_remembered_within_bounds(
    one: One, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "ATTEMPTS_REMEMBERED_MAX", 2)
    for uid in (1, 2, 3):
        one.apply(UnlinkSubscription("s", uid))
    assert list(one.state.dropped) == [2, 3]


def test_a_stream_that_only_forks_still_need_is_not_linked(one: One) -> None:
    one.create(A, b"x")
    one.apply(PinSource(A, "a" * 32, "test/fork", 0))
    one.apply(Delete(A, 0))
    assert one.world.machines[1].directory.streams[A].deleted
    assert one.link(1, pattern="test/*", streams=(A,)) == Code.OK
    one.create(B, b"x")
    one.apply(PinSource(B, "b" * 32, "test/fork", 0))
    one.apply(Delete(B, 0))
    assert one.world.machines[1].directory.streams[B].links is None, "nor is it followed on"
    assert one.world.machines[1].directory.streams[A].links is None
    assert [
        (info.name, info.stream_uid) for info in oldest_links(one.world.machines[1], "s", 1, 10)
    ] == [(A, 0)]


def test_a_deleted_subscription_takes_its_news_along(one: One) -> None:
    one.link(1, pattern="test/*")
    one.create(A, b"x")
    assert list(one.state.wakes) == ["s"]
    one.apply(UnlinkSubscription("s", 1))
    assert not one.state.wakes and one.world.machines[1].directory.streams[A].links is None


def test_news_are_told_when_there_was_nothing_pending(one: One) -> None:
    one.link(1, pattern="test/*")
    first = one.create(A, b"x")
    assert one.state.wakes.pop("s") == (1, A)
    one.create(B, b"y")
    assert not one.state.wakes
    one.ack(1, A, first, 1, 1)
    one.apply(Append(A, 0, "text/plain", raw_batch(b"z")))
    assert not one.state.wakes, "the other stream still waits"


def test_an_acknowledgement_of_another_life_of_the_stream_moves_nothing(one: One) -> None:
    one.link(1, pattern="test/*")
    before = one.create(A, b"x")
    one.apply(Delete(A, 0))
    now = one.create(A, b"x")
    assert one.ack(1, A, before, 1, 1).detail == [A]
    assert one.cursor(1, A) == (0, 0)
    assert one.ack(2, A, now, 1, 1).code == Code.NOT_FOUND, "of another life of the subscription"
    assert one.ack(1, A, now, 1, 1).detail == []
    assert one.cursor(1, A) == (1, 1)


def test_cursors_never_go_back_and_never_beyond_the_tail(one: One) -> None:
    one.link(1, pattern="test/*")
    uid = one.create(A, b"one", b"three")
    assert one.ack(1, A, uid, 1, 99).detail == []
    assert one.cursor(1, A) == (1, 8), "a byte beyond the tail is the tail's"
    assert one.ack(1, A, uid, 1, 3).detail == []
    assert one.cursor(1, A) == (1, 8)
    assert one.ack(1, A, uid, 3, 8).detail == [A]
    assert one.ack(1, A, uid, 2, 0).detail == []
    assert one.cursor(1, A) == (2, 8), "at the tail the byte is the tail's, too"
    assert one.ack(1, A, uid, 0, 0).detail == []
    assert one.cursor(1, A) == (2, 8)
    assert not one.state.watches["s"].pending


def test_what_was_trimmed_is_nobodys_work_any_more(one: One) -> None:
    one.link(1, pattern="test/*")
    uid = one.create(A, b"one", b"three", b"five")
    one.apply(Trim([(uid, 1, 3)], 0))
    assert one.cursor(1, A) == (1, 3)
    assert list(one.state.watches["s"].pending) == [uid]
    one.ack(1, A, uid, 2, 8)
    one.apply(Trim([(uid, 2, 8)], 0))
    assert one.cursor(1, A) == (2, 8), "what was done before stays done"
    one.apply(Trim([(uid, 3, 12)], 0))
    assert one.cursor(1, A) == (3, 12) and not one.state.watches["s"].pending


def test_links_are_shown_once_each_within_the_limit(one: One) -> None:
    one.link(1, pattern="test/*", streams=(A, C))
    one.create(B)
    one.create(A, b"x")
    machine = one.world.machines[1]
    for limit in range(5):
        found = [info.name for info in oldest_links(machine, "s", 1, limit)]
        assert found == [A, B, C][:limit], "pending first, those that do not exist last"
        assert [info.name for info in page_of_links(machine, "s", 1, "", limit)] == [A, B, C][
            :limit
        ]
    assert [info.name for info in page_of_links(machine, "s", 1, "test/a", 9)] == [B, C]
    assert named_links(machine, "s", 1, ["test/none"]) == []
    for question in (
        oldest_links(machine, "s", 2, 9),
        page_of_links(machine, "s", 2, "", 9),
        named_links(machine, "s", 2, [A]),
    ):
        assert question == [], "of another life"


def test_a_stream_that_is_followed_no_more_is_not_pending_either(one: One) -> None:
    one.create(A)
    one.link(1, 1, streams=(A,))
    one.apply(Append(A, 0, "text/plain", raw_batch(b"x")))
    one.link(1, 2)
    assert not one.state.watches["s"].pending and not one.state.watches["s"].linked


def test_a_restart_counts_what_is_pending_and_nothing_else(one: One) -> None:
    one.link(1, pattern="test/*")
    one.create(A, b"x")
    one.create(B)
    again = one.world.restored(one.world.machines[1]).subscriptions.watches["s"]
    assert (len(again.linked), len(again.pending)) == (2, 1)
    assert not again.matches("test/wake") and again.matches("test/x")


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("test/*", ["test/a"], ["test", "test/a/b", "other/a"]),
        ("test/**", ["test/a", "test/a/b", "test"], ["tests/a", "a/test/b"]),
        ("**/end", ["end", "a/end", "a/b/end", "end/end"], ["end/a", "a/ends"]),
        ("a/**/b/**/c", ["a/b/c", "a/x/b/c", "a/b/b/x/c/c"], ["a/b", "a/c/b", "a/x/c"]),
        ("*/*", ["a/b"], ["a", "a/b/c"]),
        ("**", ["a", "a/b/c"], []),
        ("%2A/x", ["*/x"], ["a/x", "%2A/x"]),
        ("a/%2a", ["a/*"], ["a/b", "a/%2a"]),
        ("a/**/*", ["a/b", "a/b/c"], ["a"]),
    ],
)
def test_patterns(one: One, pattern: str, matching: list[str], others: list[str]) -> None:
    check_pattern(pattern)
    matches = compile_pattern(pattern)
    assert [name for name in matching if not matches(canonical_name(name))] == []
    assert [name for name in others if matches(canonical_name(name))] == []
    one.link(1, pattern=pattern)  # and so are they found when they come
    for name in dict.fromkeys(matching + others):
        one.create(canonical_name(name))
    assert one.linked(1) == {canonical_name(name) for name in matching}


def test_what_is_no_pattern_is_told() -> None:
    check_pattern("x" * PATH_BYTES_MAX)
    for wrong in ("", "a//b", "a/.", "..", "a*", "***", "é" * (PATH_BYTES_MAX // 2) + "x"):
        with pytest.raises(BadPattern):
            check_pattern(wrong)


@pytest.mark.parametrize(
    "pattern",
    [
        "_snapshots/**",
        "_snapshots/docs/a",
        "default/_snapshots/docs/a",
        "_modules/*",
        "v1",
        "a/snapshot/*",
        "*/**/attrs",
        "**/a/$x",
        "a/state",
        "*/state",
    ],
)
def test_a_pattern_of_reserved_names_is_told(pattern: str) -> None:
    with pytest.raises(BadPattern, match="no stream matches"):
        check_pattern(pattern)
    with pytest.raises(BadName):
        canonical_name(pattern.replace("**/", "").replace("*", "x"))


@pytest.mark.parametrize(
    "name", ["state", "snapshot", "a/_snapshots", "a/state/b", "default/a/b", "a/v1"]
)
def test_a_pattern_beside_reserved_names_matches(name: str) -> None:
    for pattern in (name, f"**/{name.rpartition('/')[2]}"):
        check_pattern(pattern)
        assert compile_pattern(pattern)(canonical_name(name))
