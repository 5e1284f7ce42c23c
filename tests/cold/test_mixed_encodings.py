"""Streams whose batches are of several encodings: Kafka's beside those of HTTP, flushed, merged,
trimmed and read."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples
from worlds.cold import GROUPS, Tier, play
from worlds.stream import kafka_batch

from polynya.base.names import group_of
from polynya.cold.rewriting import merger
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.retention.commands import Trim, TrimTo
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import HotPiece, ReadPlan, cut
from polynya.stream.state.model import Stream
from polynya.wire.pack import read_footer

NAME = "default/mixed"


def stream_of(tier: Tier) -> Stream:
    return tier.world.machines()[group_of(NAME, GROUPS)].directory.streams[NAME]


def produce(tier: Tier, records: int, payload: bytes) -> None:
    """Produce a Kafka batch of that many records."""
    if NAME not in tier.written:
        tier.world.create(NAME)
        tier.written[NAME] = b""
    command = Produce(NAME, tier.world.now, kafka_batch(records, payload))
    assert tier.world.apply(group_of(NAME, GROUPS), command).code == 0
    tier.written[NAME] += payload


async def batches_of(tier: Tier) -> list[tuple[int, int, bytes]]:
    """The stream as it is read from its first kept record: record, byte and payload of each piece
    of its pages."""
    machine, stream = tier.world.machines()[group_of(NAME, GROUPS)], stream_of(tier)
    record, byte = stream.first_record, stream.first_byte
    found: list[tuple[int, int, bytes]] = []
    while (record, byte) != (stream.next_record, stream.next_byte):
        plan = machine.plan_read(stream, record, byte, bytes_max=300, whole_records=True)
        assert isinstance(plan, ReadPlan)
        end = (plan.record, plan.byte)
        for piece in plan.pieces:
            if isinstance(piece, HotPiece):
                found.append((piece.record, piece.byte, bytes(piece.payload)))
                continue
            part = cut(await tier.reader.batches(piece.slice), piece.want)  # type: ignore[union-attr]
            found += [(hot.record, hot.byte, bytes(hot.payload)) for hot in part.pieces]  # type: ignore[union-attr]
            if (part.record, part.byte) != piece.want.until:  # type: ignore[union-attr]
                end = (part.record, part.byte)
                break
        assert end > (record, byte)
        record, byte = end
    return found


def test_a_slice_ends_where_the_encoding_changes() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append(NAME, b"one")
        produce(tier, 10, b"ten records")
        produce(tier, 2, b"two")
        tier.append(NAME, b"more")
        await tier.flusher.flush_now()
        assert stream_of(tier).hot is None and not len(tier.world.faulted)
        assert [(cold.record, cold.records, cold.byte) for cold in tier.indexes()[NAME]] == [
            (0, 1, 0),
            (1, 12, 3),
            (13, 1, 17),
        ]
        (key,) = tier.store.objects
        entries = read_footer(tier.store.objects[key][0]).entries
        assert [entry.encoding for entry in entries] == [
            Encoding.BYTES,
            Encoding.KAFKA,
            Encoding.BYTES,
        ]
        assert await batches_of(tier) == [
            (0, 0, b"one"),
            (1, 3, b"ten recordstwo"),
            (13, 17, b"more"),
        ]
        await tier.check()

    play(story)


def test_a_page_begins_with_the_whole_batch_that_holds_the_record() -> None:
    async def story() -> None:
        tier = Tier()
        for number in range(3):
            produce(tier, 10, b"batch %d" % number)
        await tier.flusher.flush_now()
        machine, stream = tier.world.machines()[group_of(NAME, GROUPS)], stream_of(tier)
        plan = machine.plan_read(stream, 15, -1, bytes_max=1, whole_records=False)
        assert isinstance(plan, ReadPlan)
        part = cut(await tier.reader.batches(plan.pieces[0].slice), plan.pieces[0].want)  # type: ignore[union-attr]
        assert [(each.record, bytes(each.payload)) for each in part.pieces] == [(10, b"batch 1")]  # type: ignore[union-attr]
        assert (part.record, part.byte) == (20, 14)

    play(story)


def test_slices_are_merged_up_to_where_the_encoding_changes() -> None:
    async def story() -> None:
        tier = Tier()
        for number in range(60):
            if 20 <= number < 40:
                produce(tier, number, b"%d;" % number * 9)
            else:
                tier.append(NAME, b"%d;" % number * 9)
            await tier.flusher.flush_now()
        for _ in range(4):
            await tier.merger.merge_due()
        assert len(tier.indexes()[NAME]) == 3
        assert not tier.merger.counters.failures
        await tier.check()
        tier.world.deliver()
        await tier.settle_all()
        tier.check_nothing_leaks()

    play(story)


def test_a_stream_that_changes_its_encoding_all_the_time_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        monkeypatch.setattr(merger, "BOUNDS_MAX", 10)
        tier = Tier()
        for number in range(30):
            produce(tier, 2, b"k")
            tier.append(NAME, b"%d" % number)
            await tier.flusher.flush_now()
        for _ in range(3):
            await tier.merger.merge_due()
        calls = tier.store.calls
        await tier.merger.merge_due()
        assert tier.store.calls == calls, "it is not read again"
        await tier.check()

    play(story)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 30)),
        st.tuples(st.just("produce"), st.integers(1, 2**31)),
        st.tuples(st.sampled_from(("flush", "merge", "trim", "inside")), st.integers(0, 40)),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS)
def test_all_of_it_reads_back_against_a_list(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_against_a_list(steps))


async def _against_a_list(steps: list[tuple[str, int]]) -> None:
    tier = Tier()
    model: list[tuple[int, int, bytes]] = []  # first record, byte, payload
    record = byte = first = start = 0
    for number, (step, size) in enumerate(steps):
        if step in ("append", "produce"):
            payload = b"%03d;" % number * (size % 7 + 1)
            if step == "append":
                tier.append(NAME, payload)
            else:
                produce(tier, size, payload)
            model.append((record, byte, payload))
            record, byte = record + (1 if step == "append" else size), byte + len(payload)
        elif step == "flush" and model:
            await tier.flusher.flush_now()
        elif step == "merge":
            await tier.merger.merge_due()
        elif step == "trim" and model:
            first = max(first, size % len(model))
            tier.world.apply(
                group_of(NAME, GROUPS),
                Trim([(stream_of(tier).uid, *model[first][:2])], tier.world.now),
            )
            start = max(start, model[first][0])
        elif step == "inside" and model:  # at a record of a batch, or behind those before it
            first = max(first, size % len(model))
            (begin, at, _), end = model[first], (*model, (record, byte, b""))[first + 1][0]
            inside = min(begin + size, end - 1)
            command = TrimTo(NAME, stream_of(tier).uid, inside, at, tier.world.now)
            tier.world.apply(group_of(NAME, GROUPS), command)
            start = max(start, inside)
    if not model:
        return
    assert stream_of(tier).first_record == start
    found = await batches_of(tier)
    assert b"".join(payload for *_, payload in found) == b"".join(
        payload for *_, payload in model[first:]
    )
    known = {record: (byte, payload) for record, byte, payload in model}
    for record, byte, payload in found:
        assert known[record][0] == byte
        assert payload.startswith(known[record][1])
    assert not len(tier.world.faulted)
