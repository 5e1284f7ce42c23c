"""The journal of one core: stage entries, write them together, replay them after a crash
(docs/formats/journal.md)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from google_crc32c import extend, value

from polynya.base.limits import JOURNAL_SEGMENT_BYTES
from polynya.wal.errors import DiskFull
from polynya.wal.files import Files, OsFiles
from polynya.wal.frames import (
    FRAME_HEADER_BYTES,
    MARK_BYTES,
    PAYLOAD_BYTES_MAX,
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_frame_head,
    pack_mark,
)
from polynya.wal.recovery import (
    OFFSET_MASK,
    Recovered,
    Segment,
    TornTail,
    recover,
)
from polynya.wal.segments import JournalEntry, Segments
from polynya.wal.writer import SegmentWrite, SegmentWriter, WriteBatch

__all__ = ["DiskFull", "Journal", "JournalEntry", "WriteBatch"]

# written to the lock file once a segment exists, followed by the journal's number; a journal always
# keeps a segment
BEGUN = b"begun\n"
_LOCK_BYTES = len(BEGUN) + 17  # size of the lock file: the prefix, hexadecimal digits and a newline


class Stageable(Protocol):
    """An entry that can be staged; staging sets `position`."""

    @property
    def group(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def payload(self) -> bytes: ...

    position: int


class Journal:
    """A journal, created by `open`. One thread, the core's loop, calls `stage`, `take`,
    `take_mark`, `synced`, `discard` and `close`. A writer thread (or the same one) calls `write`.
    Any thread may read `segments` and call
    `release`.

    Invariants: at most one write is in flight; `_marked` ≤ `_synced` ≤ the position; a mark names
      `_synced` and nothing newer.
    """

    __slots__ = (
        "_base",
        "_begin",
        "_buffers",
        "_entries_end",
        "_files",
        "_inflight",
        "_limit",
        "_lock",
        "_marked",
        "_offset",
        "_parts",
        "_seed",
        "_segment_bytes",
        "_staged",
        "_synced",
        "_writer",
        "begun",
        "cuts",
        "opened",
        "segments",
    )

    def __init__(
        self,
        folder: Path,
        recovered: Recovered,
        writer: SegmentWriter,
        *,
        lock: int,
        segment_bytes: int,
        files: Files,
    ) -> None:
        # torn tails that `open` cut, for the operator
        self.cuts: tuple[TornTail, ...] = tuple(recovered.cuts)
        self._files = files
        self._lock = lock
        self._segment_bytes = segment_bytes
        self.segments = Segments(folder, recovered.segments, files)
        self._writer = writer
        self._inflight: WriteBatch | None = None
        self._staged = False
        self._parts: list[SegmentWrite] = []
        self._buffers: list[bytes] = []
        self._base = self._offset = self._limit = self._seed = 0
        self._marked = recovered.marked
        self._entries_end = recovered.entries_end
        self._point_at(recovered.segments[-1])
        # `opened`: the end of the journal when it was opened
        self._synced = self._begin = self.opened = self.position
        # a random number, drawn once: it distinguishes this journal from a replacement
        self.begun = recovered.begun

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        journal_id: int,
        segment_bytes: int = JOURNAL_SEGMENT_BYTES,
        files: Files | None = None,
    ) -> Journal:
        """Lock the directory (created if missing), recover, and cut a torn tail (listed in `cuts`).

        Raises `JournalLocked`; `CorruptData` for damage other than a torn tail; `ConfigError` for
        the directory of another journal; `OSError`.
        """
        assert SEGMENT_HEADER_BYTES + MARK_BYTES < segment_bytes <= SEGMENT_BYTES_MAX
        files = OsFiles() if files is None else files
        files.make_folder(directory)
        lock = files.lock(directory / "lock")
        try:
            said = files.read(lock, _LOCK_BYTES, 0) if files.size(lock) else b""
            recovered = recover(directory, journal_id=journal_id, files=files, begun=bool(said))
            writer = SegmentWriter(
                directory, journal_id=journal_id, segment_bytes=segment_bytes, files=files
            )
            writer.start(recovered)
            recovered.begun = _number_in(said)
            if not recovered.begun:
                recovered.begun = recovered.segments[-1].nonce
                with suppress(OSError):  # full disk: the next start retries with another number
                    files.write(lock, [BEGUN, b"%016x\n" % recovered.begun], 0)
        except BaseException:
            files.close(lock)
            raise
        return cls(
            directory,
            recovered,
            writer,
            lock=lock,
            segment_bytes=segment_bytes,
            files=files,
        )

    @property
    def position(self) -> int:
        """Return the position of the next frame, after everything staged."""
        return self._base | self._offset

    @property
    def settled(self) -> int:
        """Return a lower bound for the positions of future entries. A full disk may discard the
        entries between it and `position`. Everything before it is synced, so no later start finds a
        journal that ends earlier."""
        return self._synced

    @property
    def pending_bytes(self) -> int:
        """Return the bytes staged and not yet taken. The cost is constant, because it is called
        after each entry."""
        if not self._staged:
            return 0
        begin = SEGMENT_HEADER_BYTES if self._parts else self._begin & OFFSET_MASK
        return self._offset - begin + sum(part.end - part.offset for part in self._parts)

    def stage(self, group: int, term: int, index: int, kind: int, payload: bytes) -> int:
        """Add an entry (`kind` 1 to 255) to the next write and return its position."""
        length = len(payload)
        if self._offset + FRAME_HEADER_BYTES + length > self._limit:
            self._make_room(FRAME_HEADER_BYTES + length)
        offset = self._offset
        head = pack_frame_head(length, value(payload), group, kind, term, index)
        self._buffers += (head, extend(self._seed ^ offset, head).to_bytes(4, "little"), payload)
        self._offset = offset + FRAME_HEADER_BYTES + length
        return self._base | offset

    def stage_all(self, entries: Iterable[Stageable], kind: int) -> None:
        """Stage all entries of a turn and set their positions. This is the hot loop: 0.5 us an
        entry."""
        buffers, offset, limit, base, seed = (
            self._buffers,
            self._offset,
            self._limit,
            self._base,
            self._seed,
        )
        for entry in entries:
            payload = entry.payload
            length = len(payload)
            end = offset + FRAME_HEADER_BYTES + length
            if end > limit:
                self._offset = offset
                self._make_room(FRAME_HEADER_BYTES + length)
                buffers, offset, limit, base, seed = (
                    self._buffers,
                    self._offset,
                    self._limit,
                    self._base,
                    self._seed,
                )
                end = offset + FRAME_HEADER_BYTES + length
            head = pack_frame_head(
                length, value(payload), entry.group, kind, entry.term, entry.index
            )
            buffers += (head, extend(seed ^ offset, head).to_bytes(4, "little"), payload)
            entry.position = base | offset
            offset = end
        self._offset = offset

    def take(self) -> WriteBatch | None:
        """Return the staged entries as a batch for `write`; None if there are none, or while a
        write is in flight.

        Raises `JournalFailed` or `JournalGone` after a failed write.
        """
        if self._writer.failure is not None:
            self._writer.refuse_failed()
        if self._inflight is not None or not self._staged:
            assert self._inflight is None or not self._inflight.refused, (
                "a refused write is discarded before the next one"
            )
            return None
        self._end_part()
        return self._hand_over(durable=True)

    def take_mark(self) -> WriteBatch | None:
        """Return a bare mark that confirms the last write, for an idle core. Pass it to `write` and
        `synced` like any other; it costs no sync. Return None if everything is confirmed, or
        entries are staged or in flight."""
        self._writer.refuse_failed()
        if self._inflight is not None or self._staged or self._marked >= self._entries_end:
            return None
        self._open_write()
        self._end_part()
        return self._hand_over(durable=False)

    def write(self, batch: WriteBatch) -> None:
        """Write and sync a batch, in the writer's thread.

        Raises `DiskFull` if there is no space: the write is undone and must be discarded
        (`discard`). Any other `OSError` is fatal for this
        journal: the on-disk state is unknown until a restart.
        """
        self._writer.write(self._marked_batch(batch))

    def _marked_batch(self, batch: WriteBatch) -> WriteBatch:
        """Put the mark before the frames of a batch. It is packed where the batch is written, not
        on the loop."""
        first = batch.parts[0]
        first.buffers[0] = pack_mark(
            seed=self.segments.by_number[first.segment].seed,
            segment=first.segment,
            offset=first.offset,
            synced=batch.named,
        )
        return batch

    def synced(self, batch: WriteBatch) -> None:
        """Record a completed `write`."""
        assert batch is self._inflight
        self._inflight = None
        self._marked = max(self._marked, batch.named)
        if batch.durable:
            self._synced = self._entries_end = batch.end
        for part in batch.parts:
            self.segments.by_number[part.segment].end = part.end

    def discard(self, batch: WriteBatch) -> None:
        """Drop the batch after `DiskFull`, with everything staged after it. Their positions are
        reused.

        The next `stage` does this automatically if nothing was staged meanwhile.
        """
        assert batch.refused and self._inflight in (batch, None), "twice does no harm"
        self._inflight = None
        self._staged = False
        self._parts = []
        for number in [n for n in self.segments.by_number if n > batch.begin >> 32]:
            del self.segments.by_number[number]
        segment = self.segments.by_number[batch.begin >> 32]
        segment.end = batch.begin & OFFSET_MASK
        self._point_at(segment)

    def release(self, below_segment: int) -> None:
        """Remove segments with smaller numbers, oldest first, except the one being written. Raises
        `OSError`."""
        self.segments.remove(min(below_segment, self._synced >> 32))

    def look(self) -> None:
        """Check that all segments are still in the directory. Called periodically from one thread.
        Raises `JournalGone`, after which nothing can be written."""
        self._writer.look()
        missing = self.segments.missing()
        if missing is not None:
            self._writer.miss(missing)

    def close(self) -> None:
        """Confirm the last write and unlock the directory. Staged entries that were not written are
        lost."""
        try:
            self._writer.close(
                None if self._writer.failure or self._inflight else self._last_mark()
            )
        finally:
            self._files.close(self._lock)

    def _last_mark(self) -> WriteBatch | None:
        self._staged = False  # never written, so never acknowledged
        self._parts = []
        self._point_at(self.segments.by_number[self._synced >> 32])
        mark = self.take_mark()
        return None if mark is None else self._marked_batch(mark)

    def _make_room(self, size: int) -> None:
        """Start the next write or the next segment, so that a frame of `size` bytes fits at
        `_offset`."""
        if size > FRAME_HEADER_BYTES + PAYLOAD_BYTES_MAX:
            raise ValueError(f"a journal entry has at most {PAYLOAD_BYTES_MAX} bytes")
        if self._inflight is not None and self._inflight.refused and not self._staged:
            self.discard(self._inflight)
        if not self._staged:
            self._open_write()
        fits = self._offset + size <= self._segment_bytes
        if not fits and self._offset > SEGMENT_HEADER_BYTES + MARK_BYTES:
            self._end_part()
            self._open_segment()
        self._limit = max(self._segment_bytes, self._offset + size)

    def _open_write(self) -> None:
        self._staged = True
        self._begin = self._base | self._offset
        self._buffers = [b""]  # the mark: `write` packs it
        self._offset += MARK_BYTES

    def _open_segment(self) -> None:
        previous_end = self.position
        header = SegmentHeader(
            self._writer.journal_id, (previous_end >> 32) + 1, self._files.random64(), previous_end
        )
        here = previous_end & OFFSET_MASK
        final_mark = pack_mark(
            seed=self._seed,
            segment=self._base >> 32,
            offset=here,
            synced=header.number << 32 | SEGMENT_HEADER_BYTES,
        )
        segment = Segment(header.number, header.nonce, header.seed(), previous_end, 0, final_mark)
        self.segments.by_number[segment.number] = segment
        self._base = segment.number << 32
        self._seed = segment.seed
        self._offset = SEGMENT_HEADER_BYTES
        self._buffers = []

    def _end_part(self) -> None:
        """Turn the entries staged in this segment into a part of the write."""
        segment = self.segments.by_number[self._base >> 32]
        begin = SEGMENT_HEADER_BYTES if self._parts else self._begin & OFFSET_MASK
        self._parts.append(
            SegmentWrite(
                segment.number,
                segment.nonce,
                segment.previous_end,
                begin,
                self._offset,
                self._buffers,
                segment.final_mark,
            )
        )

    def _hand_over(self, *, durable: bool) -> WriteBatch:
        end = self._base | self._offset
        batch = WriteBatch(self._parts, self._begin, end, self._synced, durable)
        self._inflight = batch
        self._staged = False
        self._parts = []
        self._limit = 0  # the next `stage` starts the next write
        return batch

    def _point_at(self, segment: Segment) -> None:
        self._base = segment.number << 32
        self._seed = segment.seed
        self._offset = segment.end
        self._buffers = []
        self._limit = 0


def _number_in(said: bytes) -> int:
    """Parse the journal's number from the lock file; 0 if it is missing or incomplete."""
    digits = said[len(BEGUN) :]
    try:
        return int(digits, 16) if len(said) == _LOCK_BYTES and digits.endswith(b"\n") else 0
    except ValueError:
        return 0
