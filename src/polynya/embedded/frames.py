"""Encoding and decoding of the frames of an embedded log (docs/formats/embedded.md). Pure code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct

import msgspec

from polynya.base.errors import CorruptData
from polynya.base.msgpack import UNREADABLE
from polynya.wal.frames import Frame, FrameKind, parse_frame

STATE_VERSION = 1
U64 = Struct("<Q")


class Kind:
    """Kinds of frames."""

    RECORD = 16
    BATCH = 17
    TOPIC = 18
    DELETE = 19
    TRIM = 20
    CURSOR = 21
    DROP_CURSOR = 22
    STATE = 23


class TopicState(msgspec.Struct, array_like=True, frozen=True):
    """One topic in a state frame. The byte counts include everything before `first` and `next`."""

    number: int
    name: str
    first: int
    next: int
    bytes_first: int
    bytes_next: int


class CursorState(msgspec.Struct, array_like=True, frozen=True):
    """One cursor in a state frame."""

    topic: int
    name: str
    position: int


class State(msgspec.Struct, array_like=True, frozen=True):
    """The payload of a state frame."""

    version: int
    next_topic: int
    topics: list[TopicState]
    cursors: list[CursorState]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(State).decode


def pack_state(state: State) -> bytes:
    """Encode a state."""
    return _encode(state)


def parse_state(payload: bytes) -> State:
    """Decode a state. Raises `CorruptData` if it is of another version."""
    try:
        state = _decode(payload)
    except UNREADABLE as error:
        raise CorruptData(f"a state frame of an embedded log cannot be decoded: {error}") from error
    if state.version != STATE_VERSION:
        raise CorruptData(
            f"a state frame has version {state.version}; this release reads version "
            f"{STATE_VERSION}: use the release that wrote it"
        )
    return state


def pack_batch(records: Sequence[bytes]) -> bytes:
    """Encode records as the payload of one batch frame."""
    count = len(records)
    return b"".join((Struct(f"<{count + 1}I").pack(count, *map(len, records)), *records))


def batch_lengths(payload: bytes) -> tuple[int, ...]:
    """Return the length of each record of a batch."""
    count = int.from_bytes(payload[:4], "little")
    return Struct(f"<{count}I").unpack_from(payload, 4)


def parse_batch(payload: bytes) -> list[bytes]:
    """Return the records of a batch."""
    lengths = batch_lengths(payload)
    at = 4 + 4 * len(lengths)
    records = []
    for length in lengths:
        records.append(payload[at : at + length])
        at += length
    return records


def parse_at(data: bytes, at: int, offset: int, seed: int) -> Frame | str:
    """Parse the frame at `at` in `data`, which stands at `offset` in its segment."""
    return parse_frame(data, at, seed ^ offset ^ at, len(data))


class Walk:
    """Frames one after another, without marks, up to the first bytes that are no frame.

    `end` is the offset after the last frame, `stopped` the reason of the end.
    """

    def __init__(self, data: bytes, seed: int, *, begin: int, base: int = 0) -> None:
        """Walk over `data`, which stands at `base` in its segment, from the offset `begin`."""
        self.end = begin
        self.last = 0  # offset of the last frame, marks included
        self.stopped = ""
        self._data = data
        self._seed = seed
        self._base = base

    def __iter__(self) -> Iterator[tuple[int, Frame]]:
        while True:
            offset = self.end
            frame = parse_at(self._data, offset - self._base, offset, self._seed)
            if isinstance(frame, str):
                self.stopped = frame
                return
            self.last = offset
            self.end = frame.end + self._base
            if frame.kind != FrameKind.MARK:
                yield offset, frame
