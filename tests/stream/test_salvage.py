"""Recovery from the object store alone: records in packs are back at their offsets; missing ones
are reported."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from worlds.stream import World, check_invariants, raw_batch

from polynya.base.names import group_of
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.forks.commands import PinSource, Unpin
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.packs.commands import PublishSlices
from polynya.stream.features.retention.commands import Trim
from polynya.stream.machine import Machine
from polynya.stream.parts import COMPRESSED, ColdSlice, Encoding, Producer
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import decode_image, machine_from, snapshot_of, write_image
from polynya.stream.snapshots.restore_history import Survey, reborn
from polynya.stream.snapshots.store_recovery import UnnamedSlice, salvage, whole_again
from polynya.stream.state import index
from polynya.stream.state.model import Evicted, Stream, StreamExtras
from polynya.stream.state.record_gaps import JUMP
from polynya.wire.kafka.values import partition_type

NAMES = ["docs/a", "docs/b", "docs/c"]
GROUP = 1  # the only one for streams
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from(NAMES)),
        st.tuples(st.just("flush"), st.sampled_from(NAMES)),
        st.tuples(st.just("flush one"), st.sampled_from(NAMES)),
        st.tuples(st.just("put"), st.sampled_from(NAMES)),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("trim"), st.sampled_from(NAMES)),
        st.tuples(st.just("copy"), st.just("")),
    ),
    max_size=25,
)

PINNED_STEPS = 3 * ["append"] + ["flush", "flush one", "put", "trim", "pin", "unpin", "copy"]


class Lost:
    """A group whose packs are in a store, and whose copies are made now and then."""

    def __init__(self) -> None:
        self.world = World(1)
        self.copy = snapshot_of(self.machine)
        self.pieces: dict[int, list[UnnamedSlice]] = {}
        self.count = 0

    @property
    def machine(self) -> Machine:
        return self.world.machines[GROUP]

    def do(self, what: str, name: str) -> None:
        stream = self.machine.directory.streams.get(name)
        self.count += 1
        if what == "copy":
            self.copy = snapshot_of(self.machine)
        elif what == "append":
            if stream is None:
                self.world.apply(GROUP, Create(name, self.count, "text/plain", Encoding.BYTES))
            batch = raw_batch(b"%s %d;" % (name.encode(), self.count))
            assert (
                self.world.apply(GROUP, Append(name, self.count, "text/plain", batch)).code
                == Code.OK
            )
        elif stream is not None and what == "delete":
            self.world.apply(GROUP, Delete(name, self.count))
        elif stream is not None and what == "pin":
            self.world.apply(GROUP, PinSource(name, f"attempt {self.count}", "docs/d", self.count))
        elif stream is not None and what == "unpin":
            for attempt in list(stream.pins or ())[:1]:
                self.world.apply(GROUP, Unpin(stream.uid, attempt, self.count))
        elif stream is not None and what == "trim":
            at = (
                (stream.hot[-1].record, stream.hot[-1].byte)
                if stream.hot
                else (stream.next_record, stream.next_byte)
            )
            self.world.apply(GROUP, Trim([(stream.uid, *at)], self.count))
        elif stream is not None and stream.hot:
            first = not stream.cold
            batches = 1 if what == "flush one" else len(stream.hot)
            cold = self.world.slice_of(stream, batches, f"p{self.count}")
            piece = UnnamedSlice(
                stream.uid,
                cold,
                GROUP,
                stream.encoding,
                self.count,
                name if first else "",
                "text/plain" if first else "",
            )
            self.pieces.setdefault(stream.uid, []).append(piece)
            if what != "put":  # else its publication is refused, or lost
                self.world.apply(GROUP, PublishSlices(cold.pack, GROUP, 1, [(stream.uid, cold)]))

    def recovered(self) -> tuple[Machine, list[str]]:
        """Return the recovered machine and the names reported as lost."""
        image = decode_image(self.copy)
        named = set(image.held)
        others = {
            uid: [piece for piece in pieces if piece.slice.pack not in named]
            for uid, pieces in self.pieces.items()
        }
        notes = salvage(image, {uid: pieces for uid, pieces in others.items() if pieces})
        survey = Survey()
        survey.add(image)
        notes += reborn(image, survey, now_ms=99)
        return machine_from(write_image(image), lambda position, uid: b""), [
            note.name for note in notes
        ]


@given(STEPS)
def test_what_was_in_a_pack_is_readable_again_with_the_same_offsets(
    steps: list[tuple[str, str]],
) -> None:
    lost = Lost()
    for step in steps:
        lost.do(*step)
    machine, _ = lost.recovered()
    assert assert_held(machine)
    for name, stream in lost.machine.directory.streams.items():
        before = list(lost.machine.packs.index_of(stream))
        if not before:
            continue
        again = machine.directory.streams[name]
        assert again.uid == stream.uid
        entries = list(machine.packs.index_of(again))
        if any(step[0] == "put" for step in steps):  # the same records may be in several packs
            behind = [(each.record + each.records, each.byte + each.length) for each in entries]
            assert [(each.record, each.byte) for each in entries[1:]] == behind[:-1], (
                "there is no hole, and nothing twice"
            )
            assert entries[0].record <= max(before[0].record, stream.first_record)
        else:
            found = [(each.record, each.byte, each.pack) for each in entries]
            assert found[-len(before) :] == [(each.record, each.byte, each.pack) for each in before]
        assert again.first_record <= stream.first_record, (
            "that it was trimmed since the copy is forgotten, at most"
        )
        end = before[-1].record + before[-1].records
        assert (
            end
            <= again.next_record - JUMP
            <= (stream.next_record if any(step[0] == "put" for step in steps) else end)
        )


@given(st.lists(st.sampled_from(PINNED_STEPS), max_size=25))
def test_what_a_stream_and_its_forks_need_is_recovered_once(steps: list[str]) -> None:
    lost = Lost()
    for step in steps:
        lost.do(step, "" if step == "copy" else "docs/a")
    stream = lost.machine.directory.streams.get("docs/a")
    before = list(lost.machine.packs.index_of(stream)) if stream is not None else []
    if stream is None or not before:
        return
    machine, _ = lost.recovered()
    again = machine.directory.streams["docs/a"]
    end = before[-1].record + before[-1].records
    assert again.first_record <= stream.first_record and again.next_record - JUMP >= end
    stored = _stored(machine, again)
    assert stored == sorted(set(stored)), "nothing is there twice"
    assert set(stored) >= set(range(stream.first_record, end))
    for attempt in (again.pins or {}).keys() & (stream.pins or {}).keys():
        pinned = range((stream.pins or {})[attempt].record)
        assert set(stored) & set(pinned) >= set(_stored(lost.machine, stream)) & set(pinned)


def _stored(machine: Machine, stream: Stream) -> list[int]:
    """Return the records that are stored for a stream and its forks."""
    return [
        record
        for each in machine.packs.whole_index_of(stream)
        for record in range(each.record, each.record + each.records)
    ]


def assert_held(machine: Machine) -> bool:
    check_invariants(machine)
    return set(machine.packs.owned) == set(machine.packs.held)


def test_what_was_flushed_behind_a_trim_is_found() -> None:
    """Trim before the flush: the records before the trim were never in a pack."""
    lost = Lost()
    for what in (
        "append",
        "copy",
        "append",
        "trim",
        "flush",
        "append",
        "append",
        "append",
        "trim",
        "flush",
        "append",
    ):
        lost.do(what, "docs/a")
    machine, names = lost.recovered()
    stream = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.index_of(stream)] == [4]
    assert (stream.first_record, stream.next_record) == (4, 5 + JUMP)
    assert names == [] and assert_held(machine)


def test_what_was_flushed_behind_a_trim_counts_more_than_what_was_put_before_and_never_named() -> (
    None
):
    """Seed 3000371 of the swarm: the two overlap, and the earlier one ends before."""
    lost = Lost()
    for what in (
        "append",
        "copy",
        "append",
        "append",
        "put",
        "trim",
        "append",
        "flush",
        "append",
        "flush",
        "append",
    ):
        lost.do(what, "docs/a")
    machine, names = lost.recovered()
    stream = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.index_of(stream)] == [2, 4]
    assert (stream.first_record, stream.next_record) == (2, 5 + JUMP)
    assert names == [] and assert_held(machine)


def test_a_slice_that_was_put_and_never_named_ends_no_recovery() -> None:
    """Seed 31178 of the swarm: it is longer than the one that was published, and nothing begins
    where it ends."""
    lost = Lost()
    steps = ("copy", "append", "append", "append", "put", "flush one", "append", "append", "flush")
    for what in steps:
        lost.do(what, "" if what == "copy" else "docs/a")
    machine, names = lost.recovered()
    stream = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.index_of(stream)] == [0, 1]
    assert stream.next_record == 5 + JUMP
    assert names == [] and assert_held(machine)


def test_what_a_fork_needs_of_what_was_trimmed_is_kept() -> None:
    lost = Lost()
    for what in ("append", "flush"):
        lost.do(what, "docs/a")
    assert lost.world.apply(GROUP, PinSource("docs/a", "attempt", "docs/b", 9)).code == Code.OK
    for what in ("copy", "append", "append", "trim", "flush"):
        lost.do(what, "docs/a")
    machine, _ = lost.recovered()
    again = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.whole_index_of(again)] == [0, 2]
    assert (again.first_record, again.next_record) == (2, 3 + JUMP)
    assert assert_held(machine)


def test_what_follows_a_trim_is_chosen_by_how_far_it_reaches() -> None:
    """Prefer the candidate that reaches furthest behind the trim. The unpublished one is longer,
    but nothing continues at its end."""
    lost = Lost()
    for what in ("append", "flush", "copy", "append", "append", "trim", "append", "put"):
        lost.do(what, "docs/a")
    for what in ("flush one", "append", "flush", "append"):
        lost.do(what, "docs/a")
    machine, names = lost.recovered()
    stream = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.index_of(stream)] == [2, 3]
    assert stream.next_record == 5 + JUMP
    assert names == [] and assert_held(machine)


def test_what_was_put_and_never_named_gives_way_to_slices_that_reach_further_together() -> None:
    """The first of them ends before it does."""
    lost = Lost()
    for what in ("append", "flush", "copy", "append", "append", "append", "append", "put"):
        lost.do(what, "docs/a")
    ((uid, stream),) = lost.machine.directory.by_uid.items()
    lost.world.apply(GROUP, Trim([(uid, 3, stream.hot[2].byte)], 9, ["docs/a"]))  # type: ignore[index]
    for what in ("flush one", "append", "flush", "append"):
        lost.do(what, "docs/a")
    machine, names = lost.recovered()
    again = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.index_of(again)] == [3, 4]
    assert (again.first_record, again.next_record) == (3, 6 + JUMP)
    assert names == [] and assert_held(machine)


def test_a_stream_with_forks_goes_on_behind_what_was_put_and_never_named() -> None:
    """Seed 20261258 of the swarm: a later slice begins inside the one that was never published."""
    lost = Lost()
    for what in ("append", "flush"):
        lost.do(what, "docs/a")
    assert lost.world.apply(GROUP, PinSource("docs/a", "attempt", "docs/b", 9)).code == Code.OK
    for what in ("copy", "append", "append", "put", "trim", "append", "flush", "append", "flush"):
        lost.do(what, "docs/a")
    machine, names = lost.recovered()
    again = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.whole_index_of(again)] == [0, 2, 4]
    assert (again.first_record, again.next_record) == (2, 5 + JUMP)
    assert names == [] and set(again.pins or ()) == {"attempt"} and assert_held(machine)


def test_a_pin_of_records_that_were_trimmed_since_the_copy_is_forgotten() -> None:
    """Drop the pin of a deleted fork: records that a fork needs are stored, also behind a trim."""
    lost = Lost()
    for what in ("append", "flush", "append"):
        lost.do(what, "docs/a")
    assert lost.world.apply(GROUP, PinSource("docs/a", "attempt", "docs/b", 9)).code == Code.OK
    lost.do("copy", "")
    uid = lost.machine.directory.streams["docs/a"].uid
    assert lost.world.apply(GROUP, Unpin(uid, "attempt", 9)).code == Code.OK
    for what in ("append", "put", "trim", "append", "flush"):
        lost.do(what, "docs/a")
    machine, _ = lost.recovered()
    again = machine.directory.streams["docs/a"]
    assert [each.record for each in machine.packs.whole_index_of(again)] == [2]
    assert (again.first_record, again.next_record) == (2, 4 + JUMP)
    assert again.pins is None and assert_held(machine)


def test_an_evicted_stream_that_came_back_and_was_trimmed_goes_on_behind_the_trim() -> None:
    lost = Lost()
    for step in ("append", "flush", "copy", "append", "append"):
        lost.do(step, "docs/a")
    ((uid, stream),) = lost.machine.directory.by_uid.items()
    lost.world.apply(GROUP, Trim([(uid, 2, stream.hot[1].byte)], 9, ["docs/a"]))  # type: ignore[index]
    lost.do("flush", "docs/a")
    image = decode_image(lost.copy)
    (whole,) = image.streams
    view = msgspec.structs.replace(
        whole, cold=None, extras=StreamExtras(evicted=Evicted(1, 0, 1, 0))
    )
    image.streams = [view]
    salvage(image, {uid: lost.pieces[uid][1:]})
    whole_again(image, whole, view)
    assert (
        whole.first_record,
        index.count(whole.cold),
        index.begin_of(whole.cold or b"", 0)[0],
    ) == (2, 1, 2)
    assert sum(held.slices for held in image.held.values()) == 1, (
        "what lay before the trim is let go"
    )


def test_an_evicted_stream_whose_slices_were_merged_is_recovered_once() -> None:
    """Seed 41070 of the swarm: the merged slice begins where the stream does."""
    lost = Lost()
    for step in ("append", "put", "flush", "copy", "append"):
        lost.do(step, "docs/a")
    ((uid, stream),) = lost.machine.directory.by_uid.items()
    image = decode_image(lost.copy)
    (whole,) = image.streams
    merged = msgspec.structs.replace(
        lost.pieces[uid][0],
        slice=msgspec.structs.replace(
            lost.pieces[uid][0].slice, records=2, length=stream.next_byte, pack="merged"
        ),
    )
    view = msgspec.structs.replace(
        whole, cold=None, extras=StreamExtras(evicted=Evicted(1, 0, 1, 0))
    )
    image.streams = [view]
    salvage(image, {uid: [merged]})
    whole_again(image, whole, view)
    assert whole.cold is not None and index.count(whole.cold) == 1
    assert index.end_of(whole.cold, 0) == (2, stream.next_byte)
    assert whole.first_record == 0 and set(image.held) == {"merged"}


def test_what_was_hot_is_said() -> None:
    lost = Lost()
    for step in (
        ("append", "docs/a"),
        ("flush", "docs/a"),
        ("append", "docs/a"),
        ("append", "docs/b"),
        ("copy", ""),
    ):
        lost.do(*step)
    machine, names = lost.recovered()
    assert names == ["docs/a", "docs/b"]
    assert machine.directory.streams["docs/a"].next_record == 1 + JUMP
    assert machine.directory.streams["docs/b"].next_record == JUMP


def test_receipts_for_what_is_lost_go() -> None:
    lost = Lost()
    lost.do("append", "docs/a")
    lost.do("flush", "docs/a")
    for sequence in range(3):
        producer = Producer("p", 0, sequence)
        lost.world.apply(
            GROUP, Append("docs/a", 9, "text/plain", raw_batch(b"%d" % sequence), producer)
        )
        if sequence == 0:
            lost.do("flush", "docs/a")
    lost.do("copy", "")
    machine, _ = lost.recovered()
    world = World(1)
    world.adopt(GROUP, machine)
    gap = world.apply(
        GROUP, Append("docs/a", 9, "text/plain", raw_batch(b"3"), Producer("p", 0, 3))
    )
    assert (gap.code, gap.expected_sequence) == (Code.PRODUCER_GAP, 1)
    assert (
        world.apply(
            GROUP, Append("docs/a", 9, "text/plain", raw_batch(b"1"), Producer("p", 0, 1))
        ).code
        == Code.OK
    )
    assert (
        world.apply(
            GROUP, Append("docs/a", 9, "text/plain", raw_batch(b"0"), Producer("p", 0, 0))
        ).code
        == Code.DUPLICATE
    )


def test_a_slice_of_a_lost_history_is_not_taken_for_what_came_instead() -> None:
    lost = Lost()
    lost.do("append", "docs/a")
    lost.do("flush", "docs/a")
    lost.world.jump(GROUP)
    stream = lost.machine.directory.streams["docs/a"]
    lost.do("copy", "")
    lost.do("append", "docs/a")
    lost.do("flush", "docs/a")
    old = ColdSlice(1, stream.hot[0].byte if stream.hot else 11, 5, 55, "old", 0, 55, 0)
    lost.pieces[stream.uid].append(UnnamedSlice(stream.uid, old, GROUP, 0, 1))
    machine, _ = lost.recovered()
    assert [
        each.record for each in machine.packs.index_of(machine.directory.streams["docs/a"])
    ] == [0, 1 + JUMP]


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        ("text/plain", Encoding.BYTES),
        ("application/json", Encoding.JSON),
        (partition_type("application/json"), Encoding.KAFKA),
    ],
)
def test_a_stream_that_begins_with_a_kafka_batch_keeps_its_kind(
    content_type: str, encoding: int
) -> None:
    lost = Lost()
    for step in (("append", "docs/a"), ("flush", "docs/a")):
        lost.do(*step)
    uid = lost.machine.directory.streams["docs/a"].uid
    lost.pieces[uid] = [
        msgspec.structs.replace(piece, encoding=Encoding.KAFKA, content_type=content_type)
        for piece in lost.pieces[uid]
    ]
    machine, _ = lost.recovered()
    found = machine.directory.streams["docs/a"]
    assert (found.content_type, found.encoding) == (content_type, encoding)


def test_what_lies_behind_a_small_gap_is_no_trim() -> None:
    lost = Lost()
    for step in ("append", "flush"):
        lost.do(step, "docs/a")
    lost.do("copy", "")
    for _ in range(3):
        lost.world.jump(GROUP, 3)
        for step in ("append", "flush"):
            lost.do(step, "docs/a")
    machine, notes = lost.recovered()
    stream = machine.directory.streams["docs/a"]
    assert notes == [] and stream.first_record == 0
    assert [each.record for each in machine.packs.index_of(stream)] == [0, 4, 8, 12]
    assert stream.next_byte == lost.machine.directory.streams["docs/a"].next_byte


def test_a_stream_that_was_made_again_has_its_new_life() -> None:
    lost = Lost()
    for step in (
        ("append", "docs/a"),
        ("flush", "docs/a"),
        ("copy", ""),
        ("delete", "docs/a"),
        ("append", "docs/a"),
        ("flush", "docs/a"),
    ):
        lost.do(*step)
    machine, _ = lost.recovered()
    assert machine.directory.streams["docs/a"].uid == lost.machine.directory.streams["docs/a"].uid
    assert assert_held(machine)


def test_a_stream_that_was_deleted_before_the_copy_stays_so() -> None:
    lost = Lost()
    for step in (
        ("append", "docs/a"),
        ("flush", "docs/a"),
        ("delete", "docs/a"),
        ("append", "docs/b"),
        ("copy", ""),
    ):
        lost.do(*step)
    machine, _ = lost.recovered()
    assert set(machine.directory.streams) == {"docs/b"}


def test_the_group_is_the_only_one() -> None:
    assert {group_of(name, 1) for name in NAMES} == {GROUP}


@pytest.mark.parametrize("level", [1, 3])
def test_a_group_that_gets_a_compressed_slice_gets_its_level(level: int) -> None:
    """An older release could not read what was recovered."""
    lost = Lost()
    lost.do("append", NAMES[0])
    lost.do("copy", "")
    lost.do("flush", NAMES[0])
    (pieces,) = lost.pieces.values()
    pieces[0] = structs.replace(
        pieces[0], slice=structs.replace(pieces[0].slice, encoding=0, flags=COMPRESSED)
    )
    image = decode_image(lost.copy)
    image.level = level
    salvage(image, lost.pieces)
    assert image.level == 4
    machine = machine_from(write_image(image), lambda position, uid: b"")
    (cold,) = machine.packs.index_of(machine.directory.streams[NAMES[0]])
    assert cold.is_compressed
