"""The reducer `latest`: the last record of each key, a key-value view of a stream. Pure.

The state is a JSON object: `{"KEY": {"record": 7, "value": …}}`, in the order of the keys. A record
without a value, or with the value `null`, removes its key; one without a key is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from polynya.base.limits import REDUCER_STATE_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.reducers.json_values import JSON, json_of
from polynya.reducers.keys import change_of, key_text
from polynya.reducers.reducer import Record, ReducerFault

_ENTRY = b'{"record":%d,"value":%b}'
_state = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key = msgspec.json.encode


class Latest:
    """The last record of each key. `pointer`: where the key is in a JSON value; "": see
    `keys.change_of`."""

    content_type = JSON

    def __init__(self, pointer: str = "", *, bytes_max: int = REDUCER_STATE_BYTES_MAX) -> None:
        self._pointer = pointer
        self._bytes_max = bytes_max
        self._entries: dict[str, bytes] = {}  # key -> its entry as JSON
        self._bytes = 2  # of the state: braces, and key, colon, entry and comma of each

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state. Raises `ReducerFault`."""
        try:
            found = {} if state is None else _state(state)
        except UNREADABLE as damage:
            raise ReducerFault(f"the published state is not one of 'latest': {damage}") from None
        self._entries = {key: bytes(entry) for key, entry in found.items()}
        self._bytes = 2 + sum(_size(key, entry) for key, entry in self._entries.items())

    def migrate(self, state: bytes) -> None:
        """Refuse: a builtin begins again at the first record. Raises `ReducerFault`."""
        raise ReducerFault("a builtin reducer has no migrate: it must begin at the first record")

    def apply(self, records: Sequence[Record]) -> int:
        """Apply records. Return how many had a key. Raises `ReducerFault` when the state becomes
        too large."""
        taken = 0
        for record in records:
            change = change_of(record, self._pointer)
            if change is None:
                continue
            taken += 1
            if change.key is None:
                self._entries, self._bytes = {}, 2
                continue
            entry = None
            if change.value not in (None, b"null"):
                entry = _ENTRY % (record.record, json_of(change.value))
            self._set(change.key, entry, record.record)
        return taken

    def _set(self, key: str, entry: bytes | None, record: int) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self._bytes -= _size(key, old)
        if entry is None:
            return
        self._bytes += _size(key, entry)
        if self._bytes > self._bytes_max:
            raise ReducerFault(
                f"at record {record} the state has {self._bytes:,} bytes; at most "
                f"{self._bytes_max:,}: delete keys by records with the value null, or divide the stream"
            )
        self._entries[key] = entry

    def state(self) -> bytes:
        """Return the state, the keys in their order."""
        entries = self._entries
        return b"{" + b",".join(_key(key) + b":" + entries[key] for key in sorted(entries)) + b"}"

    def get(self, key: bytes) -> bytes | None:
        """Return `{"record", "value"}` of a key."""
        return self._entries.get(key_text(key))

    def items(self, after: str | None, limit: int) -> Iterator[tuple[str, bytes]]:
        """Iterate over keys behind `after` (None: from the first) and what the state has for them,
        in their order."""
        keys = sorted(key for key in self._entries if after is None or key > after)
        return ((key, self._entries[key]) for key in keys[:limit])

    def close(self) -> None:
        """Release the entries."""
        self._entries = {}


def _size(key: str, entry: bytes) -> int:
    return len(_key(key)) + len(entry) + 2
