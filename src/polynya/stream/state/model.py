"""The state of a stream. Containers appear only when there is something in them: a bare idle stream is one object and its name."""

from __future__ import annotations

import msgspec

from polynya.stream.commands import ColdSlice, Fork, Retention
from polynya.stream.subscriptions.state import Link

__all__ = ["ColdSlice", "Evicted", "HotBatch", "Pack", "PackReference", "Pin", "Stream", "StreamExtras", "TableClaim"]


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
    producer: tuple[str, int, int] | None = None  # (id, epoch, sequence)
    flags: int = 0


class Pin(msgspec.Struct, array_like=True, gc=False):
    """A fork (or an attempt at one) that needs this stream's records before (`record`, `byte`)."""

    target_name: str
    record: int
    byte: int
    since_ms: int
    prefix: int = 0  # bytes of the record at the fork point that the fork begins with
    confirmed: bool = False  # the fork exists; until then the attempt may still fail
    first_record: int = 0  # the first that was kept when it was pinned: nothing before it is inherited


class PackReference(msgspec.Struct, array_like=True, gc=False):
    """A pack that indexes of this group refer to."""

    home_group: int
    slices: int  # live references
    number: int = 0  # what the indexes call the pack


class Pack(msgspec.Struct, array_like=True, gc=False):
    """A pack as its home group counts it (F20)."""

    groups: list[int]  # those that have not released it yet
    written_ms: int
    condemned_ms: int = 0  # 0: still needed


class TableClaim(msgspec.Struct, array_like=True, gc=False):
    """What a table has of one stream: records before `published` are rows; those before `claimed` belong to `job`."""

    published: int
    claimed: int
    job: int
    skipped: int = 0  # records that were trimmed before the table took them, before `published` …
    skipping: int = 0  # … and between there and `claimed`


class Evicted(msgspec.Struct, array_like=True, gc=False):
    """Where the state of an evicted stream is."""

    pack: int  # number of the block
    offset: int  # in the object
    length: int
    crc: int  # CRC-32C of those bytes
    oldest_ms: int | None = None  # append time of the oldest record that is stored; None: there is none


class StreamExtras(msgspec.Struct, array_like=True, gc=False):
    """What few streams have: a retention of their own, a past that was trimmed, or their state elsewhere."""

    retention: Retention | None = None
    past: bytes | None = None  # packed slices before the first kept record that forks still need: see index.py
    detached: bool = False  # a fork of which nothing inherited is kept: its source has been unpinned
    evicted: Evicted | None = None  # only as it is written in snapshots, and shown: see eviction.py


class Stream(msgspec.Struct, array_like=True, gc=False):
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
    cold: bytes | None = None  # packed slices: see index.py
    producers: dict[str, bytes] | None = None  # packed states, longest idle first: see producers.py
    pins: dict[str, Pin] | None = None  # by attempt
    links: dict[str, Link] | None = None  # by subscription id
    tables: dict[int, TableClaim] | None = None  # by table uid
    front: StreamExtras | None = None
