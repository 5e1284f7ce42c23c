"""Pages are cut at the same records as by a list of all of them, of which little is listed."""

from __future__ import annotations

from itertools import accumulate
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from polynya.base.limits import RAW_STEP_BYTES
from polynya.stream import record_lengths
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import Want, cut
from polynya.stream.record_lengths import holding, lengths_of, whole_in
from polynya.stream.state.model import HotBatch

LENGTHS = st.lists(st.integers(0, 3) | st.integers(0, 5000), min_size=2, max_size=40)


def batch_of(lengths: list[int], encoding: Encoding = Encoding.JSON) -> HotBatch:
    packed = pack(f"<{len(lengths)}I", *lengths)
    return HotBatch(10, 100, len(lengths), b"x" * sum(lengths), packed, 0, 0, 0, encoding, 0)


@given(LENGTHS, st.data())
def test_the_record_that_holds_a_byte(lengths, data):
    block = data.draw(st.integers(1, 7))
    view, ends = lengths_of(pack(f"<{len(lengths)}I", *lengths)), [*accumulate(lengths)]
    position = data.draw(st.integers(0, ends[-1]))
    number = sum(end <= position for end in ends)
    begin = ends[number - 1] if number else 0
    known = data.draw(st.integers(0, number))
    usual, record_lengths._BLOCK = record_lengths._BLOCK, block
    try:
        assert holding(view, position) == (number, begin)
        assert holding(view, position, known, ends[known - 1] if known else 0) == (number, begin)
        assert whole_in(view, position) == number
    finally:
        record_lengths._BLOCK = usual


@given(LENGTHS, st.data())
def test_pages_of_a_batch_are_whole_records(lengths, data):
    batch, ends = batch_of(lengths), [*accumulate(lengths, initial=0)]
    record, byte, until = 10, 100, (10 + len(lengths), 100 + ends[-1])
    while byte < until[1]:
        size = data.draw(st.integers(0, 6000))
        page = cut([batch], Want(record, byte, size, until=until))
        begin = byte - 100
        fitting = [end for end in ends if begin < end <= begin + size]
        end = fitting[-1] if fitting else min(end for end in ends if end > begin)
        assert page.byte - 100 == end
        assert page.record - 10 == (
            sum(e <= end for e in ends[1:]) if end < ends[-1] else len(lengths)
        )
        (piece,) = page.pieces
        assert (piece.record, piece.byte, len(piece.payload)) == (record, byte, end - begin)
        assert piece.records == page.record - record
        kept = [*lengths_of(piece.lengths)] if piece.lengths else [len(piece.payload)]
        assert sum(kept) == len(piece.payload)
        assert cut([batch], Want(record, byte, size, until=until), empty=False).byte - 100 == (
            end if fitting else begin
        )
        record, byte = page.record, page.byte


def test_raw_pages_end_at_steps_inside_a_record():
    lengths = [10, 3 * RAW_STEP_BYTES, 10]
    batch = batch_of(lengths, Encoding.BYTES)
    until = (13, 100 + sum(lengths))
    ends, record, byte = [], 10, 100
    while byte < until[1]:
        page = cut([batch], Want(record, byte, 5, until=until))
        record, byte = page.record, page.byte
        ends.append((record - 10, byte - 100))
    steps = [(1, 10 + at * RAW_STEP_BYTES) for at in range(3)]
    assert ends == [*steps, (2, 10 + 3 * RAW_STEP_BYTES), (3, sum(lengths))]


def test_a_page_of_a_million_records_lists_few_of_them(monkeypatch):
    listed = []
    usual = record_lengths.accumulate
    monkeypatch.setattr(
        record_lengths,
        "accumulate",
        lambda some, **more: usual(listed.append(len(some)) or some, **more),
    )
    batch = batch_of([2] * 1_000_000)
    page = cut([batch], Want(400_010, 800_100, 100_000, until=(1_000_010, 2_000_100)))
    assert (page.record, page.byte) == (450_010, 900_100)
    assert 0 < sum(listed) <= 4096, listed
