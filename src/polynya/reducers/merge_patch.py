"""The reducer `merge-patch`: a JSON document that each record patches (RFC 7386). Pure.

Values that are no objects keep their bytes, so numbers of any size stay as they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from polynya.base.limits import REDUCER_STATE_BYTES_MAX
from polynya.base.msgpack import UNREADABLE
from polynya.reducers.json_values import JSON
from polynya.reducers.reducer import Record, ReducerFault
from polynya.wire.json_records import valid_value

# an object is a dict of such values, whatever else is its bytes
Document = dict[str, Any] | bytes
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_key = msgspec.json.encode


class MergePatch:
    """A document, which is `null` before the first record."""

    content_type = JSON

    def __init__(self, *, bytes_max: int = REDUCER_STATE_BYTES_MAX) -> None:
        self._document: Document = b"null"
        self._bytes_max = bytes_max
        self._bytes = 0  # an upper bound of the state: what came since it was measured is added

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state. Raises `ReducerFault`."""
        try:
            self._document = b"null" if state is None else _parsed(state)
        except UNREADABLE as damage:
            raise ReducerFault(f"the published state is no JSON: {damage}") from None
        self._bytes = len(state or b"null")

    def migrate(self, state: bytes) -> None:
        """Refuse: a builtin begins again at the first record. Raises `ReducerFault`."""
        raise ReducerFault("a builtin reducer has no migrate: it must begin at the first record")

    def apply(self, records: Sequence[Record]) -> int:
        """Patch the document by each record. Raises `ReducerFault` for a record that is no JSON, and
        when the document becomes too large."""
        for record in records:
            value = valid_value(b"null" if record.value is None else record.value)
            if value is None:
                raise ReducerFault(
                    f"record {record.record} is no JSON: 'merge-patch' is for streams of JSON"
                )
            try:
                self._document = _merged(self._document, value)
            except UNREADABLE as damage:
                raise ReducerFault(
                    f"record {record.record} is not a patch that can be read: {damage}"
                ) from None
            self._bytes += len(value)
            if self._bytes > 2 * self._bytes_max:  # it is measured seldom, as that takes its time
                self.state()
        return len(records)

    def state(self) -> bytes:
        """Return the document, the members of its objects in the order of their names. Raises
        `ReducerFault` if it is too large."""
        parts: list[bytes] = []
        _write(self._document, parts)
        state = b"".join(parts)
        self._bytes = len(state)
        if len(state) > self._bytes_max:
            raise ReducerFault(
                f"the document has {len(state):,} bytes; at most {self._bytes_max:,}: remove members "
                "by patches with null, or divide the stream"
            )
        return state

    def get(self, key: bytes) -> bytes | None:
        """Return a member of the document."""
        name = key.decode(errors="replace")
        if not isinstance(self._document, dict) or name not in self._document:
            return None
        parts: list[bytes] = []
        _write(self._document[name], parts)
        return b"".join(parts)

    def close(self) -> None:
        """Release the document."""
        self._document = b"null"


def _parsed(value: bytes) -> Document:
    """Return a value whose objects are dicts."""
    if value[:1] != b"{":
        return value
    return {name: _parsed(bytes(found)) for name, found in _fields(value).items()}


def _merged(target: Document, patch: bytes) -> Document:
    """Return the target after a patch, by the algorithm of RFC 7386."""
    if patch[:1] != b"{":
        return patch
    merged = target if isinstance(target, dict) else {}
    for name, raw in _fields(patch).items():
        found = bytes(raw)
        if found == b"null":
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name, b"null"), found)
    return merged


def _write(document: Document, parts: list[bytes]) -> None:
    if isinstance(document, bytes):
        parts.append(document)
        return
    parts.append(b"{")
    for number, name in enumerate(sorted(document)):
        parts.append((b"," if number else b"") + _key(name) + b":")
        _write(document[name], parts)
    parts.append(b"}")
