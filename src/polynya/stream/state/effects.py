"""Effects of applied commands: what a machine tells besides the reply."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from polynya.stream.parts import Batch


class TailMoved(msgspec.Struct, frozen=True, gc=False):
    """An append, close or deletion of a watched stream, or the end of a transaction. The records
    from (`begin_record`, `begin_byte`) to (`record`, `byte`) are new to readers. `batch` has them;
    without it, those of an ended transaction are read."""

    uid: int
    begin_record: int
    begin_byte: int
    record: int
    byte: int
    batch: Batch | None = None
    closed: bool = False
    gone: bool = False  # deleted or expired
    unstable: bool = False  # part of an open transaction, or behind one
    time_ms: int = 0  # the append time of `batch`
    first_record: int = 0  # the first one that the stream keeps


class TailWatch:
    """The effects on the streams that somebody follows here. They are no part of the state."""

    def __init__(self) -> None:
        self.watched: Container[int] = frozenset()  # uids
        self.effects: list[TailMoved] = []  # on watched streams, since `take_effects`

    def take_effects(self) -> list[TailMoved]:
        """Return the effects since the last call, in log order."""
        effects, self.effects = self.effects, []
        return effects
