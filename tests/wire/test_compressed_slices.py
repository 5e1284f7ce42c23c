"""Slices with a compressed payload: the same batches as raw ones, and nothing that does not fit."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import cramjam
import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.base.errors import CorruptData
from polynya.base.limits import COMPRESSED_PAYLOAD_BYTES_MAX as BYTES_MAX
from polynya.stream.parts import COMPRESSED, Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire import payloads
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.pack import pressed
from polynya.wire.payloads import BYTES_MIN, FRAME_BYTES
from polynya.wire.slice_building import build_slice, gap, merge_slices
from polynya.wire.slices import Slice, parse_slice, unpacked_bytes

TEXT = b'{"flight":"UA1545","tail":"N14228","origin":"EWR","dest":"IAH","delay":%d},'
GOLDEN = (
    "504c5331010101000e0000000000000000000000000000000e00000000000000100400000000000000000000"
    "0000000000000000000000000002000000000000050000000000000005000000000000000500000000000000"
    "0500000000000000050000000000000005000000000000000500000000000000050000000000000005000000"
    "0000000005000000000000000500000000000000050000000000000005000000000000000500000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000100000001000000010000000100000001000000"
    "0100000001000000010000000100000001000000010000000100000001000000010000004a0000004a000000"
    "4a0000004a0000004a0000004a0000004a0000004a0000004a0000004a0000004b0000004b0000004b000000"
    "4b0000008d21b769f3b3f6cc8073d826fee19983978569f7e91728529ad706b8e445471d481fe651368da7f4"
    "e75faac899cdeb6dea0dc587949f842200000000000000000000000000000000000000000000000000000000"
    "0000000000000000000000000000000000000000000000000000000028b52ffd601003d503000205131b60a7"
    "ea231e5551e1625a0b3420817fd559c000b7516f812208022e3ad5ee1aad20d85269750e7cc28b884b068f73"
    "fdd21ce7031ab620707d4b69ad727eec27af678bad63ce9711ec08bd100f00a74ea072e9040a884ea0670065"
    "065031809e01941940c5007a065066001503f45213108729c364a0a0"
)
_LENGTH_AT, _BEGIN_AT = 32, 56  # of the payload's length and offset in the header


def batches_of(payloads: Sequence[bytes], encoding: int = Encoding.JSON) -> list[HotBatch]:
    """Batches of one record each."""
    found, byte = [], 0
    for number, payload in enumerate(payloads):
        found.append(HotBatch(number, byte, 1, payload, b"", crc32c(payload), 5, 0, encoding, 0))
        byte += len(payload)
    return found


def texts(count: int = 40) -> list[HotBatch]:
    return batches_of([TEXT % number for number in range(count)])


def parsed(built: tuple[object, list[bytes]]) -> Slice:
    meta, parts = built
    return parse_slice(b"".join(parts), meta.crc)  # type: ignore[attr-defined]


def seen(found: Slice) -> object:
    """The results that readers of a slice get."""
    return (
        list(found.hot_batches(record=7, byte=70)),
        found.span,
        found.records,
        found.size,
        found.producers,
        bytes(found.payload),
    )


def test_golden_bytes() -> None:
    """Later releases read these bytes. Other versions of zstd may write others."""
    stored = bytes.fromhex(GOLDEN)
    found = parse_slice(stored, crc32c(stored))
    assert seen(found) == seen(parsed(build_slice(Encoding.JSON, 0, 0, texts(14))))
    assert len(stored) < found.size


@given(
    payload=st.lists(st.binary(max_size=300), min_size=1, max_size=30),
    encoding=st.sampled_from([Encoding.BYTES, Encoding.JSON]),
    level=st.sampled_from([1, 3]),
)
@settings(max_examples=examples(60), deadline=None)
def test_readers_see_what_they_see_of_a_raw_slice(
    payload: list[bytes], encoding: int, level: int
) -> None:
    raw = build_slice(encoding, 0, 0, batches_of([each * 5 for each in payload], encoding))
    meta, parts = pressed(raw, level)
    assert seen(parsed((meta, parts))) == seen(parsed(raw))
    assert sum(map(len, parts)) == meta.stored
    if meta.flags & COMPRESSED:
        assert 10 * (raw[0].stored - meta.stored) >= raw[0].length >= BYTES_MIN
        assert (meta.length, meta.records, meta.batches) == (
            raw[0].length,
            raw[0].records,
            raw[0].batches,
        )
    else:
        assert (meta, parts) == raw


def test_slices_with_gaps_are_compressed_too() -> None:
    whole = parsed(build_slice(Encoding.BYTES, 0, 0, batches_of([b"x" * 2000], Encoding.BYTES)))
    raw = merge_slices(0, 0, [whole, gap(Encoding.BYTES, 9, 5, 50), whole])
    meta, parts = pressed(raw, 3)
    assert meta.flags & COMPRESSED and meta.missing_records == 5
    assert seen(parsed((meta, parts))) == seen(parsed(raw))


def test_what_saves_no_tenth_stays_as_it_is() -> None:
    noise = b"".join(crc32c(b"%d" % each).to_bytes(4, "little") for each in range(2000))
    for payload in (noise, b"x" * (BYTES_MIN - 1)):
        raw = build_slice(Encoding.BYTES, 0, 0, batches_of([payload], Encoding.BYTES))
        assert pressed(raw, 3) == raw
    raw = build_slice(Encoding.JSON, 0, 0, texts())
    assert pressed(raw, 0) == raw


def test_a_payload_above_the_bound_of_readers_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payloads, "COMPRESSED_PAYLOAD_BYTES_MAX", 2000)
    raw = build_slice(Encoding.JSON, 0, 0, texts())
    assert pressed(raw, 3) == raw


def kafka(codec: int, size: int) -> bytes:
    """A batch whose records are said to have a codec, and can be compressed all the same."""
    batch = bytearray(build_batch([Record(None, b"x" * size)]))
    batch[22] |= codec
    return bytes(batch)


@pytest.mark.parametrize(
    ("codecs", "is_compressed"),
    [((0, 0), True), ((4, 4), False), ((0, 4), True), ((1, 2, 3, 4) * 5, False)],
)
def test_batches_that_kafkas_producers_compressed_stay(
    codecs: tuple[int, ...], is_compressed: bool
) -> None:
    raw = build_slice(
        Encoding.KAFKA, 0, 0, batches_of([kafka(each, 4000) for each in codecs], Encoding.KAFKA)
    )
    found = pressed(raw, 3)
    assert bool(found[0].flags & COMPRESSED) is is_compressed
    assert seen(parsed(found)) == seen(parsed(raw))


def test_the_stored_bytes_are_not_kept_for_the_columns() -> None:
    found = parsed(pressed(build_slice(Encoding.JSON, 0, 0, texts(1000)), 3))
    assert len(found.batch_crcs.obj) == 64 + 32 * 1000


# --- what does not fit ----------------------------------------------------------------------------


def stored_with(payload: bytes, **fields: int) -> bytes:
    """A compressed slice with this payload, and other fields of its header."""
    _, (front, _) = pressed(build_slice(Encoding.JSON, 0, 0, texts()), 3)
    header = bytearray(front)
    for name, value in fields.items():
        if name == "length":
            struct.pack_into("<Q", header, _LENGTH_AT, value)
        else:
            header[6] = value
    return bytes(header) + payload


WHOLE = b"".join(TEXT % number for number in range(40))
FRAME = bytes(cramjam.zstd.compress(WHOLE, level=3))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no frame",
        FRAME[:-1],
        FRAME[:40],
        FRAME[:40] + b"\xff" + FRAME[41:],
        FRAME + b"more",
        FRAME + FRAME,
        bytes(cramjam.zstd.compress(WHOLE[:-1], level=3)),
        bytes(cramjam.zstd.compress(WHOLE + b"x", level=3)),
        bytes(cramjam.zstd.compress(bytes(100 << 20), level=3)),
    ],
    ids=["none", "text", "cut", "half", "flipped", "tail", "two", "short", "long", "bomb"],
)
def test_a_payload_that_does_not_fit_is_damage(payload: bytes) -> None:
    data = stored_with(payload)
    with pytest.raises(CorruptData, match="pack slice"):
        parse_slice(data, crc32c(data))


@pytest.mark.parametrize("length", [0, len(WHOLE) - 1, len(WHOLE) + 1, BYTES_MAX + 1, 2**63])
def test_a_size_that_the_columns_do_not_add_up_to_is_damage(length: int) -> None:
    data = stored_with(FRAME, length=length)
    with pytest.raises(CorruptData, match="do not add up"):
        parse_slice(data, crc32c(data))
    assert unpacked_bytes(data) <= BYTES_MAX


def test_a_size_above_the_bound_is_refused_before_a_byte_is_decompressed() -> None:
    with pytest.raises(CorruptData, match=f"at most {BYTES_MAX}"):
        payloads.decompressed(memoryview(FRAME), BYTES_MAX + 1)


def test_another_compression_is_refused() -> None:
    data = stored_with(FRAME, compression=2)
    with pytest.raises(CorruptData, match="compression 2"):
        parse_slice(data, crc32c(data))


def test_a_large_payload_is_several_frames_and_a_cut_between_them_is_damage() -> None:
    payload = b"".join(TEXT % number for number in range(3 * FRAME_BYTES // len(TEXT)))[
        : 5 * FRAME_BYTES // 2
    ]
    stored = payloads.compressed(payload, 3)
    assert stored is not None
    first = bytes(cramjam.zstd.compress(payload[:FRAME_BYTES], level=3))
    assert stored.startswith(first)
    assert payloads.decompressed(memoryview(stored), len(payload)) == payload
    one = bytes(cramjam.zstd.compress(payload, level=3))
    assert payloads.decompressed(memoryview(one), len(payload)) == payload
    for wrong in (first, stored + first, stored[len(first) :]):
        with pytest.raises(CorruptData):
            payloads.decompressed(memoryview(wrong), len(payload))
