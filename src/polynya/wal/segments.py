"""The segments of a journal that are on disk: read their entries, remove old ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from polynya.base.errors import CorruptData
from polynya.wal.files import Files
from polynya.wal.frames import (
    FRAME_HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    Frame,
    FrameKind,
    is_head,
    parse_frame,
)
from polynya.wal.recovery import OFFSET_MASK, Segment, corrupt, segment_path

_READ_AHEAD_BYTES = 4096  # one pread fetches most entries


class JournalEntry(msgspec.Struct, gc=False):
    """A staged entry; `kind` 1 is a command."""

    group: int
    term: int
    index: int
    kind: int
    payload: bytes
    position: int  # segment << 32 | offset of its frame


class Segments:
    """The segments of one journal, by number; the journal's loop adds them. Any thread may read and
    `remove`."""

    __slots__ = ("_files", "_removed_below", "by_number", "folder")

    def __init__(self, folder: Path, segments: Iterable[Segment], files: Files) -> None:
        self.folder = folder
        self.by_number = {segment.number: segment for segment in segments}
        self._files = files
        self._removed_below = 0

    def entries(self) -> Iterator[JournalEntry]:
        """Yield all recovered entries, oldest first. Call it before the
        first `stage` of the journal. Raises
        `CorruptData` at damage."""
        for segment in list(self.by_number.values()):
            path = segment_path(self.folder, segment.number)
            fd = self._files.open(path)
            try:
                data = self._files.read(fd, segment.end, 0)
            finally:
                self._files.close(fd)
            offset, base = SEGMENT_HEADER_BYTES, segment.number << 32
            while offset < segment.end:
                frame = parse_frame(data, offset, segment.seed, segment.end)
                if isinstance(frame, str):
                    raise corrupt(
                        path,
                        offset,
                        f"{frame}, though everything up to offset {segment.end} is known to be "
                        "synced",
                    )
                if frame.kind != FrameKind.MARK:
                    yield JournalEntry(
                        frame.group,
                        frame.term,
                        frame.index,
                        frame.kind,
                        frame.payload,
                        base | offset,
                    )
                offset = frame.end

    def read(self, position: int) -> bytes:
        """Return the payload of the written entry at a position. Raises `CorruptData` if it is
        damaged or missing."""
        return self.read_entry(position).payload

    def read_entry(self, position: int, *, within: int = 1) -> JournalEntry:
        """Read an entry. If no frame begins at the position, read the one that begins less than
        `within` bytes before it; its `position` is set."""
        segment = self.by_number.get(position >> 32)
        offset = position & OFFSET_MASK
        if segment is None:
            raise CorruptData(
                f"journal segment {position >> 32} in {self.folder} is gone, but its offset "
                f"{offset} is still needed"
            )
        path = segment_path(self.folder, segment.number)
        fd = self._files.open(path)
        try:
            data = self._files.read(fd, _READ_AHEAD_BYTES, offset)
            if within > 1 and not is_head(data, segment.seed ^ offset):
                offset -= self._distance(fd, offset, within, segment.seed)
                data = self._files.read(fd, _READ_AHEAD_BYTES, offset)
            needed = FRAME_HEADER_BYTES + int.from_bytes(data[:4], "little")
            if len(data) < needed <= FRAME_HEADER_BYTES + PAYLOAD_BYTES_MAX:
                data += self._files.read(fd, needed - len(data), offset + len(data))
        finally:
            self._files.close(fd)
        frame = parse_frame(data, 0, segment.seed ^ offset, len(data))
        if isinstance(frame, Frame) and frame.kind != FrameKind.MARK:
            return JournalEntry(
                frame.group,
                frame.term,
                frame.index,
                frame.kind,
                frame.payload,
                segment.number << 32 | offset,
            )
        raise corrupt(path, offset, frame if isinstance(frame, str) else "there is no entry here")

    def _distance(self, fd: int, offset: int, within: int, seed: int) -> int:
        """Return the distance back to the nearest frame start, less than `within` bytes; 0 if there
        is none. The seed is random, so no payload looks like a frame header."""
        back = min(within - 1, offset - SEGMENT_HEADER_BYTES)
        data = self._files.read(fd, back + FRAME_HEADER_BYTES, offset - back)
        distances = (
            distance
            for distance in range(1, back + 1)
            if is_head(data[back - distance :], seed ^ (offset - distance))
        )
        return next(distances, 0)

    def sizes(self) -> list[tuple[int, int]]:
        """Return (number, bytes) of each written segment, oldest first."""
        return [
            (segment.number, segment.end)
            for segment in list(self.by_number.values())
            if segment.end
        ]

    def bytes_between(self, begin: int, end: int) -> int:
        """Return the journal bytes between two positions. Released segments count as 0."""
        if begin >= end:
            return 0
        total = (end & OFFSET_MASK) - (begin & OFFSET_MASK)
        for number in range(begin >> 32, end >> 32):
            segment = self.by_number.get(number)
            total += segment.end if segment else 0
        return max(total, 0)

    def remove(self, below: int) -> None:
        """Remove segments with smaller numbers, oldest first. Raises `OSError`."""
        self._removed_below = max(self._removed_below, below)
        for number in [n for n in list(self.by_number) if n < below]:
            self._files.unlink(segment_path(self.folder, number))
            self._files.sync_folder(self.folder)
            del self.by_number[number]

    def missing(self) -> Path | None:
        """Return a written segment that is no longer in the directory, or None."""
        written = [segment.number for segment in list(self.by_number.values()) if segment.end]
        try:
            there = set(self._files.names(self.folder))
        except FileNotFoundError:
            there = set()
        except OSError:
            return None  # no permission, or the disk fails, which the next write reports
        paths = [
            segment_path(self.folder, number) for number in written if number >= self._removed_below
        ]
        return next((path for path in paths if path.name not in there), None)
