"""Opening a log for writing: lock the directory, recover the segments, load the catalog."""

from __future__ import annotations

import os
from pathlib import Path

from polynya.embedded.errors import LogFull, LogLocked
from polynya.embedded.loading import load
from polynya.embedded.segments import SegmentReader
from polynya.embedded.writing import LogWriter
from polynya.files import is_full
from polynya.wal import Files, JournalLocked, TornTail
from polynya.wal.frames import SEGMENT_HEADER_BYTES, parse_segment_header
from polynya.wal.recovery import SUFFIX, recover
from polynya.wal.writer import SegmentWriter

LOCK = "lock"
PID_BYTES = 21  # 20 digits and a line feed
BEGUN = b"begun\n"


class OpenLog:
    """A log that is open for writing."""

    def __init__(
        self,
        writer: LogWriter,
        reader: SegmentReader,
        files: Files,
        *,
        lock: int,
        cuts: tuple[TornTail, ...],
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.cuts = cuts
        self._files = files
        self._lock = lock

    def close(self) -> None:
        """Confirm the last write, close the files, and unlock the directory. Raises `LogError`."""
        try:
            self.writer.close()
        finally:
            self.reader.close()
            self._files.close(self._lock)


def open_writer(folder: Path, *, files: Files, segment_bytes: int, durable: bool) -> OpenLog:
    """Open a log. Raises `LogLocked`, `LogFull`, `CorruptData`, `ConfigError`, `OSError`."""
    files.make_folder(folder)
    lock = _lock(folder, files)
    try:
        return _open(folder, files, lock, segment_bytes, durable)
    except BaseException as error:
        files.close(lock)
        if isinstance(error, OSError) and is_full(error):
            raise LogFull(
                f"no space left to open the log in {folder}: {error.strerror}; make room"
            ) from error
        raise


def _open(folder: Path, files: Files, lock: int, segment_bytes: int, durable: bool) -> OpenLog:
    said = files.read(lock, PID_BYTES + len(BEGUN), 0)
    files.write(lock, [b"%020d\n" % os.getpid()], 0)
    journal_id = _journal_id(folder, files)
    begun = said[PID_BYTES:] == BEGUN
    recovered = recover(folder, journal_id=journal_id, files=files, begun=begun)
    writer = SegmentWriter(folder, journal_id=journal_id, segment_bytes=segment_bytes, files=files)
    writer.start(recovered)
    reader = SegmentReader(folder, files, keeps=True)
    try:
        files.write(lock, [BEGUN], PID_BYTES)
        reader.segments = {segment.number: segment for segment in recovered.segments}
        reader.remove_leftovers()
        log_writer = LogWriter(
            folder,
            writer,
            reader,
            load(folder, reader),
            files=files,
            segment_bytes=segment_bytes,
            durable=durable,
        )
        log_writer.release()
    except BaseException:
        reader.close()
        writer.close(None)
        raise
    return OpenLog(log_writer, reader, files, lock=lock, cuts=tuple(recovered.cuts))


def _lock(folder: Path, files: Files) -> int:
    try:
        return files.lock(folder / LOCK)
    except JournalLocked:
        pid = _owner(folder, files)
        whose = (
            "this process" if pid == os.getpid() else f"process {pid}" if pid else "another process"
        )
        raise LogLocked(
            f"the log in {folder} is open for writing in {whose}. Close it there, or read it here "
            "with LogReader",
            pid,
        ) from None


def _owner(folder: Path, files: Files) -> int:
    """Return the process that holds the lock, 0 if it has not said so yet."""
    try:
        fd = files.open(folder / LOCK)
    except OSError:
        return 0
    try:
        said = files.read(fd, PID_BYTES, 0)
    finally:
        files.close(fd)
    return int(said) if len(said) == PID_BYTES and said[:-1].isdigit() else 0


def _journal_id(folder: Path, files: Files) -> int:
    """Return the id of the segments; a random one for a new log, or one whose first segment is
    torn."""
    names = sorted(name for name in files.names(folder) if name.endswith(SUFFIX))
    for name in names:
        fd = files.open(folder / name)
        try:
            header = parse_segment_header(files.read(fd, SEGMENT_HEADER_BYTES, 0))
        finally:
            files.close(fd)
        if header is not None and not isinstance(header, int):
            return header.journal_id
    return files.random64()
