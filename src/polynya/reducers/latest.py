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
from polynya.reducers.keys import change_of, key_text, pointer_parts
from polynya.reducers.reducer import Record, ReducerFault

_ENTRY = b'{"record":%d,"value":%b}'
_state = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key = msgspec.json.encode


class Latest:
    """The last record of each key. `pointer`: where the key is in a JSON value; "": see
    `keys.change_of`."""

    content_type = JSON

    def __init__(self, pointer: str = "", *, bytes_max: int = REDUCER_STATE_BYTES_MAX) -> None:
        self._pointer = pointer_parts(pointer)
        self._bytes_max = bytes_max
        self._members: dict[str, bytes] = {}  # key -> its member of the state: `"KEY":{…}`
        self._bytes = 2  # of the state: braces, and each member with a comma

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state. Raises `ReducerFault`."""
        try:
            found = {} if state is None else _state(state)
        except UNREADABLE as damage:
            raise ReducerFault(f"the published state is not one of 'latest': {damage}") from None
        self._members = {key: _member(key, bytes(entry)) for key, entry in found.items()}
        self._bytes = 2 + sum(len(member) + 1 for member in self._members.values())

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
            key, value = change
            if key is None:
                self._members, self._bytes = {}, 2
                continue
            old = self._members.pop(key, None)
            if old is not None:
                self._bytes -= len(old) + 1
            if value is not None and value != b"null":
                self._add(
                    key, _member(key, _ENTRY % (record.record, json_of(value))), record.record
                )
        return taken

    def _add(self, key: str, member: bytes, record: int) -> None:
        self._bytes += len(member) + 1
        if self._bytes > self._bytes_max:
            raise ReducerFault(
                f"at record {record} the state has {self._bytes:,} bytes; at most "
                f"{self._bytes_max:,}: delete keys by records with the value null, or divide the stream"
            )
        self._members[key] = member

    def state(self) -> bytes:
        """Return the state, the keys in their order."""
        members = self._members
        return b"{" + b",".join([members[key] for key in sorted(members)]) + b"}"

    def get(self, key: bytes) -> bytes | None:
        """Return `{"record", "value"}` of a key."""
        text = key_text(key)
        member = self._members.get(text)
        return None if member is None else _entry(text, member)

    def items(self, after: str | None, limit: int) -> Iterator[tuple[str, bytes]]:
        """Iterate over keys behind `after` (None: from the first) and what the state has for them,
        in their order."""
        keys = sorted(key for key in self._members if after is None or key > after)
        return ((key, _entry(key, self._members[key])) for key in keys[:limit])

    def close(self) -> None:
        """Release the members."""
        self._members = {}


def _member(key: str, entry: bytes) -> bytes:
    return _key(key) + b":" + entry


def _entry(key: str, member: bytes) -> bytes:
    return member[len(_key(key)) + 1 :]
