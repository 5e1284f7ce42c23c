"""The writer thread's work: one write and one sync per batch, new segments, and the undo of a write
on a full disk."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec

from polynya.files import is_full
from polynya.wal.errors import DiskFull, JournalFailed, JournalGone
from polynya.wal.files import Files
from polynya.wal.frames import SEGMENT_HEADER_BYTES, SegmentHeader, pack_segment_header
from polynya.wal.recovery import OFFSET_MASK, Recovered, Segment, segment_path


class SegmentWrite(msgspec.Struct, gc=False):
    """The bytes of a write for one segment. `nonce` and `previous_end` are for the header of a new
    segment. `final_mark` is the final mark of the segment before it."""

    segment: int
    nonce: int
    previous_end: int
    offset: int
    end: int
    buffers: list[bytes]
    final_mark: bytes = b""


class WriteBatch(msgspec.Struct):
    """One write. `begin` and `end` are positions; `named` is the position that its mark names."""

    parts: list[SegmentWrite]
    begin: int
    end: int
    named: int
    durable: bool  # False: a bare mark, which needs no sync
    refused: bool = False  # the disk was full, and the write is undone

    @property
    def bytes(self) -> int:
        """Return the bytes of the frames."""
        return sum(part.end - part.offset for part in self.parts)


class SegmentWriter:
    """The writer of the newest segment. After a failure it rejects everything."""

    def __init__(self, folder: Path, *, journal_id: int, segment_bytes: int, files: Files) -> None:
        self.failure: BaseException | None = None
        self._folder = folder
        self.journal_id = journal_id
        self._segment_bytes = segment_bytes
        self._files = files
        self._fd = -1
        self._number = 0
        self._end = 0
        self._replacing = threading.Lock()  # held while another thread must not use `_fd`

    def start(self, recovered: Recovered) -> None:
        """Open the newest segment, or create the first one."""
        if not recovered.segments:
            header = SegmentHeader(
                self.journal_id, recovered.next_number, self._files.random64(), 0
            )
            self._create(header)
            recovered.segments.append(
                Segment(header.number, header.nonce, header.seed(), 0, SEGMENT_HEADER_BYTES)
            )
        else:
            newest = recovered.segments[-1]
            self._reopen(newest.number, newest.end)

    def write(self, batch: WriteBatch) -> None:
        """Write a batch. Raises `DiskFull` (undone), `JournalFailed`, or an `OSError` after which
        this writer stays failed."""
        self.refuse_failed()
        try:
            for part in batch.parts:
                self._write_part(part)
            if batch.durable:
                self._sync()
                self.refuse_failed()  # the periodic check may have found a missing file meanwhile
        except OSError as error:
            self._undo_full(batch, error)
            raise

    def extend(self, data: bytes) -> None:
        """Write to the end of the newest segment without a sync. Raises like `write`."""
        if self.failure is not None:
            self.refuse_failed()
        end = self._end
        try:
            self._files.write(self._fd, (data,), end)
        except OSError as error:
            here = self._number << 32 | end
            self._undo_full(WriteBatch([], here, here, 0, durable=False), error)
            raise
        self._end = end + len(data)

    def _undo_full(self, batch: WriteBatch, error: OSError) -> None:
        """Undo a write on a full disk and raise `DiskFull`; any other error is fatal."""
        if self.failure is not None or not is_full(error):
            self.failure = self.failure or error
            return
        with self._replacing:
            self._undo(batch)
        raise DiskFull(f"no space for the journal in {self._folder}: {error.strerror}") from error

    def refuse_failed(self) -> None:
        """Raise `JournalFailed` or `JournalGone` after a failure."""
        if isinstance(self.failure, JournalGone):
            raise self.failure
        if self.failure is not None:
            raise JournalFailed(
                f"the journal in {self._folder} failed: {self.failure}; restart the node"
            ) from self.failure

    def look(self) -> None:
        """Check, from any thread, that a restart would find the open segment. Raises
        `JournalGone`."""
        fd, path = self._fd, segment_path(self._folder, self._number)
        try:
            if (
                fd < 0
                or self._files.is_at(fd, path)
                or (fd, path) != (self._fd, segment_path(self._folder, self._number))
            ):
                return
        except OSError:
            return  # closed meanwhile, or the disk fails, which the next write reports
        self.miss(path)

    def miss(self, path: Path) -> None:
        """Fail the writer because a segment is missing. Raises `JournalGone`."""
        self.failure = self.failure or _gone(path)
        self.refuse_failed()

    def sync(self) -> None:
        """Sync the newest segment, from any thread, for a caller whose writes are not durable.

        Older segments are synced. Raises `JournalFailed`, `JournalGone`, `OSError`.
        """
        with self._replacing:
            self.refuse_failed()
            self._sync()

    def close(self, last: WriteBatch | None) -> None:
        """Write a final mark, sync it, and close the segment."""
        try:
            if last is not None:
                self.write(last)
                self._sync()
        except DiskFull:
            pass  # no data is lost: the mark only narrows the window of a possible torn tail
        finally:
            if self._fd >= 0:
                self._files.close(self._fd)
                self._fd = -1

    def _write_part(self, part: SegmentWrite) -> None:
        if part.segment != self._number:
            assert (
                part.segment == self._number + 1
                and part.previous_end == self._number << 32 | self._end
            ), "segments follow one another"
            with self._replacing:
                self._move_on(part)
        assert part.offset == self._end, "a write begins where the last one ended"
        self._files.write(self._fd, part.buffers, part.offset)
        self._end = part.end

    def _move_on(self, part: SegmentWrite) -> None:
        """Switch to a new segment."""
        old, end = self._fd, self._end
        self._sync()  # before the header of the next segment implies it
        self.look()
        # frees unused allocation; not synced, because losing this is harmless
        self._files.truncate(old, end + len(part.final_mark))
        try:
            self._create(
                SegmentHeader(self.journal_id, part.segment, part.nonce, part.previous_end)
            )
            # not synced: it only matters if the new segment is lost
            self._files.write(old, [part.final_mark], end)
        finally:
            if self._fd != old:
                self._files.close(old)

    def _create(self, header: SegmentHeader) -> None:
        fd = self._files.create(segment_path(self._folder, header.number))
        self._number = header.number
        self._fd = fd  # set the number first: `look` reads them in the opposite order
        self._files.allocate(self._fd, self._segment_bytes)
        self._files.write(self._fd, [pack_segment_header(header)], 0)
        self._sync()
        self._sync_folder()
        self._end = SEGMENT_HEADER_BYTES

    def _reopen(self, number: int, end: int) -> None:
        """Truncate the segment durably at `end` and allocate it again with zeros. On a full disk it
        stays short."""
        fd = self._files.open(segment_path(self._folder, number))
        self._number, self._end = number, end
        self._fd = fd
        self._files.truncate(self._fd, end)
        self._sync()
        try:
            self._files.allocate(self._fd, self._segment_bytes)
        except OSError as error:
            if not is_full(error):
                raise

    def _sync(self) -> None:
        """Sync the segment. A failed sync is fatal, even on a full disk, because the kernel may
        have dropped the pages."""
        try:
            self._files.sync(self._fd)
        except OSError as error:
            self.failure = error
            raise

    def _sync_folder(self) -> None:
        try:
            self._files.sync_folder(self._folder)
        except OSError as error:
            self.failure = error
            raise

    def _undo(self, batch: WriteBatch) -> None:
        """Remove the written data durably, newest first. A refused entry must not reappear after a
        restart."""
        number, end = batch.begin >> 32, batch.begin & OFFSET_MASK
        try:
            if self._fd >= 0:
                self._files.close(self._fd)
                self._fd = -1
            ends = {part.segment: part.previous_end & OFFSET_MASK for part in batch.parts}
            for made in range(self._number, number, -1):
                self._cut(made - 1, ends[made])  # first the mark that names the next segment
                self._files.unlink(segment_path(self._folder, made))
                self._files.sync_folder(self._folder)
            self._reopen(number, end)
        except OSError as error:
            self.failure = error
            raise
        batch.refused = True

    def _cut(self, number: int, end: int) -> None:
        fd = self._files.open(segment_path(self._folder, number))
        try:
            self._files.truncate(fd, end)
            self._files.sync(fd)
        finally:
            self._files.close(fd)


def _gone(path: Path) -> JournalGone:
    return JournalGone(
        f"journal segment {path} is missing: it was deleted, or its directory was moved, "
        "unmounted or covered by another mount, while this node "
        "ran. Nothing is acknowledged from now on, because no restart would find it. The newest "
        "acknowledged entries may exist only in the missing "
        "file. Restore the directory and restart the node; if the file is permanently lost, this "
        "node has lost data"
    )
