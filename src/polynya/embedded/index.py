"""The positions of the records of one segment by topic, and their checkpoint file
(docs/formats/embedded.md)."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from struct import Struct

import msgspec
from google_crc32c import value as crc32c

FORMAT_VERSION = 1
HEADER_BYTES = 32
FRAME_BYTES = 12  # of three arrays
SUFFIX = ".index"

_MAGIC = b"POLYNYAX"
_HEADER = Struct("<8sIIQII")


class DirectoryEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One topic's part of an index file."""

    topic: int
    first: int
    bytes_before: int
    frames: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[DirectoryEntry]).decode


class Run:
    """The frames of one topic in one segment.

    `numbers` has the first record of each frame, counted from `first`; `ends` the payload bytes
    up to the end of each frame. One thread adds; others read frames that they know to exist.
    """

    __slots__ = ("bytes_before", "ends", "first", "numbers", "offsets", "segment")

    def __init__(self, first: int, bytes_before: int, segment: int = 0) -> None:
        self.segment = segment  # 0 in an index that was read from a file
        self.first = first
        self.bytes_before = bytes_before
        self.numbers = array("I")
        self.offsets = array("I")
        self.ends = array("I")

    def add(self, number: int, offset: int, bytes_end: int) -> None:
        """Add a frame; `bytes_end` counts the payload of the topic up to its end."""
        self.offsets.append(offset)
        self.ends.append(bytes_end - self.bytes_before)
        self.numbers.append(number - self.first)

    def frame_of(self, number: int) -> int:
        """Return which frame has the record."""
        return bisect_right(self.numbers, number - self.first) - 1

    def number_at(self, frame: int) -> int:
        """Return the first record of a frame."""
        return self.first + self.numbers[frame]

    def bytes_at(self, frame: int) -> int:
        """Return the payload bytes of the topic before a frame."""
        return self.bytes_before + (self.ends[frame - 1] if frame else 0)


class SegmentIndex:
    """The runs of one segment, by number of the topic."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: dict[int, Run] = {}

    def add(self, topic: int, number: int, offset: int, bytes_begin: int, bytes_end: int) -> Run:
        """Add a frame and return the run of its topic."""
        run = self.runs.get(topic)
        if run is None:
            run = self.runs[topic] = Run(number, bytes_begin)
        run.add(number, offset, bytes_end)
        return run

    @property
    def bytes(self) -> int:
        """Return the approximate memory that this index uses."""
        return sum(200 + FRAME_BYTES * len(run.numbers) for run in self.runs.values())


class Positions:
    """The segments that hold records of a topic: `firsts[i]` is its first record in `segments[i]`.

    Entries are added by one thread. `without` makes a new object, so readers need no lock.
    """

    __slots__ = ("firsts", "segments")

    def __init__(self) -> None:
        self.segments = array("I")
        self.firsts = array("Q")

    def add(self, segment: int, first: int) -> None:
        """Add a newer segment."""
        self.segments.append(segment)
        self.firsts.append(first)

    def segment_of(self, number: int) -> int:
        """Return the segment that holds the record; 0 if it is older than all of them."""
        i = bisect_right(self.firsts, number) - 1
        return self.segments[i] if i >= 0 else 0

    def without(self, below: int) -> Positions:
        """Return the positions that still hold records from the number `below` on."""
        i = max(bisect_right(self.firsts, below) - 1, 0)
        left = Positions()
        left.segments = self.segments[i:]
        left.firsts = self.firsts[i:]
        return left


def pack_index(index: SegmentIndex, nonce: int) -> list[bytes]:
    """Encode an index file."""
    entries = [
        DirectoryEntry(topic, run.first, run.bytes_before, len(run.numbers))
        for topic, run in index.runs.items()
    ]
    directory = _encode(entries)
    arrays = b"".join(
        each.tobytes()
        for run in index.runs.values()
        for each in (run.numbers, run.offsets, run.ends)
    )
    head = _HEADER.pack(
        _MAGIC, FORMAT_VERSION, len(directory), nonce, crc32c(directory), crc32c(arrays)
    )
    return [head, directory, arrays]


def directory_length(head: bytes, nonce: int) -> int:
    """Return the length of the directory; 0 if this is no index of the segment."""
    if len(head) < HEADER_BYTES:
        return 0
    magic, version, length, its_nonce, _, _ = _HEADER.unpack_from(head)
    return length if (magic, version, its_nonce) == (_MAGIC, FORMAT_VERSION, nonce) else 0


def parse_directory(head: bytes, directory: bytes) -> list[DirectoryEntry] | None:
    """Decode a directory; None if it is damaged."""
    if crc32c(directory) != _HEADER.unpack_from(head)[4]:
        return None
    return _decode(directory)


def parse_index(data: bytes, nonce: int) -> SegmentIndex | None:
    """Decode an index file; None if it is damaged or belongs to another segment."""
    length = directory_length(data, nonce)
    begin = HEADER_BYTES + length
    entries = parse_directory(data, data[HEADER_BYTES:begin]) if length else None
    if entries is None or crc32c(data[begin:]) != _HEADER.unpack_from(data)[5]:
        return None
    index = SegmentIndex()
    for entry in entries:
        run = index.runs[entry.topic] = Run(entry.first, entry.bytes_before)
        for each in (run.numbers, run.offsets, run.ends):
            each.frombytes(data[begin : begin + 4 * entry.frames])
            begin += 4 * entry.frames
    return index
