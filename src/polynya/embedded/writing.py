"""The writer of a log: stage frames, write them, sync them, begin segments, remove old ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from google_crc32c import extend, value

from polynya.base.limits import LOG_WRITE_BYTES
from polynya.embedded.catalog import Catalog, Topic
from polynya.embedded.errors import LogClosed, LogError, LogFailed, LogFull
from polynya.embedded.frames import Kind, pack_state
from polynya.embedded.loading import Loaded
from polynya.embedded.operations import Operation, new_topic
from polynya.embedded.segments import SegmentReader
from polynya.wal import DiskFull, Files, WriteBatch
from polynya.wal.frames import (
    FRAME_HEADER_BYTES,
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    pack_frame_head,
    pack_mark,
)
from polynya.wal.recovery import Segment
from polynya.wal.writer import SegmentWrite, SegmentWriter

# kind, topic, index, offset, count, size, payload
Staged = tuple[int, Topic, int, int, int, int, bytes]


class StagedWrite:
    """The content of the next write: frames, and the segment's offsets where they begin and end."""

    __slots__ = ("begin", "buffers", "created", "frames", "limit", "offset", "seed")

    def __init__(self) -> None:
        self.created: dict[str, Topic] = {}
        self.frames: list[Staged] = []
        self.buffers: list[bytes] = []
        self.begin = self.offset = self.limit = self.seed = 0

    def add(self, kind: int, topic: int, index: int, payload: bytes) -> None:
        """Add a frame at the offset."""
        head = pack_frame_head(len(payload), value(payload), 0, kind, topic, index)
        crc = extend(self.seed ^ self.offset, head).to_bytes(4, "little")
        self.buffers += (head, crc, payload)
        self.offset += FRAME_HEADER_BYTES + len(payload)


class LogWriter:
    """The only writer of the segments. One thread at a time calls `run` and `close`.

    Any thread may call `sync`. Frames reach the catalog after they are written, and with
    `durable` after they are synced. Invariant: `_marked` ≤ `_synced` ≤ the end; a mark names
    `_synced` and nothing newer.
    """

    def __init__(
        self,
        folder: Path,
        writer: SegmentWriter,
        reader: SegmentReader,
        loaded: Loaded,
        *,
        files: Files,
        segment_bytes: int,
        durable: bool,
    ) -> None:
        self.catalog: Catalog = loaded.catalog
        self.failure: BaseException | None = None
        self.closed = False
        self._folder = folder
        self._writer = writer
        self._reader = reader
        self._files = files
        self._segment_bytes = segment_bytes
        self.durable = durable
        self._open: Segment = reader.segments[loaded.segment]
        self._target = self._open
        self._fresh = loaded.fresh
        self._synced = self._marked = self.end  # opening has synced it
        self._sync_lock = threading.Lock()  # one sync covers all that wait for it
        self._write = StagedWrite()
        self._settled = self._current = 0

    @property
    def end(self) -> int:
        """Return the position after the last written frame."""
        open_ = self._open
        return open_.number << 32 | open_.end

    @property
    def journal_id(self) -> int:
        """Return the id that all segments have."""
        return self._writer.journal_id

    def run(self, operations: Sequence[Operation]) -> None:
        """Write what the operations stage; set the `error` of those that failed."""
        self._settled = self._current = 0
        try:
            self._refuse_failed()
            for operation in operations:
                try:
                    operation.stage(self)
                except LogError as refusal:
                    if isinstance(refusal, LogFull | LogFailed | LogClosed):
                        raise
                    operation.error = refusal
                self._current += 1
                if operation.alone:
                    self._flush()
            self._flush()
        except BaseException as error:
            self._abandon()
            if not isinstance(error, LogError):
                self.failure = self.failure or error
            for operation in operations[self._settled :]:
                operation.error = operation.error or self._error(error)
            if not isinstance(error, Exception):
                raise

    def append_now(self, name: str, data: bytes) -> int:
        """Append one record at once, without a sync, and return its number.

        Return -1, with nothing done, if this takes more than a frame: the general way is `run`.
        """
        topic = self.catalog.topics.get(name)
        open_ = self._open
        begin = open_.end
        length = len(data)
        end = begin + FRAME_HEADER_BYTES + length
        if topic is None or self._fresh or self._marked < self._synced or end > self._segment_bytes:
            return -1
        self._refuse_failed()
        number = topic.next
        head = pack_frame_head(length, value(data), 0, Kind.RECORD, topic.number, number)
        crc = extend(open_.seed ^ begin, head).to_bytes(4, "little")
        try:
            self._writer.extend(head + crc + data)
            open_.end = end
            self.catalog.add(topic, begin, number, 1, length)
        except DiskFull as error:
            raise self._full(error) from error
        except BaseException as error:
            self.failure = self.failure or error
            if not isinstance(error, Exception):
                raise
            raise self._error(error) from error
        return number

    def topic(self, name: str) -> Topic:
        """Return the topic; stage its creation if it is missing."""
        topic = self.catalog.topics.get(name) or self._write.created.get(name)
        if topic is None:
            topic = new_topic(
                self.catalog, name, self.catalog.next_topic + len(self._write.created)
            )
            self.put(Kind.TOPIC, topic, 0, name.encode(), 0, 0)
            self._write.created[name] = topic
        return topic

    def put(
        self, kind: int, topic: Topic, index: int, payload: bytes, count: int, size: int
    ) -> None:
        """Stage a frame with `count` records of `size` bytes together."""
        write, length = self._write, FRAME_HEADER_BYTES + len(payload)
        if write.offset + length > write.limit:
            self._make_room(length)
            write = self._write
        write.frames.append((kind, topic, index, write.offset, count, size, payload))
        write.add(kind, topic.number, index, payload)

    def sync(self) -> None:
        """Make everything durable that was written before the call. Raises `LogFailed`."""
        end = self.end
        with self._sync_lock:
            self._refuse_failed()
            if self._synced >= end:
                return
            end = self.end
            try:
                self._writer.sync()
            except OSError as error:
                self.failure = self.failure or error
                raise self._error(error) from error
            self._synced = max(self._synced, end)

    def release(self) -> None:
        """Remove the segments that hold no record any more. Raises `LogError`."""
        if self._fresh:
            return  # the newest state is in the segment before
        oldest = min(self._reader.segments)
        if oldest == self._open.number or oldest >= (below := self.catalog.oldest_segment()):
            return
        self.sync()  # the frames that trimmed the records
        for number in sorted(n for n in self._reader.segments if n < below):
            try:
                self._reader.remove(number)
            except OSError as error:
                raise LogError(
                    f"the records are trimmed, but segment {number} in {self._folder} cannot be "
                    "removed: "
                    f"{error.strerror}; trim again, or open the log again"
                ) from error

    def close(self) -> None:
        """Sync, confirm the last write with a mark, and close the segment. Raises `LogFailed`."""
        batch = None
        try:
            if self.failure is None:
                self.sync()
                batch = self._last_mark()
        finally:
            with self._sync_lock:
                self.closed = True
                self._writer.close(batch)

    def _last_mark(self) -> WriteBatch | None:
        if self._marked >= self._synced:
            return None
        open_, end = self._open, self.end
        mark = pack_mark(
            seed=open_.seed, segment=open_.number, offset=open_.end, synced=self._synced
        )
        part = SegmentWrite(open_.number, open_.nonce, 0, open_.end, open_.end + MARK_BYTES, [mark])
        return WriteBatch([part], end, end + MARK_BYTES, self._synced, durable=False)

    def _make_room(self, size: int) -> None:
        """Begin a write in which a frame of `size` bytes fits; write what is staged first."""
        self._flush()
        open_ = self._open
        marks = self._marked < self._synced and not self._fresh
        begin = open_.end + (MARK_BYTES if marks else 0)
        if begin + size > self._segment_bytes and not self._fresh:
            self._target = self._next_segment()
            begin, marks = SEGMENT_HEADER_BYTES, False
        write = self._write
        write.begin = SEGMENT_HEADER_BYTES if self._target is not open_ else open_.end
        write.offset, write.seed = begin, self._target.seed
        if marks:
            synced = self._synced
            number = open_.number
            write.buffers.append(
                pack_mark(seed=open_.seed, segment=number, offset=open_.end, synced=synced)
            )
        if self._fresh or self._target is not open_:
            write.add(Kind.STATE, 0, 0, pack_state(self.catalog.state()))
        most = max(self._segment_bytes, write.offset + size)
        write.limit = min(most, write.offset + max(size, LOG_WRITE_BYTES))

    def _next_segment(self) -> Segment:
        """Return a new segment; the write that begins it makes its file."""
        here, open_ = self.end, self._open
        header = SegmentHeader(self.journal_id, open_.number + 1, self._files.random64(), here)
        synced = header.number << 32 | SEGMENT_HEADER_BYTES
        final_mark = pack_mark(
            seed=open_.seed, segment=open_.number, offset=open_.end, synced=synced
        )
        return Segment(header.number, header.nonce, header.seed(), here, 0, final_mark)

    def _flush(self) -> None:
        """Write what is staged and apply it. Raises `LogFull`, `OSError`, `PolynyaError`."""
        write = self._write
        if not write.buffers:
            return
        target, named = self._target, self._synced
        part = SegmentWrite(
            target.number,
            target.nonce,
            target.previous_end,
            write.begin,
            write.offset,
            write.buffers,
            target.final_mark,
        )
        end = target.number << 32 | write.offset
        batch = WriteBatch([part], self.end, end, named, self.durable)
        try:
            self._writer.write(batch)
        except DiskFull as error:
            raise self._full(error) from error
        self._written(target, end, named)

    def _written(self, target: Segment, end: int, named: int) -> None:
        offset = end & 0xFFFFFFFF
        if target is self._open:
            target.end = offset
            self._marked = max(self._marked, named)
        else:
            target.end = offset
            self._reader.segments[target.number] = target
            sealed, number = self.catalog.open_segment(target.number), self._open.number
            self._open = target
            self._reader.seal(number, sealed)
            self._marked = self._synced = target.number << 32 | SEGMENT_HEADER_BYTES
        if self.durable:
            self._synced = end
        self._fresh = False
        self._publish()
        self._settled = self._current

    def _publish(self) -> None:
        catalog = self.catalog
        add = catalog.add
        for kind, topic, index, offset, count, size, payload in self._write.frames:
            if count:
                staged = topic.staged
                add(topic, offset, index, count, size)
                topic.staged = staged  # an operation after this one may be staged already
            elif kind == Kind.TOPIC:
                catalog.add_topic(topic)
            else:
                catalog.change(topic, kind, index, payload)
        self._write = StagedWrite()

    def _abandon(self) -> None:
        """Forget what is staged."""
        for _, topic, *_ in self._write.frames:
            topic.staged = topic.next
        self._target = self._open
        self._write = StagedWrite()

    def _refuse_failed(self) -> None:
        if self.closed:
            raise LogClosed(f"the log in {self._folder} is closed")
        if self.failure is None:
            self.failure = self._writer.failure
        if self.failure is not None:
            raise self._error(self.failure)

    def _full(self, error: DiskFull) -> LogFull:
        return LogFull(
            f"no space left for the log in {self._folder}: {error}. The write was undone; make "
            "room and retry"
        )

    def _error(self, error: BaseException) -> LogError:
        """Return the error for one operation."""
        if isinstance(error, LogFull):
            return LogFull(*error.args)
        if isinstance(error, LogFailed | LogClosed):
            return type(error)(*error.args)
        return LogFailed(
            f"the log in {self._folder} failed: {error or type(error).__name__}. Nothing more is "
            "written; "
            "close the log and open it again, which finds everything that was synced"
        )
