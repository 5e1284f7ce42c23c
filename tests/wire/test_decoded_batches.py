"""Pages of decoded slices: by their columns, as of a list of the same batches."""

from __future__ import annotations

import google_crc32c
import pytest

from polynya.stream.parts import Encoding
from polynya.stream.read_plan import AT_BYTE, ReadPlan, Want, cut
from polynya.stream.state.model import HotBatch
from polynya.wire.slice_building import build_slice
from polynya.wire.slices import parse_slice

BASE = (1000, 5000)
SIZES = (3, 1, 7, 7, 2, 40, 1, 5)  # bytes of the batches


def batches_of(encoding: int) -> list[HotBatch]:
    made, record, byte = [], *BASE
    for number, size in enumerate(SIZES):
        records = 1 + number % 3 if encoding == Encoding.KAFKA else 1
        payload = bytes([65 + number]) * size
        crc = google_crc32c.value(payload)
        made.append(HotBatch(record, byte, records, payload, b"", crc, 1, 1, encoding, 0))
        record, byte = record + records, byte + size
    return made


def page(plan: ReadPlan) -> tuple[object, ...]:
    payload = b"".join(each.payload for each in plan.pieces)  # type: ignore[union-attr]
    return payload, plan.begin_record, plan.begin_byte, plan.record, plan.byte, plan.up_to_date


@pytest.mark.parametrize("run_bytes", [0, 8])
@pytest.mark.parametrize("encoding", [Encoding.KAFKA, Encoding.BYTES])
def test_a_page_is_that_of_a_list_of_the_batches(encoding: Encoding, run_bytes: int) -> None:
    made = batches_of(encoding)
    meta, parts = build_slice(encoding, *BASE, made)
    decoded = parse_slice(b"".join(parts), meta.crc)
    lazy = decoded.hot_batches(record=BASE[0], byte=BASE[1], run_bytes=run_bytes)
    end = made[-1].record + made[-1].records, made[-1].byte + SIZES[-1]
    starts = [(record, 0) for record in range(BASE[0], end[0])]
    starts += [(AT_BYTE, byte) for byte in range(BASE[1], end[1])]
    for record, byte in starts:
        for most in (1, 5, 20, 1000):
            want = Want(record, byte, most, whole_records=True, until=end)
            assert page(cut(lazy, want)) == page(cut(list(lazy), want)), (record, byte, most)


def test_undivided_batches_are_one_piece_of_a_page() -> None:
    made = batches_of(Encoding.KAFKA)
    meta, parts = build_slice(Encoding.KAFKA, *BASE, made)
    decoded = parse_slice(b"".join(parts), meta.crc)
    lazy = decoded.hot_batches(record=BASE[0], byte=BASE[1])
    end = made[-1].record + made[-1].records, made[-1].byte + SIZES[-1]
    plan = cut(lazy, Want(*BASE, 1000, whole_records=True, until=end))
    (piece,) = plan.pieces
    assert isinstance(piece, HotBatch)
    assert bytes(piece.payload) == b"".join(each.payload for each in made)
    assert (piece.record, piece.byte) == BASE
    assert (piece.record + piece.records, piece.byte + len(piece.payload)) == end
    assert (plan.record, plan.byte) == end


def flagged(encoding: int, *kinds: tuple[int, int]) -> list[HotBatch]:
    """Batches of a record each, with their flags, and a producer's id where Kafka has it."""
    made, record, byte = [], *BASE
    for flags, producer in kinds:
        payload = bytes(43) + producer.to_bytes(8, signed=True) + bytes([record % 256]) * 10
        crc = google_crc32c.value(payload)
        made.append(HotBatch(record, byte, 1, payload, b"", crc, 1, 1, encoding, 0, flags=flags))
        record, byte = record + 1, byte + len(payload)
    return made


@pytest.mark.parametrize("encoding", [Encoding.KAFKA, Encoding.BYTES])
def test_batches_with_other_flags_or_of_other_transactions_are_not_joined(
    encoding: Encoding,
) -> None:
    kinds = [(0, 7), (0, 8), (1, 7), (1, 7), (1, 8), (5, 8), (5, 8), (3, 8), (0, -1), (0, -1)]
    made = flagged(encoding, *kinds)
    meta, parts = build_slice(encoding, *BASE, made)
    decoded = parse_slice(b"".join(parts), meta.crc)
    lazy = decoded.hot_batches(record=BASE[0], byte=BASE[1], run_bytes=1 << 20)
    end = made[-1].record + 1, made[-1].byte + len(made[-1].payload)
    plan = cut(lazy, Want(*BASE, 1 << 20, whole_records=True, until=end))
    runs = [(each.records, each.flags) for each in plan.pieces]  # type: ignore[union-attr]
    if encoding == Encoding.KAFKA:
        assert runs == [(2, 0), (2, 1), (1, 1), (2, 5), (1, 3), (2, 0)]
    else:
        assert runs == [(1, flags) for flags, _ in kinds], "a body does not say whose it is"
    whole = b"".join(each.payload for each in made)
    assert page(plan) == (whole, *BASE, *end, True)
