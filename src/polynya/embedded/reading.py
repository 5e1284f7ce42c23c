"""Reading a log: what a writer's log and a reader's have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from polynya.base.errors import CorruptData
from polynya.base.limits import KIB, MIB
from polynya.embedded.catalog import Catalog, Topic
from polynya.embedded.errors import LogError, RecordMissing, RecordTrimmed
from polynya.embedded.frames import Kind, batch_lengths, parse_batch
from polynya.embedded.index import Run
from polynya.embedded.operations import existing, unknown_cursor
from polynya.embedded.segments import READ_AHEAD_BYTES, SegmentReader
from polynya.wal.frames import FRAME_HEADER_BYTES, Frame

# one read of a batch of records; the window may hold other topics' frames
_WINDOW_BYTES = 256 * KIB
_KEPT_BATCH_BYTES = 16 * KIB  # a larger batch frame is decoded once for several reads of it


class Record(NamedTuple):
    """One record and its number in the topic."""

    number: int
    data: bytes


class ReadableLog:
    """The reading half of a log. All methods may be called from any thread."""

    def __init__(self, folder: Path, reader: SegmentReader, catalog: Catalog) -> None:
        self._folder = folder
        self._reader = reader
        self._catalog = catalog
        self._batch: tuple[tuple[int, int], list[bytes]] = ((0, 0), [])  # the last large one

    @property
    def path(self) -> Path:
        """Return the directory."""
        return self._folder

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(self._current().topics)

    def first(self, topic: str) -> int:
        """Return the number of the oldest record, or `end` if there is none. Raises
        `UnknownTopic`."""
        return existing(self._current(), topic).first

    def end(self, topic: str) -> int:
        """Return the number that the next record will have. Raises `UnknownTopic`."""
        return existing(self._current(), topic).next

    def count(self, topic: str, *, cursor: str | None = None) -> int:
        """Count the records of a topic, or those that a cursor has not passed. Raises
        `LogError`."""
        found = existing(self._current(), topic)
        begin = found.first if cursor is None else max(found.first, _position(found, cursor))
        return max(found.next - begin, 0)

    def size(self, topic: str) -> int:
        """Return the bytes of all records of a topic, without what storage adds. Raises
        `LogError`."""
        found = existing(self._current(), topic)
        return max(found.bytes_next - found.bytes_first, 0)

    def disk_bytes(self) -> int:
        """Return the bytes that the segments use up to their ends."""
        self._current()
        return sum(segment.end for segment in list(self._reader.segments.values()))

    def cursors(self, topic: str) -> dict[str, int]:
        """Return the position of each cursor of a topic. Raises `UnknownTopic`."""
        return dict(existing(self._current(), topic).cursors)

    def read(self, topic: str, number: int) -> bytes:
        """Return one record. Raises `RecordMissing`, `RecordTrimmed`, `UnknownTopic`,
        `CorruptData`."""
        return self.read_batch(topic, number, max_records=1, required=True)[0].data

    def read_batch(
        self,
        topic: str,
        start: int,
        *,
        max_records: int = 1000,
        max_bytes: int = MIB,
        required: bool = False,
    ) -> list[Record]:
        """Return records from `start` on: at most `max_records`, and `max_bytes` of data.

        One record is returned however large it is; none if `start` is the end. Raises
        `RecordTrimmed` if `start` was trimmed; `RecordMissing` if it is behind the end, or at it
        with `required`; `UnknownTopic`, `CorruptData`, `OSError`.
        """
        if max_records < 1 or max_bytes < 1:
            raise LogError(
                f"max_records and max_bytes are at least 1; not {max_records} and {max_bytes}"
            )
        found = existing(self._current(), topic)
        end = found.next
        if start < found.first:
            raise _trimmed(found, start)
        if start > end or (required and start == end):
            raise RecordMissing(f"topic {topic!r} ends at {end}; there is no record {start}", end)
        try:
            return self._collect(found, start, min(end, start + max_records), max_bytes)
        except (FileNotFoundError, KeyError) as error:
            if start < found.first:  # trimmed meanwhile
                raise _trimmed(found, start) from error
            raise CorruptData(
                f"the segment of record {start} of topic {topic!r} is missing in {self._folder}; "
                "put it back from a backup"
            ) from error

    def iterate(
        self, topic: str, start: int | None = None, *, max_bytes: int = MIB
    ) -> Iterator[Record]:
        """Yield the records from `start` (the oldest by default) up to the end, in small batches.

        Records that are appended meanwhile are included. Raises the errors of `read_batch`.
        """
        number = self.first(topic) if start is None else start
        while records := self.read_batch(topic, number, max_records=10_000, max_bytes=max_bytes):
            yield from records
            number = records[-1].number + 1

    def check(self) -> None:
        """Verify every frame of the log. Raises `CorruptData` at the first that is damaged."""
        self._current()
        for number in sorted(self._reader.segments):
            # the open one is verified when it is opened or written
            if number != self._catalog.segment:
                self._reader.check(number)

    def _current(self) -> Catalog:
        """Return the catalog, as new as possible. Raises `LogClosed`."""
        return self._catalog

    def _run(self, topic: Topic, number: int) -> tuple[int, Run]:
        """Return the segment that holds a record, and the topic's frames in it."""
        segment, run = topic.positions.segment_of(number), topic.run
        if run is not None and run.segment == segment:
            return segment, run
        return segment, self._reader.index(segment).runs[topic.number]

    def _collect(self, topic: Topic, number: int, end: int, max_bytes: int) -> list[Record]:
        records: list[Record] = []
        while number < end and max_bytes > 0:
            segment, run = self._run(topic, number)
            frame = run.frame_of(number)
            offset = run.offsets[frame]
            wanted = _window(run, frame, end, max_bytes)
            data = self._reader.read(segment, wanted, offset)
            frames = len(run.numbers)
            while number < end and frame < frames and (at := run.offsets[frame] - offset) < wanted:
                first = run.number_at(frame)
                found = self._records(segment, offset + at, data, at)[number - first : end - first]
                for each in found:
                    if max_bytes - len(each) < 0 and records:
                        return records
                    max_bytes -= len(each)
                    records.append(Record(number, each))
                    number += 1
                frame += 1
                if max_bytes <= 0:
                    break
        return records

    def _records(self, segment: int, offset: int, data: bytes, at: int) -> list[bytes]:
        """Return the records of the frame at `offset`, which begins at `at` in `data`."""
        position, kept = self._batch
        if position == (segment, offset):
            return kept
        frame: Frame = self._reader.parse(segment, offset, data, at)
        if frame.kind == Kind.RECORD:
            return [frame.payload]
        records = parse_batch(frame.payload)
        if len(frame.payload) > _KEPT_BATCH_BYTES:
            self._batch = ((segment, offset), records)
        return records

    def _bytes_before(self, topic: Topic, number: int) -> int:
        """Return the payload bytes of all records of a topic before one."""
        if number >= topic.next:
            return topic.bytes_next
        segment, run = self._run(topic, number)
        frame = run.frame_of(number)
        total, inside = run.bytes_at(frame), number - run.number_at(frame)
        if inside:
            payload = self._reader.frame(segment, run.offsets[frame]).payload
            total += sum(batch_lengths(payload)[:inside])
        return total


def _window(run: Run, frame: int, end: int, max_bytes: int) -> int:
    """Return how many bytes to read from a frame on: enough for the records up to `end`."""
    begin = run.offsets[frame]
    last = frame + max(min(run.frame_of(end - 1), len(run.offsets) - 1) - frame, 0)
    if last == frame:
        return READ_AHEAD_BYTES
    reach = run.offsets[last] - begin + FRAME_HEADER_BYTES + READ_AHEAD_BYTES
    return min(reach, _WINDOW_BYTES, max(READ_AHEAD_BYTES, 2 * max_bytes))


def _position(topic: Topic, cursor: str) -> int:
    position = topic.cursors.get(cursor)
    if position is None:
        raise unknown_cursor(topic.name, cursor)
    return position


def _trimmed(topic: Topic, number: int) -> RecordTrimmed:
    return RecordTrimmed(
        f"record {number} of topic {topic.name!r} was trimmed; the oldest is {topic.first}",
        topic.first,
    )
