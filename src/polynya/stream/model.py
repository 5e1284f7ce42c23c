"""The state of a stream. Containers appear only when there is something in them: a bare idle stream is one object and its name."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.stream.commands import Fork


class HotBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch that is still in memory and in the journal at `place`."""

    record: int  # number of its first record
    byte: int  # stream position of its first byte
    records: int
    payload: bytes
    lengths: bytes  # as in commands.Batch
    crc: int
    time_ms: int  # append time
    record_time_ms_max: int
    encoding: int
    place: int  # journal place: segment << 32 | offset of its frame
    producer: Any = None  # (id, epoch, sequence) or None
    flags: int = 0


class ColdSlice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A contiguous run of batches in a pack: an entry of the stream's index (F18)."""

    record: int
    byte: int
    records: int
    length: int  # bytes of payload: the span in stream positions
    pack: str  # object key
    offset: int  # of the slice in the object
    stored: int  # bytes of the slice in the object, header included
    crc: int  # CRC-32C of those bytes


class Stream(msgspec.Struct, gc=False):
    """One stream. Mutable: changed only by the machine, inside `apply`."""

    uid: int
    name: str
    content_type: str
    encoding: int
    created_ms: int
    activity_ms: int  # the last logged activity: what a sliding TTL counts from
    next_record: int = 0
    next_byte: int = 0
    first_record: int = 0  # first kept record (trim)
    first_byte: int = 0
    closed: bool = False
    deleted: bool = False  # soft: forks still need it
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    stream_seq: str | None = None
    fork: Fork | None = None
    closed_by: tuple[str, int, int] | None = None  # the producer tuple that closed it
    hot: list[HotBatch] | None = None
    cold: list[ColdSlice] | None = None
    producers: Any = None  # packed states, see producers.py
    pins: Any = None  # {attempt: Pin}
    links: Any = None  # {subscription id: Link}
    tables: Any = None  # claims of tables
