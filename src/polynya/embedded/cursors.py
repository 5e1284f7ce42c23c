"""Named cursors: durable positions of consumers in a topic."""

from __future__ import annotations

from typing import Protocol

from polynya.base.limits import MIB
from polynya.embedded.reading import Record


class CursorLog(Protocol):
    """The methods of a log that a cursor calls."""

    def cursors(self, topic: str) -> dict[str, int]: ...

    def first(self, topic: str) -> int: ...

    def count(self, topic: str, *, cursor: str | None = None) -> int: ...

    def topics(self) -> list[str]: ...

    def commit(self, topic: str, cursor: str, position: int) -> None: ...

    def read_batch(
        self, topic: str, start: int, *, max_records: int = 1000, max_bytes: int = MIB
    ) -> list[Record]: ...


class Cursor:
    """The position of one consumer. Reading does not move it; `commit` does, durably."""

    def __init__(self, log: CursorLog, topic: str, name: str) -> None:
        """Name a cursor; use `Log.cursor`."""
        self.topic = topic
        self.name = name
        self._log = log

    @property
    def position(self) -> int:
        """Return the number of the next record to process; of a new cursor, the oldest record."""
        position = self._log.cursors(self.topic).get(self.name)
        first = self._log.first(self.topic)
        return first if position is None else max(position, first)

    def peek(self, *, max_records: int = 1000, max_bytes: int = MIB) -> list[Record]:
        """Return the next records without moving. The same records return until `commit`.

        Raises `UnknownTopic`, `CorruptData`.
        """
        return self._log.read_batch(
            self.topic, self.position, max_records=max_records, max_bytes=max_bytes
        )

    def commit(self, record: Record | int) -> None:
        """Move behind a processed record, given as `Record` or by its number.

        Raises `UnknownTopic`, `RecordMissing` if it is behind the end.
        """
        position = record + 1 if isinstance(record, int) else record.number + 1
        self._log.commit(self.topic, self.name, position)

    def seek(self, position: int) -> None:
        """Move to a number, forward or back: the next record to process. Raises as `commit`."""
        self._log.commit(self.topic, self.name, position)

    def lag(self) -> int:
        """Count the records that are not processed yet."""
        return self._log.count(self.topic) - (self.position - self._log.first(self.topic))
