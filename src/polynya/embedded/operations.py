"""The operations that a writer stages: each adds frames to a write, or refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polynya.base.limits import (
    LOG_BATCH_RECORDS_MAX,
    LOG_CURSORS_MAX,
    LOG_NAME_BYTES_MAX,
    LOG_RECORD_BYTES_MAX,
    LOG_TOPICS_MAX,
    MIB,
)
from polynya.embedded.catalog import Catalog, Topic
from polynya.embedded.errors import (
    LimitExceeded,
    LogError,
    RecordMissing,
    UnknownCursor,
    UnknownTopic,
)
from polynya.embedded.frames import U64, Kind, TopicState, pack_batch


class Staging(Protocol):
    """A write that is being built."""

    @property
    def catalog(self) -> Catalog: ...

    def topic(self, name: str) -> Topic:
        """Return the topic; stage its creation if it is missing."""

    def put(
        self, kind: int, topic: Topic, index: int, payload: bytes, count: int, size: int
    ) -> None:
        """Stage a frame with `count` records of `size` bytes together."""


class Operation:
    """One call of a user. `error` is set if it failed."""

    __slots__ = ("error",)
    alone = False  # whether operations behind it must see it applied

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def stage(self, write: Staging) -> None:
        """Add frames to a write. Raises `LogError` before it has added one."""
        raise NotImplementedError


class AppendRecord(Operation):
    """Append one record; `number` is set."""

    __slots__ = ("data", "name", "number")

    def __init__(self, name: str, data: bytes) -> None:
        self.error = None
        self.name = name
        self.data = data
        self.number = -1

    def stage(self, write: Staging) -> None:
        topic = write.catalog.topics.get(self.name) or write.topic(self.name)
        data = self.data
        number = self.number = topic.staged
        write.put(Kind.RECORD, topic, number, data, 1, len(data))
        topic.staged = number + 1


class AppendBatch(Operation):
    """Append records in one frame; `number` is that of the first."""

    __slots__ = ("count", "name", "number", "payload", "size")

    def __init__(self, name: str, records: Sequence[bytes]) -> None:
        super().__init__()
        self.name = name
        self.number = -1
        self.count = len(records)
        self.size = sum(map(len, records))
        self.payload = pack_batch(records)

    def stage(self, write: Staging) -> None:
        topic = write.topic(self.name)
        number = self.number = topic.staged
        write.put(Kind.BATCH, topic, number, self.payload, self.count, self.size)
        topic.staged = number + self.count


class Change(Operation):
    """Change a topic that exists: the base of the operations without records."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def existing(self, write: Staging) -> Topic:
        """Return the topic. Raises `UnknownTopic`."""
        return existing(write.catalog, self.name)


class CreateTopic(Change):
    """Create a topic, unless it exists."""

    __slots__ = ()

    def stage(self, write: Staging) -> None:
        write.topic(self.name)


class DeleteTopic(Change):
    """Delete a topic with its records and cursors."""

    __slots__ = ()
    alone = True

    def stage(self, write: Staging) -> None:
        write.put(Kind.DELETE, self.existing(write), 0, b"", 0, 0)


class Trim(Change):
    """Remove the records of a topic before a number. `size`: the payload bytes of all of them."""

    __slots__ = ("before", "size", "topic")
    alone = True

    def __init__(self, topic: Topic, before: int, size: int) -> None:
        super().__init__(topic.name)
        self.topic = topic
        self.before = before
        self.size = size

    def stage(self, write: Staging) -> None:
        topic = self.existing(write)
        if topic is not self.topic:
            raise UnknownTopic(f"topic {self.name!r} was deleted meanwhile")
        if self.before > topic.first:
            write.put(Kind.TRIM, topic, self.before, U64.pack(self.size), 0, 0)


class MoveCursor(Change):
    """Set the position of a cursor; create it if missing."""

    __slots__ = ("cursor", "position")

    def __init__(self, name: str, cursor: str, position: int) -> None:
        super().__init__(name)
        self.cursor = cursor
        self.position = position

    def stage(self, write: Staging) -> None:
        topic = self.existing(write)
        if not 0 <= self.position <= topic.next:
            raise RecordMissing(
                f"cursor {self.cursor!r} cannot move to {self.position}: topic {self.name!r} ends "
                f"at {topic.next}",
                topic.next,
            )
        if self.cursor not in topic.cursors and write.catalog.cursors >= LOG_CURSORS_MAX:
            raise LimitExceeded(
                f"the log has {LOG_CURSORS_MAX} cursors, the most that are allowed; drop one"
            )
        write.put(Kind.CURSOR, topic, self.position, self.cursor.encode(), 0, 0)


class DropCursor(Change):
    """Remove a cursor."""

    __slots__ = ("cursor",)

    def __init__(self, name: str, cursor: str) -> None:
        super().__init__(name)
        self.cursor = cursor

    def stage(self, write: Staging) -> None:
        topic = self.existing(write)
        if self.cursor not in topic.cursors:
            raise unknown_cursor(self.name, self.cursor)
        write.put(Kind.DROP_CURSOR, topic, 0, self.cursor.encode(), 0, 0)


def existing(catalog: Catalog, name: str) -> Topic:
    """Return a topic. Raises `UnknownTopic`."""
    topic = catalog.topics.get(name)
    if topic is None:
        raise UnknownTopic(f"the log has no topic {name!r}; the first append creates it")
    return topic


def unknown_cursor(topic: str, cursor: str) -> UnknownCursor:
    """Return the error for a cursor that does not exist."""
    return UnknownCursor(f"topic {topic!r} has no cursor {cursor!r}; the first commit creates it")


def new_topic(catalog: Catalog, name: str, number: int) -> Topic:
    """Return a topic that is not in the catalog yet. Raises `LimitExceeded`."""
    if len(catalog.topics) >= LOG_TOPICS_MAX:
        raise LimitExceeded(
            f"the log has {LOG_TOPICS_MAX} topics, the most that are allowed; delete one"
        )
    return Topic(TopicState(number, name, 0, 0, 0, 0))


def check_name(name: str, of: str) -> str:
    """Return the name of a topic or cursor. Raises `LimitExceeded`, `LogError`."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        raise LogError(
            f"the name of a {of} is Unicode text; {name!r} has half a surrogate pair"
        ) from None
    if not 0 < length <= LOG_NAME_BYTES_MAX:
        raise LimitExceeded(
            f"the name of a {of} has 1 to {LOG_NAME_BYTES_MAX} bytes in UTF-8; this one has "
            f"{length}"
        )
    return name


def check_record(data: bytes) -> bytes:
    """Return the bytes of a record. Raises `LimitExceeded`, `TypeError`."""
    if type(data) is not bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"a record is bytes; this one is {type(data).__name__}: encode it first"
            )
        data = bytes(data)
    if len(data) > LOG_RECORD_BYTES_MAX:
        raise LimitExceeded(
            f"a record has at most {LOG_RECORD_BYTES_MAX // MIB} MiB; this one has {len(data)} "
            "bytes"
        )
    return data


def check_batch(records: Sequence[bytes]) -> list[bytes]:
    """Return the records of a batch. Raises `LimitExceeded`, `TypeError`."""
    if isinstance(records, bytes | bytearray | memoryview | str):
        raise TypeError(f"a batch is a sequence of records; this is one {type(records).__name__}")
    checked = [check_record(record) for record in records]
    size = sum(map(len, checked))
    if not 0 < len(checked) <= LOG_BATCH_RECORDS_MAX or size > LOG_RECORD_BYTES_MAX:
        raise LimitExceeded(
            f"a batch has 1 to {LOG_BATCH_RECORDS_MAX} records and at most "
            f"{LOG_RECORD_BYTES_MAX // MIB} "
            f"MiB; this one has {len(checked)} records and {size} bytes"
        )
    return checked
