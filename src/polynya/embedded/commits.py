"""Group commit: threads that append at the same time share one write and one sync."""

from __future__ import annotations

import threading

from polynya.embedded.operations import AppendRecord, Operation
from polynya.embedded.writing import LogWriter


class _Group:
    __slots__ = ("operations", "waiting")

    def __init__(self, operation: Operation) -> None:
        self.operations = [operation]
        self.waiting: list[
            threading.Lock
        ] = []  # one lock of each other thread, released at the end

    def join(self, operation: Operation) -> threading.Lock:
        self.operations.append(operation)
        mine = threading.Lock()
        mine.acquire()
        self.waiting.append(mine)
        return mine

    def finish(self) -> None:
        for lock in self.waiting:
            lock.release()


class GroupCommit:
    """Runs operations of several threads. The first thread of a group writes for all of it."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._at_once = not writer.durable  # without a sync, waiting for others saves nothing
        self._mutex = threading.Lock()  # guards `_group`
        self.writing = threading.Lock()  # held by the thread that writes
        self._group: _Group | None = None

    def append(self, topic: str, record: bytes) -> int:
        """Append a record and return its number. Raises `LogError`."""
        writing = self.writing
        if self._at_once and self._group is None and writing.acquire(blocking=False):
            try:
                number = self._writer.append_now(topic, record)
            finally:
                writing.release()
            if number >= 0:
                return number
        operation = AppendRecord(topic, record)
        self.submit(operation)
        return operation.number

    def submit(self, operation: Operation) -> None:
        """Run an operation and return when it is written. Raises its error."""
        with self._mutex:
            if self._group is None:
                group, done = _Group(operation), None
                self._group = group
            else:
                group, done = self._group, self._group.join(operation)
        if done is None:
            self._lead(group)
        else:
            done.acquire()
        if operation.error is not None:
            raise operation.error

    def _lead(self, group: _Group) -> None:
        try:
            with self.writing:
                self._detach(group)
                self._writer.run(group.operations)
        except BaseException as error:  # an interrupt while this thread waited for its turn
            self._detach(group)
            for operation in group.operations:
                operation.error = operation.error or error
            raise
        finally:
            group.finish()

    def _detach(self, group: _Group) -> None:
        """Let no operation join the group any more."""
        with self._mutex:
            if self._group is group:
                self._group = None
