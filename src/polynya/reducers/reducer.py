"""The interface of a reducer, and the records that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError


class ReducerFault(PolynyaError):
    """A reducer cannot go on with this stream: the message has the reason. Other streams are not
    concerned."""


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record of a stream. `value` None: it has none (Kafka's null, and `null` of a JSON
    stream)."""

    record: int  # its number in the stream
    append_ms: int  # 0: not known
    record_ms: int  # its own time; the append time if it has none
    key: bytes | None
    value: bytes | None


class Reducer(Protocol):
    """A state, and how records change it. All methods block, and raise `ReducerFault`."""

    @property
    def content_type(self) -> str:
        """The content type of the state."""
        ...

    def restore(self, state: bytes | None) -> None:
        """Begin with a published state of the same revision; None: with that before record 0."""
        ...

    def migrate(self, state: bytes) -> None:
        """Begin with a published state of an older revision."""
        ...

    def apply(self, records: Sequence[Record]) -> int:
        """Apply records in their order. Return how many of them it took."""
        ...

    def state(self) -> bytes:
        """Return the state after the records so far."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """Return what the state has for one key, as JSON; None: nothing."""
        ...

    def close(self) -> None:
        """Release what the reducer holds; no method is called afterwards."""
        ...
