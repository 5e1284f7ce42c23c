"""Single rules of `CommitSlices`, and of the profile beside other parts of the state."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs
from worlds.packed import Packable, commit_of
from worlds.stream import World, json_batch, kafka_batch, raw_batch

from polynya.base import limits
from polynya.base.levels import RECEIPT_LEVEL
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.pages.eviction import evicted_view
from polynya.stream.features.profiles import commits
from polynya.stream.features.profiles.commands import (
    IS_COMPRESSED,
    CommitSlices,
    Profile,
    SetProfile,
)
from polynya.stream.features.profiles.rules import profile_of
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.features.settings.commands import SetLevel
from polynya.stream.features.subscriptions.commands import LinkSubscription
from polynya.stream.parts import COMPRESSED, UNDECIDED, Encoding, Producer, Retention, SegmentLimits
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import decode_image, snapshot_of
from polynya.stream.snapshots.restore_history import Survey, reborn
from polynya.stream.snapshots.store_recovery import UnnamedSlice, salvage
from polynya.stream.state import index
from polynya.stream.state.model import ColdSlice

A = "a"
TEXT = "text/plain"


def wrong_body(now_ms: int) -> Append:
    return Append(A, now_ms, "image/png", raw_batch(b"x"))


class Group:
    """One group with a diskless stream, and one writer."""

    def __init__(self) -> None:
        self.world = World(1)
        self.sequence = 0
        created = self.world.apply(1, Create(A, 1, TEXT, Encoding.BYTES, profile=Profile.DISKLESS))
        self.uid = created.uid

    @property
    def machine(self):  # type: ignore[no-untyped-def]
        return self.world.machines[1]

    def commit(self, pack: str, *appends: Packable, now_ms: int = 1000) -> Reply:
        self.sequence += 1
        command = commit_of(self.world, pack, ("w", self.sequence), appends, now_ms=now_ms)
        return self.world.apply(1, command)

    def slices(self) -> Sequence[ColdSlice]:
        return list(self.machine.packs.index_of(self.machine.directory.streams[A]))


def body(now_ms: int, data: bytes = b"x") -> Append:
    return Append(A, now_ms, TEXT, raw_batch(data))


def test_append_times_along_an_index_never_decrease() -> None:
    """The clocks of writers differ, and so does the way of a pack."""
    group = Group()
    group.commit("p1", body(900), body(950), now_ms=1000)
    group.commit("p2", body(700), body(800), now_ms=1001)
    group.commit("p3", body(990), now_ms=1002)
    stream = group.machine.directory.streams[A]
    assert [index.time_ms_max(stream.cold, at) for at in range(3)] == [950, 950, 990]
    assert [each.time_ms for each in group.slices()] == [900, 700, 990]
    assert stream.activity_ms == 1002, "judged at the time of the log"
    cut = cut_of(stream, Retention(age_seconds=1), 1960)
    assert cut.boundary == (4, 4), "what is behind a younger record goes with it"


def test_entries_say_of_their_batches_what_readers_ask() -> None:
    group = Group()
    batch = structs.replace(kafka_batch(3), flags=1, record_time_ms_max=5000)
    control = structs.replace(kafka_batch(1), flags=2)
    group.commit(
        "p1", body(900), Append(A, 901, TEXT, batch), Append(A, 902, TEXT, control), body(903)
    )
    assert [
        (each.encoding, each.records, each.record_time_ms_max, each.flags, each.batches)
        for each in group.slices()
    ] == [
        (Encoding.BYTES, 1, 900, 0, 1),
        (Encoding.KAFKA, 4, 5000, 3 | UNDECIDED, 2),
        (Encoding.BYTES, 1, 903, 0, 1),
    ]


def test_entries_say_whether_their_slice_is_compressed() -> None:
    """Say it of each part of the slice, and give a node without peers the level."""
    group = Group()
    command = commit_of(
        group.world, "p1", ("w", 1), [body(900), wrong_body(901), body(902)], now_ms=1000
    )
    part = structs.replace(command.slices[0], encoding=IS_COMPRESSED + Encoding.BYTES)
    assert group.machine.counters.level == 3
    group.world.apply(1, structs.replace(command, slices=[part]))
    assert [(each.encoding, each.flags, each.first_batch) for each in group.slices()] == [
        (Encoding.BYTES, COMPRESSED, 0),
        (Encoding.BYTES, COMPRESSED, 2),
    ]
    assert group.machine.counters.level == 4


@pytest.mark.parametrize("gone", [False, True])
def test_a_pack_without_an_accepted_append_is_released_if_nothing_comes_again(gone: bool) -> None:
    group = Group()
    group.world.apply(
        1, Create("hot", 1, TEXT, Encoding.BYTES, batch=raw_batch(b"h"), profile=Profile.DISKLESS)
    )
    other = structs.replace(body(900), name="none" if gone else "hot")
    wrong = structs.replace(body(900), content_type="image/png")
    reply = group.commit("p1", wrong, other)
    assert [each.code for each in reply.detail] == [
        Code.CONTENT_TYPE,
        Code.NOT_FOUND if gone else Code.NOT_YET,
    ]
    assert ("p1" in group.machine.packs.released) == gone
    hot = group.machine.directory.streams["hot"]
    cold = group.world.slice_of(hot, 1, "flushed")
    group.world.apply(1, PublishSlices("flushed", 1, 1, [(hot.uid, cold)]))
    again = group.commit("p1", other)
    assert again.code == (Code.GONE if gone else Code.OK)


def test_a_group_remembers_a_bounded_number_of_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "WRITERS_MAX", 2)
    group = Group()

    def commit(writer: str, sequence: int, now_ms: int) -> Code:
        some = [body(now_ms)]
        command = commit_of(group.world, f"p{now_ms}", (writer, sequence), some, now_ms=now_ms)
        return Code(group.world.apply(1, command).code)

    assert [commit("u", 1, 1000), commit("v", 1, 2000)] == [Code.OK, Code.OK]
    assert commit("w", 1, 2001) == Code.MEMORY_PRESSURE
    assert commit("u", 2, 2002) == Code.OK
    assert commit("w", 1, 2000 + limits.WRITER_IDLE_MS) == Code.MEMORY_PRESSURE
    assert commit("w", 1, 2001 + limits.WRITER_IDLE_MS) == Code.OK, "v is forgotten"
    assert sorted(group.machine.diskless.writers) == ["u", "w"]
    assert group.machine.directory.streams[A].next_record == 4


def test_subscriptions_are_woken_by_a_commit() -> None:
    group = Group()
    group.world.apply(1, LinkSubscription("s", 5, 1, "", "", [A]))
    assert not group.machine.subscriptions.wakes
    group.commit("p1", body(900))
    assert list(group.machine.subscriptions.wakes.values()) == [(5, A)]


def test_the_stub_of_an_evicted_stream_knows_its_profile() -> None:
    group = Group()
    group.commit("p1", body(900))
    assert group.world.evict(1, [A]) == [A]
    group.world.restart(1)
    view = evicted_view(group.machine, A)
    assert view is not None and profile_of(view) == Profile.DISKLESS
    group.world.bring(1, [A])
    assert profile_of(group.machine.directory.streams[A]) == Profile.DISKLESS
    group.world.apply(1, SetRetention(A, Retention(bytes=1), 1000))
    assert not group.world.evict(1, [A])


def test_profiles_exclude_each_other() -> None:
    group = Group()
    leased = Create("l", 1, TEXT, Encoding.BYTES, segments=SegmentLimits(5, 0))
    uid = group.world.apply(1, leased).uid
    refused = group.world.apply(1, SetProfile("l", Profile.DISKLESS, 2))
    assert (refused.code, refused.detail) == (Code.REFUSED, (0, 1, False))
    for create, differs in (
        (Create("l", 2, TEXT, 0, profile=Profile.DISKLESS), [("profile", "leased")]),
        (Create(A, 2, TEXT, 0, segments=SegmentLimits(0, 0)), [("profile", "diskless")]),
        (Create(A, 2, TEXT, 0, profile=Profile.DISKLESS), TEXT),
        (Create(A, 2, TEXT, 0), TEXT),
    ):
        assert group.world.apply(1, create).detail == differs
    group.world.apply(1, SetProfile(A, Profile.REPLICATED, 3))
    again = group.world.apply(1, Create(A, 4, TEXT, 0, profile=Profile.DISKLESS))
    assert again.detail == [("profile", "replicated")]
    assert list(group.machine.directory.leased) == [uid] and not group.machine.diskless.streams


def test_a_node_without_peers_notes_the_level() -> None:
    world = World(1)
    world.apply(1, Create(A, 1, TEXT, Encoding.BYTES))
    assert world.machines[1].counters.level == 1
    world.apply(1, SetProfile(A, Profile.DISKLESS, 2))
    assert world.machines[1].counters.level == 3
    assert Group().machine.counters.level == 3


def test_a_new_history_knows_no_writers_and_goes_on() -> None:
    group = Group()
    group.commit("p1", body(900), body(901))
    image = decode_image(snapshot_of(group.machine))
    # recovery positions no slice whose position only the log knew
    stray = UnnamedSlice(group.uid, ColdSlice(-1, -1, 1, 1, "p2", 0, 9, 7), 1, 0, 950)
    other = UnnamedSlice(
        (1 << 48) | 9, ColdSlice(-1, -1, 1, 1, "p2", 0, 9, 7), 1, 0, 950, "b", TEXT
    )
    assert salvage(image, {group.uid: [stray], other.uid: [other]}) == []
    survey = Survey()
    survey.add(image)
    assert reborn(image, survey, now_ms=2000) == []
    assert [stream.name for stream in image.streams] == [A] and not image.writers
    assert profile_of(image.streams[0]) == Profile.DISKLESS


def test_a_repeat_has_the_same_replies_after_a_restart() -> None:
    group = Group()
    wrong = Append(A, 900, "image/png", json_batch(b"1"))
    command: CommitSlices = commit_of(group.world, "p1", ("w", 1), [body(900), wrong], now_ms=1000)
    reply = group.world.apply(1, command)
    assert [each.detail for each in reply.detail] == [None, TEXT]
    group.world.restart(1)
    assert group.world.apply(1, structs.replace(command, now_ms=5000)) == reply


def test_a_repeat_in_a_pack_with_another_body_is_a_conflict() -> None:
    group = Group()
    group.world.apply(1, SetLevel(RECEIPT_LEVEL))

    def sent(sequence: int, data: bytes) -> Append:
        return structs.replace(body(900, data), producer=Producer("p", 0, sequence))

    first = group.commit("p1", sent(0, b"0"), sent(0, b"0"), sent(0, b"other"), sent(1, b"1"))
    codes = [Code.OK, Code.DUPLICATE, Code.PRODUCER_CONFLICT, Code.OK]
    assert [reply.code for reply in first.detail] == codes
    again = group.commit("p2", sent(1, b"other"), sent(1, b"1"))
    assert [reply.code for reply in again.detail] == [Code.PRODUCER_CONFLICT, Code.DUPLICATE]
    assert group.machine.directory.streams[A].next_record == 2
