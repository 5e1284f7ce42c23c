"""A reader of a log that another process may be writing."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

from polynya.base.errors import ConfigError, CorruptData
from polynya.embedded.catalog import Catalog
from polynya.embedded.errors import LogClosed, LogError
from polynya.embedded.frames import Walk
from polynya.embedded.loading import Loaded, load
from polynya.embedded.reading import ReadableLog
from polynya.embedded.segments import SegmentReader
from polynya.wal import OsFiles
from polynya.wal.frames import (
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    parse_segment_header,
)
from polynya.wal.recovery import OFFSET_MASK, SUFFIX, Segment, segment_path

_READ_BYTES = 1 << 20  # of new frames, at once
_ATTEMPTS = 5  # to find the segments while a writer removes some of them


class ReadOnlyFiles(OsFiles):
    """File operations that never need the right to write."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


class LogReader(ReadableLog):
    """A log that this process only reads, while another may write. Any thread may use it.

    Every call first takes in what was written since the last one. Records appear when they are
    written, which is before they are synced.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the log in a directory. Raises `LogError` if there is none; `CorruptData`,
        `OSError`."""
        folder = Path(path)
        self._files = ReadOnlyFiles()
        self._lock = threading.Lock()
        self._closed = False
        self._loaded, reader = self._load(folder)
        self._last_head = b""
        super().__init__(folder, reader, self._loaded.catalog)
        self._remember()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        with self._lock:
            self._closed = True
            self._reader.close()

    def _current(self) -> Catalog:
        """Take in the new frames. Raises `LogClosed`, `CorruptData`, `OSError`."""
        with self._lock:
            if self._closed:
                raise LogClosed(f"the reader of the log in {self._folder} is closed")
            try:
                is_whole = self._follow()
            except CorruptData:
                is_whole = False  # or the writer took frames back: loading tells
            if not is_whole:
                self._reload()
            return self._catalog

    def _load(self, folder: Path) -> tuple[Loaded, SegmentReader]:
        """Load the log as it is now, again if the writer removed segments meanwhile."""
        for attempt in range(_ATTEMPTS):
            reader = SegmentReader(folder, self._files, keeps=False)
            try:
                reader.segments = self._segments(folder)
                return load(folder, reader), reader
            except (FileNotFoundError, CorruptData):
                reader.close()
                if attempt == _ATTEMPTS - 1:
                    raise
            except BaseException:
                reader.close()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _segments(self, folder: Path) -> dict[int, Segment]:
        """Return the segments; each but the newest has its end. Raises `LogError`,
        `CorruptData`."""
        try:
            names = self._files.names(folder)
        except FileNotFoundError:
            names = []
        numbers = sorted(int(name.removesuffix(SUFFIX)) for name in names if name.endswith(SUFFIX))
        segments: dict[int, Segment] = {}
        for number in numbers:
            header = self._header(folder, number)
            if header is None and number == numbers[-1]:
                break  # the writer is making it
            if header is None or (segments and number - 1 not in segments):
                raise CorruptData(
                    f"{segment_path(folder, number)} or the segment before it is not readable"
                )
            segments[number] = Segment(number, header.nonce, header.seed(), header.previous_end, 0)
            if number - 1 in segments:
                segments[number - 1].end = header.previous_end & OFFSET_MASK
        if not segments:
            raise LogError(
                f"there is no log in {folder}; a Log that is opened for writing creates it"
            )
        return segments

    def _header(self, folder: Path, number: int) -> SegmentHeader | None:
        path = segment_path(folder, number)
        fd = self._files.open(path)
        try:
            header = parse_segment_header(self._files.read(fd, SEGMENT_HEADER_BYTES, 0))
        finally:
            self._files.close(fd)
        if isinstance(header, int):
            raise ConfigError(
                f"{path} has journal format {header}, which this release does not read"
            )
        return header

    def _follow(self) -> bool:
        """Apply the frames that are new; False if the log must be loaded again."""
        try:
            if not self._is_unchanged():
                return False
            while True:
                self._apply_new()
                if not self._next_segment():
                    return True
        except FileNotFoundError:
            return False  # the segment was removed: all records in it are trimmed

    def _apply_new(self) -> None:
        loaded, about = self._loaded, self._reader.segments[self._loaded.segment]
        size = _READ_BYTES
        while data := self._reader.read(loaded.segment, size, loaded.end):
            walk = Walk(data, about.seed, begin=loaded.end, base=loaded.end)
            for offset, frame in walk:
                self._catalog.apply(offset, frame)
            if walk.last:
                loaded.end, loaded.last = walk.end, walk.last
                self._remember()
                continue
            needed = FRAME_HEADER_BYTES + int.from_bytes(data[:4], "little")
            if needed <= size or len(data) < size:
                return
            size = needed  # a frame larger than what was read, if it is one

    def _next_segment(self) -> bool:
        """Go on to the next segment if this one is complete.

        Raises `CorruptData` if it is damaged, `FileNotFoundError` if it was removed.
        """
        loaded = self._loaded
        number = loaded.segment + 1
        try:
            header = self._header(self._folder, number)
        except FileNotFoundError:
            segment_path(
                self._folder, loaded.segment
            ).stat()  # or else it was removed with newer ones
            return False
        if header is None:
            return False
        about = self._reader.segments[loaded.segment]
        end = header.previous_end & OFFSET_MASK
        if loaded.last == end:
            loaded.end = end  # the writer put a mark behind the end
        if loaded.end != end:
            behind = loaded.end < end and not about.end
            about.end = end
            if behind:
                return True  # frames came between the two looks
            raise CorruptData(
                f"{segment_path(self._folder, loaded.segment)} cannot be read at offset "
                f"{loaded.end}, though "
                f"its end is {about.end}: it is damaged"
            )
        about.end = end
        self._reader.segments[number] = Segment(
            number, header.nonce, header.seed(), header.previous_end, 0
        )
        self._reader.seal(loaded.segment, self._catalog.open_segment(number))
        loaded.segment, loaded.end, loaded.last = number, SEGMENT_HEADER_BYTES, 0
        self._last_head = b""
        return True

    def _is_unchanged(self) -> bool:
        """Report whether the last frame is still the one that was read."""
        loaded = self._loaded
        if not loaded.last:
            return True
        return self._reader.read(loaded.segment, FRAME_HEADER_BYTES, loaded.last) == self._last_head

    def _remember(self) -> None:
        loaded = self._loaded
        if loaded.last:
            self._last_head = self._reader.read(loaded.segment, FRAME_HEADER_BYTES, loaded.last)

    def _reload(self) -> None:
        old = self._reader
        self._loaded, self._reader = self._load(self._folder)
        self._catalog = self._loaded.catalog
        self._batch = ((0, 0), [])
        self._remember()
        old.close()
