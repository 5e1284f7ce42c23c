"""Batches of another Kafka at their own offsets: repeats, gaps, starts, and what must not be
skipped."""

from __future__ import annotations

import pytest
from msgspec import structs
from worlds.stream import World, kafka_batch, raw_batch

from polynya.stream.command import level_for
from polynya.stream.command_validation import fault_of
from polynya.stream.features.appends.commands import (
    Append,
    Bundle,
    MirrorBatch,
    MirrorGap,
    Produce,
)
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import (
    CommitSlices,
    PackedAppend,
    PackedSlice,
    Profile,
)
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream

NAME = "kafka/t/0"
PACK = "packs/20260101-00/1-ff"


@pytest.fixture
def world() -> World:
    world = World(1)
    world.apply(1, Create(NAME, 0, "", Encoding.KAFKA))
    return world


def mirrored(world: World, record: int, records: int = 1, *, begin: int = -1) -> Reply:
    begin = record if begin < 0 else begin
    command = MirrorBatch(NAME, 1, kafka_batch(records), None, 0, begin, record)
    assert not fault_of(command)
    return world.apply(1, command)


def skipped(world: World, begin: int, end: int, *, first: bool = False) -> Reply:
    return world.apply(1, MirrorGap(NAME, 1, 0, begin, end, first))


def stream_of(world: World) -> Stream:
    stream = world.machines[1].directory.lookup(NAME)
    assert stream is not None
    return stream


def positions(world: World) -> list[tuple[int, int]]:
    return [(each.record, each.records) for each in stream_of(world).hot or []]


def test_batches_keep_their_offsets_and_leave_gaps(world: World) -> None:
    assert mirrored(world, 0, 3).record == 3
    assert mirrored(world, 7, 2, begin=3).record == 9
    assert mirrored(world, 9).first_record == 9
    assert positions(world) == [(0, 3), (7, 2), (9, 1)]


def test_a_repeat_changes_nothing(world: World) -> None:
    mirrored(world, 0, 3)
    for record, records in ((0, 3), (1, 2), (2, 1)):
        again = mirrored(world, record, records)
        assert (again.code, again.record) == (Code.DUPLICATE, 3)
    assert positions(world) == [(0, 3)]


def test_what_was_not_sent_cannot_be_skipped(world: World) -> None:
    """Refuse a command that follows a lost one: the gap would be in no log and no report."""
    mirrored(world, 0, 3)
    missing = mirrored(world, 5, begin=5)
    assert (missing.code, missing.record) == (Code.OFFSET_BEYOND_TAIL, 3)
    assert skipped(world, 4, 9).code == Code.OFFSET_BEYOND_TAIL
    assert mirrored(world, 2, 3).code == Code.PRECONDITION, "the tail is inside it"
    assert positions(world) == [(0, 3)]


def test_a_gap_moves_the_tail(world: World) -> None:
    mirrored(world, 0, 3)
    assert skipped(world, 3, 5).record == 5
    assert skipped(world, 0, 4).code == Code.DUPLICATE
    assert mirrored(world, 5).record == 6
    assert positions(world) == [(0, 3), (5, 1)]
    assert stream_of(world).first_record == 0


def test_a_mirror_begins_at_the_start_of_its_source(world: World) -> None:
    assert skipped(world, 1000, 1000, first=True).record == 1000
    assert stream_of(world).first_record == 1000
    assert mirrored(world, 1004, begin=1000).record == 1005
    assert stream_of(world).first_record == 1000, "the gap is kept, as in the source"
    assert skipped(world, 2000, 2000, first=True).code == Code.DUPLICATE
    assert stream_of(world).next_record == 1005, "a stream with records has its start"


def test_live_readers_are_told_of_a_gap(world: World) -> None:
    machine, stream = world.machines[1], stream_of(world)
    mirrored(world, 0, 3)
    machine.tails.watched = {stream.uid}
    command = MirrorBatch(NAME, 1, kafka_batch(2), None, 0, 3, 6)
    machine.apply(command, 77)
    machine.apply(MirrorGap(NAME, 1, 0, 8, 9), 78)
    moved = [(each.begin_record, each.record, each.batch) for each in machine.tails.take_effects()]
    assert moved == [(3, 8, None), (8, 9, None)], "readers read what is behind a gap"


@pytest.mark.parametrize("command", [MirrorBatch, MirrorGap])
def test_refusals(world: World, command: type) -> None:
    def sent(name: str = NAME, uid: int = 0) -> int:
        if command is MirrorGap:
            return world.machines[1].apply(MirrorGap(name, 1, uid, 0, 1)).code
        batch = kafka_batch(1)
        return world.machines[1].apply(MirrorBatch(name, 1, batch, None, uid, 0, 0)).code

    world.apply(1, Create("plain/t", 0, "text/plain", Encoding.BYTES))
    assert sent("kafka/t/9") == Code.NOT_FOUND
    assert sent("plain/t") == Code.CONTENT_TYPE
    assert sent(uid=99) == Code.INCARNATION
    stream = stream_of(world)
    stream.kafka = KafkaState(open={7: OpenTransaction(0, 0, 0, 1)})
    assert sent() == Code.UNSTABLE
    stream.kafka = None
    world.apply(1, Append(NAME, 1, "", None, close=True))
    assert sent() == Code.CLOSED


def test_commands_that_no_member_could_apply() -> None:
    good = MirrorBatch(NAME, 1, kafka_batch(1), None, 0, 3, 5)
    assert fault_of(good) == ""
    assert "follows 3, which is behind it" in fault_of(structs.replace(good, record=2))
    assert "encoding 0" in fault_of(structs.replace(good, batch=raw_batch(b"x")))
    assert "MirrorGap.end" in fault_of(MirrorGap(NAME, 1, 0, 0, -1))


def test_levels() -> None:
    """An older node would append the batch at its own tail."""
    command = MirrorBatch(NAME, 1, kafka_batch(1), None, 0, 0, 0)
    produce = Produce(NAME, 1, kafka_batch(1))
    assert level_for(command) == level_for(Bundle([produce, command])) == 4
    assert level_for(Bundle([produce])) == 3


def test_a_pack_keeps_offsets_too() -> None:
    world = World(1)
    world.apply(1, Create(NAME, 0, "", Encoding.KAFKA, profile=Profile.DISKLESS))

    def packed(record: int, begin: int, records: int) -> PackedAppend:
        batch = structs.replace(kafka_batch(records), payload=b"")
        return PackedAppend(MirrorBatch(NAME, 1, batch, None, 0, begin, record), 10)

    appends = [
        packed(0, 0, 2),
        packed(2, 2, 1),
        packed(9, 3, 4),
        packed(0, 0, 2),
        packed(20, 19, 1),
    ]
    part = PackedSlice(24, 90, 1, Encoding.KAFKA, appends)
    command = CommitSlices(PACK, 1, "w", 1, 1, [part], 1)
    assert not fault_of(command)
    assert level_for(command) == 4
    replies = world.machines[1].apply(command).detail
    assert [each.code for each in replies] == [
        Code.OK,
        Code.OK,
        Code.OK,
        Code.DUPLICATE,
        Code.OFFSET_BEYOND_TAIL,
    ]
    entries = world.machines[1].packs.index_of(stream_of(world))
    assert [(each.record, each.records, each.first_batch) for each in entries] == [
        (0, 3, 0),
        (9, 4, 2),
    ]
