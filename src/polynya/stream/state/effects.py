"""Effects of applied commands: what a machine tells besides the reply."""

from __future__ import annotations

import msgspec

from polynya.stream.commands import Batch


class TailMoved(msgspec.Struct, frozen=True, gc=False):
    """An append, close or deletion of a watched stream. `batch` holds the records from
    (`begin_record`, `begin_byte`) to the tail (`record`, `byte`)."""

    uid: int
    begin_record: int
    begin_byte: int
    record: int
    byte: int
    batch: Batch | None = None
    closed: bool = False
    gone: bool = False  # deleted or expired
    unstable: bool = False  # part of an open transaction, or behind one
