"""The segment files of a log for reading: open files, and the indexes of sealed segments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polynya.base.errors import CorruptData
from polynya.base.limits import LOG_INDEX_CACHE_BYTES
from polynya.embedded.frames import Kind, Walk, batch_lengths, parse_at, parse_state
from polynya.embedded.index import (
    HEADER_BYTES,
    SUFFIX,
    DirectoryEntry,
    SegmentIndex,
    directory_length,
    pack_index,
    parse_directory,
    parse_index,
)
from polynya.wal import Files
from polynya.wal.frames import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, Frame, is_head
from polynya.wal.recovery import Segment, corrupt, segment_path

READ_AHEAD_BYTES = 4096  # one read fetches most records
_OPEN_FILES_MAX = 16


class _OpenFile:
    __slots__ = ("dropped", "fd", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.dropped = False


class OpenFiles:
    """Open segment files. A file that is dropped while a thread reads is closed by that thread."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._folder = folder
        self._files = files
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenFile] = OrderedDict()

    def read(self, segment: int, length: int, offset: int) -> bytes:
        """Read up to `length` bytes of a segment. Raises `OSError`."""
        with self._use(segment) as fd:
            return self._files.read(fd, length, offset)

    def size(self, segment: int) -> int:
        """Return the size of a segment's file. Raises `OSError`."""
        with self._use(segment) as fd:
            return self._files.size(fd)

    @contextmanager
    def _use(self, segment: int) -> Iterator[int]:
        with self._lock:
            file = self._open.get(segment)
            if file is None:
                fd = self._files.open(segment_path(self._folder, segment))
                file = self._open[segment] = _OpenFile(fd)
                if len(self._open) > _OPEN_FILES_MAX:
                    self._drop(next(iter(self._open)))
            file.users += 1
        try:
            yield file.fd
        finally:
            with self._lock:
                file.users -= 1
                if file.dropped and not file.users:
                    self._files.close(file.fd)

    def drop(self, segment: int | None = None) -> None:
        """Close one file, or all of them."""
        with self._lock:
            for number in list(self._open) if segment is None else [segment]:
                self._drop(number)

    def _drop(self, segment: int) -> None:
        file = self._open.pop(segment, None)
        if file is not None:
            file.dropped = True
            if not file.users:
                self._files.close(file.fd)


class SegmentReader:
    """Frames and indexes of the segments of a log. Any thread may call it."""

    def __init__(self, folder: Path, files: Files, *, keeps: bool) -> None:
        """Read the segments in `folder`; `keeps`: write the index files that are missing."""
        self.segments: dict[int, Segment] = {}
        self._folder = folder
        self._files = files
        self._keeps = keeps
        self._open = OpenFiles(folder, files)
        self._lock = threading.Lock()
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self._index_bytes = 0

    def read(self, segment: int, length: int, offset: int) -> bytes:
        """Read up to `length` bytes of a segment. Raises `OSError`."""
        return self._open.read(segment, length, offset)

    def read_whole(self, segment: int) -> bytes:
        """Read a segment up to its end, or up to the end of its file if that is not known."""
        end = self.segments[segment].end
        return self.read(segment, end or self._open.size(segment), 0)

    def frame(self, segment: int, offset: int) -> Frame:
        """Return the frame at a position. Raises `CorruptData`, `OSError`."""
        data = self.read(segment, READ_AHEAD_BYTES, offset)
        return self.parse(segment, offset, data, 0)

    def parse(self, segment: int, offset: int, data: bytes, at: int) -> Frame:
        """Parse the frame at `offset`, which begins at `at` in `data`; read what is missing."""
        seed = self.segments[segment].seed
        if len(data) - at < FRAME_HEADER_BYTES:
            data, at = self.read(segment, READ_AHEAD_BYTES, offset), 0
        needed = FRAME_HEADER_BYTES + int.from_bytes(data[at : at + 4], "little")
        whole = is_head(data[at : at + FRAME_HEADER_BYTES], seed ^ offset)
        if whole and len(data) - at < needed:
            end = self.segments[segment].end or offset + needed
            missing = min(needed, max(end - offset, 0)) - (len(data) - at)
            more = self.read(segment, missing, offset + len(data) - at) if missing > 0 else b""
            data, at = data[at:] + more, 0
        frame = parse_at(data, at, offset, seed)
        if isinstance(frame, str):
            raise corrupt(segment_path(self._folder, segment), offset, frame)
        return frame

    def index(self, segment: int) -> SegmentIndex:
        """Return the index of a sealed segment. Raises `CorruptData`, `OSError`."""
        with self._lock:
            if index := self._indexes.get(segment):
                self._indexes.move_to_end(segment)
                return index
        data = self._index_file(segment)
        index = parse_index(data, self.segments[segment].nonce) or self._scan(segment)
        self.keep(segment, index)
        return index

    def directory(self, segment: int) -> list[DirectoryEntry]:
        """Return the directory of a sealed segment. Raises `CorruptData`, `OSError`."""
        nonce = self.segments[segment].nonce
        head = self._index_file(segment, HEADER_BYTES)
        if length := directory_length(head, nonce):
            directory = self._index_file(segment, length, HEADER_BYTES)
            if (entries := parse_directory(head, directory)) is not None:
                return entries
        index = self._scan(segment)
        self.keep(segment, index)
        return [
            DirectoryEntry(t, r.first, r.bytes_before, len(r.numbers))
            for t, r in index.runs.items()
        ]

    def seal(self, segment: int, index: SegmentIndex) -> None:
        """Write the index of a segment that is complete. A failure costs time at the next start."""
        self.keep(segment, index)
        if not self._keeps:
            return
        path = self._index_path(segment)
        temporary = path.with_name(path.name + ".tmp")
        with suppress(OSError):
            if temporary.name in self._files.names(self._folder):
                self._files.unlink(temporary)
            fd = self._files.create(temporary)
            try:
                self._files.write(fd, pack_index(index, self.segments[segment].nonce), 0)
            finally:
                self._files.close(fd)
            self._files.rename(temporary, path)

    def keep(self, segment: int, index: SegmentIndex) -> None:
        """Keep an index in memory; others leave if there are too many."""
        with self._lock:
            if segment not in self._indexes:
                self._index_bytes += index.bytes
            self._indexes[segment] = index
            while self._index_bytes > LOG_INDEX_CACHE_BYTES and len(self._indexes) > 1:
                self._index_bytes -= self._indexes.popitem(last=False)[1].bytes

    def remove(self, segment: int) -> None:
        """Remove a segment and its index durably. Raises `OSError`."""
        path = self._index_path(segment)
        if path.name in self._files.names(self._folder):
            self._files.unlink(path)
        self._files.unlink(segment_path(self._folder, segment))
        self._files.sync_folder(self._folder)
        self.segments.pop(segment, None)
        self._open.drop(segment)
        with self._lock:
            if index := self._indexes.pop(segment, None):
                self._index_bytes -= index.bytes

    def remove_leftovers(self) -> None:
        """Remove index files without a segment."""
        for name in self._files.names(self._folder):
            if name.endswith((SUFFIX, SUFFIX + ".tmp")):
                number = name.partition(".")[0]
                if (
                    not number.isdecimal()
                    or int(number) not in self.segments
                    or name.endswith(".tmp")
                ):
                    self._files.unlink(self._folder / name)

    def check(self, segment: int) -> None:
        """Verify all frames of a segment. Raises `CorruptData`, `OSError`."""
        self._scan(segment)

    def close(self) -> None:
        """Close all files."""
        self._open.drop()

    def _scan(self, segment: int) -> SegmentIndex:
        """Make the index of a segment from its frames, and verify them."""
        about = self.segments[segment]
        data = self.read(segment, about.end, 0)
        walk = Walk(data, about.seed, begin=SEGMENT_HEADER_BYTES)
        index, sizes = SegmentIndex(), dict[int, int]()
        for offset, frame in walk:
            if frame.kind == Kind.STATE:
                sizes = {
                    topic.number: topic.bytes_next for topic in parse_state(frame.payload).topics
                }
            elif frame.kind in (Kind.RECORD, Kind.BATCH):
                single = frame.kind == Kind.RECORD
                size = len(frame.payload) if single else sum(batch_lengths(frame.payload))
                before = sizes.get(frame.term, 0)
                sizes[frame.term] = before + size
                index.add(frame.term, frame.index, offset, before, before + size)
        if walk.end < about.end:
            path = segment_path(self._folder, segment)
            why = (
                f"{walk.stopped}, though everything up to offset {about.end} is known to be written"
            )
            raise corrupt(path, walk.end, why)
        self.seal(segment, index)
        return index

    def _index_path(self, segment: int) -> Path:
        return self._folder / f"{segment:010d}{SUFFIX}"

    def _index_file(self, segment: int, length: int | None = None, offset: int = 0) -> bytes:
        """Read part of an index file; nothing if it is missing."""
        try:
            fd = self._files.open(self._index_path(segment))
        except FileNotFoundError:
            return b""
        try:
            return self._files.read(fd, self._files.size(fd) if length is None else length, offset)
        finally:
            self._files.close(fd)


def first_frame(reader: SegmentReader, segment: int) -> Frame | None:
    """Return the first frame of a segment that is not a mark; None if it has none yet."""
    about = reader.segments[segment]
    offset = SEGMENT_HEADER_BYTES
    while not about.end or offset < about.end:
        try:
            frame = reader.frame(segment, offset)
        except CorruptData:
            if about.end:
                raise
            return None  # not written yet
        if frame.kind:
            return frame
        offset += frame.end
    return None
