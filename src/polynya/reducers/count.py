"""The reducer `count`: how many records a stream has had, and their bytes and times. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polynya.base.msgpack import UNREADABLE
from polynya.reducers.json_values import JSON
from polynya.reducers.reducer import Record, ReducerFault


class Counts(msgspec.Struct):
    """The state. Bytes are those of values; `first_ms` and `last_ms` are the times of the first and
    the last record."""

    records: int = 0
    bytes: int = 0
    nulls: int = 0  # records without a value
    first_ms: int | None = None
    last_ms: int | None = None


class Count:
    """The counts of the records so far."""

    content_type = JSON

    def __init__(self) -> None:
        self._counts = Counts()

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state. Raises `ReducerFault`."""
        try:
            self._counts = Counts() if state is None else msgspec.json.decode(state, type=Counts)
        except UNREADABLE as damage:
            raise ReducerFault(f"the published state is not one of 'count': {damage}") from None

    def migrate(self, state: bytes) -> None:
        """Refuse: a builtin begins again at the first record. Raises `ReducerFault`."""
        raise ReducerFault("a builtin reducer has no migrate: it must begin at the first record")

    def apply(self, records: Sequence[Record]) -> int:
        """Count records. Return how many."""
        counts = self._counts
        for record in records:
            counts.bytes += len(record.value or b"")
            counts.nulls += record.value is None
        counts.records += len(records)
        if records:
            counts.first_ms = records[0].record_ms if counts.first_ms is None else counts.first_ms
            counts.last_ms = records[-1].record_ms
        return len(records)

    def state(self) -> bytes:
        """Return the counts as JSON."""
        return msgspec.json.encode(self._counts)

    def get(self, key: bytes) -> bytes | None:
        """Return one of the counts by its name."""
        found = msgspec.to_builtins(self._counts)
        name = key.decode(errors="replace")
        return msgspec.json.encode(found[name]) if name in found else None

    def close(self) -> None:
        """Release nothing: the counts are small."""
