"""Encoding and decoding of journal segment headers, frames and marks (docs/formats/journal.md).
Pure code."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

import msgspec
from google_crc32c import extend, value

SEGMENT_HEADER_BYTES = 64
FRAME_HEADER_BYTES = 32
MARK_MAGIC = bytes.fromhex("f601b79c706f6c796e79610d6d6b1ae3")
MARK_BYTES = FRAME_HEADER_BYTES + len(MARK_MAGIC)
PAYLOAD_BYTES_MAX = 256 << 20  # far above any command; keeps offsets in 32 bits
SEGMENT_BYTES_MAX = 1 << 30  # keeps offsets in 32 bits, too
FORMAT_VERSION = 1

_SEGMENT_MAGIC = b"POLYNYAJ"
_SEGMENT = Struct("<8sIIQQQ20x")
_CRC = Struct("<I")
_SEED = Struct("<QIQ")
_FRAME = Struct("<IIHBxQQI")
_PAD_AT = 11  # this byte is 0 in every header
pack_frame_head = Struct("<IIHBxQQ").pack  # all fields except the header CRC


class FrameKind:
    """Kinds of frames. other kinds belong to the rooms that stage them."""

    MARK = 0
    COMMAND = 1


class SegmentHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a segment. `previous_end` is a position, 0 in the first segment."""

    journal_id: int
    number: int
    nonce: int
    previous_end: int

    def seed(self) -> int:
        """Return the CRC seed of this segment's frame headers, before the offset is mixed in."""
        return int(value(_SEED.pack(self.journal_id, self.number, self.nonce)))


class Frame(msgspec.Struct, gc=False):
    """A parsed frame. `end` is the offset after the frame."""

    group: int
    kind: int
    term: int
    index: int
    payload: bytes
    end: int


def pack_segment_header(header: SegmentHeader) -> bytes:
    """Encode a header as 64 bytes."""
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        FORMAT_VERSION,
        header.number,
        header.journal_id,
        header.nonce,
        header.previous_end,
    )
    return body + _CRC.pack(value(body))


def parse_segment_header(data: bytes) -> SegmentHeader | int | None:
    """Parse a header. Return the version if it is valid but unsupported, or None if it is no
    header."""
    if len(data) < SEGMENT_HEADER_BYTES or not data.startswith(_SEGMENT_MAGIC):
        return None
    body = data[: SEGMENT_HEADER_BYTES - 4]
    if _CRC.unpack_from(data, SEGMENT_HEADER_BYTES - 4)[0] != value(body):
        return None
    _, version, number, journal_id, nonce, previous_end = _SEGMENT.unpack(body)
    if version != FORMAT_VERSION:
        return int(version)
    return SegmentHeader(journal_id, number, nonce, previous_end)


def pack_mark(*, seed: int, segment: int, offset: int, synced: int) -> bytes:
    """Encode a mark at `offset` of `segment`: everything below the position `synced` is on disk."""
    head = pack_frame_head(
        len(MARK_MAGIC), _MARK_CRC, 0, FrameKind.MARK, segment << 32 | offset, synced
    )
    return b"".join((head, _CRC.pack(extend(seed ^ offset, head)), MARK_MAGIC))


def is_head(data: bytes, seed: int) -> bool:
    """Return whether a frame begins here. `seed` has the offset mixed in."""
    if len(data) < FRAME_HEADER_BYTES or data[_PAD_AT]:
        return False
    return bool(
        extend(seed, data[: FRAME_HEADER_BYTES - 4])
        == _CRC.unpack_from(data, FRAME_HEADER_BYTES - 4)[0]
    )


def parse_frame(data: bytes, offset: int, seed: int, limit: int) -> Frame | str:
    """Parse the frame at `offset`, reading no further than `limit`. Return a description of the
    damage if it is invalid."""
    payload_begin = offset + FRAME_HEADER_BYTES
    if payload_begin > limit:
        return "the file ends inside a frame's header"
    length, payload_crc, group, kind, term, index, header_crc = _FRAME.unpack_from(data, offset)
    if extend(seed ^ offset, data[offset : payload_begin - 4]) != header_crc:
        return "the checksum of a frame's header is wrong"
    end = payload_begin + length
    if end > limit:
        return "the file ends inside a frame's payload"
    payload = data[payload_begin:end]
    if value(payload) != payload_crc:
        return "the checksum of a frame's payload is wrong"
    return Frame(group, kind, term, index, payload, end)


def find_marks(data: bytes, begin: int, *, seed: int, segment: int) -> Iterator[int]:
    """Yield the positions named by readable marks at or after `begin`, regardless of the data
    between them."""
    at = data.find(MARK_MAGIC, begin + FRAME_HEADER_BYTES)
    while at >= 0:
        offset = at - FRAME_HEADER_BYTES
        frame = parse_frame(data, offset, seed, len(data))
        if (
            isinstance(frame, Frame)
            and frame.kind == FrameKind.MARK
            and frame.term == segment << 32 | offset
        ):
            yield frame.index
        at = data.find(MARK_MAGIC, at + 1)


_MARK_CRC = value(MARK_MAGIC)
