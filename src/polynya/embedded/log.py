"""The embedded log: the only writer of a directory, and a reader of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from polynya.base.limits import JOURNAL_SEGMENT_BYTES, KIB
from polynya.embedded.catalog import Catalog
from polynya.embedded.commits import GroupCommit
from polynya.embedded.cursors import Cursor
from polynya.embedded.errors import LogClosed, LogError, RecordMissing
from polynya.embedded.opening import open_writer
from polynya.embedded.operations import (
    AppendBatch,
    CreateTopic,
    DeleteTopic,
    DropCursor,
    MoveCursor,
    Operation,
    Trim,
    check_batch,
    check_name,
    check_record,
    existing,
)
from polynya.embedded.reading import ReadableLog
from polynya.wal import Files, OsFiles, TornTail
from polynya.wal.frames import SEGMENT_BYTES_MAX

SEGMENT_BYTES_MIN = 4 * KIB  # a segment has room for some records beside the state of the log


class Every(msgspec.Struct, frozen=True):
    """The schedule that syncs in the background every `milliseconds` while there is something to
    sync."""

    milliseconds: int

    def __post_init__(self) -> None:
        if not 1 <= self.milliseconds <= 3_600_000:
            raise LogError(
                f"a sync schedule is 1 to 3600000 milliseconds; this one is {self.milliseconds}"
            )


Schedule = Literal["each", "never"] | Every


class Log(ReadableLog):
    """A write-ahead log in a directory. One `Log` of one process has it open; any thread may use
    it.

    A call that changes the log returns after it is written, and with the schedule `each` after it
    is synced. Calls of several threads at the same time share a write and a sync.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Schedule = "each",
        segment_bytes: int = JOURNAL_SEGMENT_BYTES,
        files: Files | None = None,
    ) -> None:
        """Open the log in a directory, which is created if missing, and recover it.

        `sync`: when appends reach the disk: `each` call, `Every(milliseconds)`, or `never`. A torn
        tail is cut (`cuts`). Raises `LogLocked`; `CorruptData` for other damage; `ConfigError` for
        a directory of something else; `LogFull`, `OSError`.
        """
        if sync not in ("each", "never") and not isinstance(sync, Every):
            raise LogError(f"sync is 'each', 'never' or Every(milliseconds); not {sync!r}")
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise LogError(
                f"segment_bytes is {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}; not {segment_bytes}"
            )
        opened = open_writer(
            Path(path),
            files=OsFiles() if files is None else files,
            segment_bytes=segment_bytes,
            durable=sync == "each",
        )
        super().__init__(Path(path), opened.reader, opened.writer.catalog)
        self.cuts: tuple[TornTail, ...] = opened.cuts
        self._opened = opened
        self._writer = opened.writer
        self._commits = GroupCommit(opened.writer)
        self._process = os.getpid()
        self._closed = False
        self._stop = threading.Event()
        self._syncer: threading.Thread | None = None
        if isinstance(sync, Every):
            seconds = sync.milliseconds / 1000
            self._syncer = threading.Thread(
                target=self._sync_every, args=(seconds,), name="polynya-log-sync", daemon=True
            )
            self._syncer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, topic: str, record: bytes) -> int:
        """Append a record and return its number. The first append creates the topic.

        Raises `LimitExceeded`, `LogFull` (nothing was written), `LogFailed`, `LogClosed`.
        """
        if topic not in self._catalog.topics:
            check_name(topic, "topic")
        if self._closed or os.getpid() != self._process:
            self._refuse()
        return self._commits.append(topic, check_record(record))

    def append_batch(self, topic: str, records: Sequence[bytes]) -> range:
        """Append records and return their numbers. After a crash all of them are there, or none.

        Raises the errors of `append`.
        """
        operation = AppendBatch(check_name(topic, "topic"), check_batch(records))
        self._submit(operation)
        return range(operation.number, operation.number + operation.count)

    def create(self, topic: str) -> None:
        """Create a topic without records. Does nothing if it exists."""
        self._submit(CreateTopic(check_name(topic, "topic")))

    def delete(self, topic: str) -> None:
        """Delete a topic with its records and cursors. Raises `UnknownTopic`."""
        self._submit(DeleteTopic(topic))
        self._release()

    def trim(self, topic: str, before: int) -> None:
        """Remove the records with smaller numbers, and the segments that hold no others.

        Cursors do not hold records back; `trim(topic, min(log.cursors(topic).values()))` respects
        them. Raises `RecordMissing` if `before` is behind the end, `UnknownTopic`, `LogError`.
        """
        found = existing(self._current(), topic)
        if before > found.next:
            raise RecordMissing(
                f"topic {topic!r} ends at {found.next}; it cannot be trimmed to {before}",
                found.next,
            )
        if before <= found.first:
            return
        self._submit(Trim(found, before, self._bytes_before(found, before)))
        self._release()

    def cursor(self, topic: str, name: str) -> Cursor:
        """Return a cursor, which is stored with its first `commit`."""
        self._current()
        return Cursor(self, check_name(topic, "topic"), check_name(name, "cursor"))

    def commit(self, topic: str, cursor: str, position: int) -> None:
        """Store the position of a cursor: the number of the next record to process.

        Raises `UnknownTopic`, `RecordMissing` if the position is behind the end, `LogError`.
        """
        self._submit(MoveCursor(topic, check_name(cursor, "cursor"), position))

    def drop_cursor(self, topic: str, cursor: str) -> None:
        """Remove a cursor. Raises `UnknownTopic`, `UnknownCursor`."""
        self._submit(DropCursor(topic, cursor))

    def sync(self) -> None:
        """Make everything durable that was appended before. Raises `LogFailed`, `LogClosed`."""
        self._current()
        self._writer.sync()

    def close(self) -> None:
        """Sync and close the log. Idempotent. Raises `LogFailed` if the last sync fails."""
        with self._commits.writing:
            if self._closed:
                return
            self._closed = True
            self._stop.set()
            if self._syncer is not None:
                self._syncer.join()
            if os.getpid() == self._process:
                self._opened.close()

    def _current(self) -> Catalog:
        if self._closed:
            raise LogClosed(f"the log in {self._folder} is closed")
        return self._catalog

    def _submit(self, operation: Operation) -> None:
        if self._closed or os.getpid() != self._process:
            self._refuse()
        self._commits.submit(operation)

    def _refuse(self) -> None:
        if self._closed:
            raise LogClosed(f"the log in {self._folder} is closed")
        raise LogClosed(
            f"the log in {self._folder} was opened by process {self._process}, before a fork; "
            "only that "
            "process writes. Open a LogReader here"
        )

    def _release(self) -> None:
        with self._commits.writing:
            if not self._closed:
                self._writer.release()

    def _sync_every(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self._writer.sync()
            except LogError:
                return  # all later calls raise it
