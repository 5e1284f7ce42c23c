"""The audit log: actor, action, time, origin and outcome, as JSON lines in files of bounded size.
`access/audit.jsonl` in the data folder is the newest file, `audit.1.jsonl` the one before it, and
so on. Cores, supervisor and command line write single lines under a lock."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from polynya.access.token_file import FOLDER, give_to_owner, locked
from polynya.base.limits import AUDIT_FILE_BYTES_MAX, AUDIT_FILES_MAX
from polynya.files import sync_folder

# queued entries; further ones are dropped and counted, as no request may wait for the log
QUEUE_MAX = 10_000
READ_BYTES_MAX = 1 << 20  # of a file, to show its last entries
log = logging.getLogger("polynya.audit")


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line. `who` is a token's id and name, a user of this machine or another actor. `outcome`
    is a status, an error code or `ok`."""

    time: str
    act: str
    target: str
    who: str
    remote: str = msgspec.field(name="from", default="")
    outcome: str = "ok"
    request_id: str = ""


def act(
    name: str, target: str, who: str, remote: str = "", outcome: str = "ok", request_id: str = ""
) -> AuditEntry:
    """Return an entry with the present time."""
    moment = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return AuditEntry(moment, name, target, who, remote, outcome, request_id)


class AuditFile:
    """The rotated files of the audit log. `write` blocks; any process may call it."""

    def __init__(
        self,
        data: str | Path,
        *,
        bytes_max: int = AUDIT_FILE_BYTES_MAX,
        files_max: int = AUDIT_FILES_MAX,
    ) -> None:
        self._folder = Path(data) / FOLDER
        self.path = self._folder / "audit.jsonl"
        self._bytes_max, self._files_max = bytes_max, files_max

    def write(self, *acts: AuditEntry) -> None:
        """Append entries and sync the file. Raise OSError."""
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in acts)
        with locked(self._folder, "audit.lock"):
            if self._size() + len(lines) > self._bytes_max and self._size():
                self._rotate()
            is_new = not self.path.exists()
            descriptor = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            try:
                give_to_owner(descriptor, self._folder)
                os.write(descriptor, lines)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                sync_folder(self._folder)

    def last(self, limit: int) -> list[AuditEntry]:
        """Return up to `limit` entries, the newest first, from the last `READ_BYTES_MAX` bytes of
        each file. Blocks. Raise OSError."""
        found: list[AuditEntry] = []
        for path in (self.path, *(self._numbered(each) for each in range(1, self._files_max + 1))):
            for line in reversed(_tail(path, READ_BYTES_MAX)):
                if len(found) == limit:
                    return found
                with contextlib.suppress(msgspec.MsgspecError):  # a line that a crash cut
                    found.append(msgspec.json.decode(line, type=AuditEntry))
        return found

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        for number in range(self._files_max, 0, -1):
            older = self._numbered(number)
            if not older.exists():
                continue
            if number < self._files_max:
                os.replace(older, self._numbered(number + 1))
            else:
                older.unlink()
        os.replace(self.path, self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self._folder / f"audit.{number}.jsonl"


def _tail(path: Path, size: int) -> list[bytes]:
    """Return the whole lines in the last bytes of a file; none if it does not exist."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - size)
            file.seek(begin)
            lines = file.read(size).split(b"\n")
    except FileNotFoundError:
        return []
    return [line for line in lines[1 if begin else 0 :] if line]


class AuditLog:
    """The audit log of a core: a thread writes queued entries in batches. `close` writes the
    rest."""

    def __init__(self, file: AuditFile) -> None:
        self.lost = 0  # entries dropped: the queue was full or the write failed
        self.written = 0
        self._file = file
        self._queue: queue.Queue[AuditEntry | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._write_loop, name="audit", daemon=True)
        self._thread.start()

    def record(
        self, name: str, target: str, who: str, remote: str, outcome: str, request_id: str
    ) -> None:
        try:
            self._queue.put_nowait(act(name, target, who, remote, outcome, request_id))
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _write_loop(self) -> None:
        is_open = True
        while is_open:
            found = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while found[-1] is not None and len(found) < 1000:
                    found.append(self._queue.get_nowait())
            is_open = found[-1] is not None
            acts = [each for each in found if each is not None]
            try:
                if acts:
                    self._file.write(*acts)
                self.written += len(acts)
            except OSError as error:
                self.lost += len(acts)
                log.error(
                    "the audit log cannot be written",
                    extra={"file": str(self._file.path), "lost": len(acts), "error": str(error)},
                )
