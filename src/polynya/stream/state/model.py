"""The state of a stream. Containers exist only when filled: a bare idle stream is one object and
its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from polynya.stream.features.subscriptions.state import Link
from polynya.stream.parts import ColdSlice, Fork, Mark, Retention
from polynya.stream.state.index import Entries

__all__ = [
    "AttributedExtras",
    "Attributes",
    "ColdSlice",
    "Compaction",
    "DecodedBatches",
    "Evicted",
    "HotBatch",
    "KafkaState",
    "Mark",
    "OpenTransaction",
    "Pack",
    "PackReference",
    "Pin",
    "PlainExtras",
    "ProfileEpoch",
    "SealedSegment",
    "Segments",
    "Stream",
    "StreamExtras",
    "TableClaim",
    "WriterState",
]


class HotBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch that is in memory, and in the journal at `position`."""

    record: int  # number of its first record
    byte: int  # stream position of its first byte
    records: int
    payload: bytes
    lengths: bytes  # as in `Batch`
    crc: int
    time_ms: int  # append time
    record_time_ms_max: int
    encoding: int
    position: int  # journal position: segment << 32 | offset of its frame
    # (id, epoch, sequence); of Kafka also (last sequence, kind)
    producer: tuple[Any, ...] | None = None
    flags: int = 0


class DecodedBatches(Sequence[HotBatch]):
    """The batches of a decoded slice, made when they are accessed."""

    @abstractmethod
    def whole(self, begin: int, end: int) -> Sequence[HotBatch]:
        """Return these batches; undivided ones without a gap between them as a single one."""

    @abstractmethod
    def before_record(self, record: int) -> int:
        """Return the count of batches that begin at or before a record."""

    @abstractmethod
    def before_byte(self, byte: int) -> int:
        """Return the count of batches that begin at or before a byte."""


class Pin(msgspec.Struct, array_like=True, gc=False):
    """The claim of a fork, or of a fork attempt, on this stream's records before (`record`,
    `byte`)."""

    target_name: str
    record: int
    byte: int
    since_ms: int
    prefix: int = 0  # bytes of the record at the fork point that the fork inherits
    confirmed: bool = False  # the fork exists; until then the attempt may still fail
    first_record: int = 0  # the first kept record at pin time; the fork inherits nothing before it


class PackReference(msgspec.Struct, array_like=True, gc=False):
    """A pack that indexes of this group reference."""

    owner_group: int
    slices: int  # live references
    number: int = 0  # the pack's number in the indexes


class Pack(msgspec.Struct, array_like=True, gc=False):
    """The reference count of a pack in its owner group."""

    groups: list[int]  # groups that have not released it yet
    written_ms: int
    condemned_ms: int = 0  # 0: still needed


class TableClaim(msgspec.Struct, array_like=True, gc=False):
    """A table's progress on one stream: records before `published` are rows; those before `claimed`
    belong to `job`."""

    published: int
    claimed: int
    job: int
    skipped: int = 0  # records before `published` that were trimmed before the table read them …
    skipping: int = 0  # … and between there and `claimed`
    first: int = 0  # first kept record at the claim: `job` has none before it (in watched groups)


class Evicted(msgspec.Struct, array_like=True, gc=False):
    """The location of an evicted stream's state."""

    pack: int  # number of the block
    offset: int  # in the object
    length: int
    crc: int  # CRC-32C of those bytes
    oldest_ms: int | None = None  # append time of the oldest stored record; None: nothing is stored


class SealedSegment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A closed segment of a leased stream. It ends where the next one begins."""

    epoch: int
    writer: int  # node
    record: int  # its first
    byte: int
    opened_ms: int


class Segments(msgspec.Struct, array_like=True, gc=False):
    """The segments of a leased stream: the limits, the open one, and the newest closed ones in
    order."""

    records_max: int
    bytes_max: int
    epoch: int  # of the open segment
    writer: int  # the node that alone appends to it
    record: int  # its first
    byte: int
    opened_ms: int
    sealed: list[SealedSegment] = []


class ProfileEpoch(msgspec.Struct, array_like=True, gc=False):
    """The way in which the records from `record` on are stored first, until the next profile
    epoch."""

    profile: int  # `Profile`
    epoch: int  # of the stream's profile epochs, from 1
    record: int  # its first
    byte: int
    since_ms: int
    changing_since_ms: int = 0  # a change to `wanted` has begun and waits for its seal; 0: none
    wanted: int = 0


class WriterState(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The last commit of a writer of diskless streams to this group."""

    writer: str
    sequence: int
    replies: bytes  # to its appends: msgpack, a list of `Reply`
    time_ms: int  # log time


class Attributes(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The attributes of a stream."""

    revision: int  # a number that no other attributes of the group ever have
    value: bytes  # a JSON object with at least one member


class Compaction(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The progress of key compaction on a stream. Before `cleaned` no key has two records."""

    cleaned: int
    # from then on a pass drops the tombstones before `tombstones`; 0: none wait
    horizon_ms: int = 0
    generation: int = 0  # of the passes that were completed
    tombstones: int = 0
    is_wanted: bool = False  # by the stream itself, not by a topic whose partition it is
    rewrites: int = 0  # slices that lost records: a part of the ETags of pages


class PlainExtras(msgspec.Struct, array_like=True, gc=False):
    """The extras of a stream with none of the newer fields, as they are written: so these states
    have the same bytes as in releases that know none."""

    retention: Retention | None = None
    # packed slices before the first kept record that forks still need: see index.py
    past: bytes | None = None
    detached: bool = False  # a fork that keeps nothing inherited: its source has been unpinned
    # set only in snapshots and in streams shown from a stub: see eviction.py
    evicted: Evicted | None = None
    segments: Segments | None = None  # of a leased stream
    profile_epoch: ProfileEpoch | None = None  # None: replicated since its creation


class AttributedExtras(PlainExtras, array_like=True, gc=False):
    """The extras of a stream without compaction and snapshots, as they are written."""

    attributes: Attributes | None = None


class StreamExtras(AttributedExtras, array_like=True, gc=False):
    """The rarely used fields of a stream: its own retention, the past kept for forks, eviction
    data, attributes, the progress of key compaction, and snapshots."""

    compaction: Compaction | None = None
    # by record, and at one record the oldest first; never empty
    marks: list[Mark] | None = None


class OpenTransaction(msgspec.Struct, array_like=True, gc=False):
    """A producer's transaction on a stream that is neither committed nor aborted yet."""

    record: int  # its first record here
    byte: int
    epoch: int  # of the producer
    since_ms: int  # append time of that record
    number: int = 0  # of the transaction
    owner: int = 0  # a hash of the principal that writes it; 0: without access control


class KafkaState(msgspec.Struct, array_like=True, gc=False):
    """The fields of a stream that only Kafka's protocol needs."""

    # the highest id of a producer whose state was dropped, or that is older than the stream
    forgotten: int = -1
    open: dict[int, OpenTransaction] = {}  # by producer id, in the order of their first records
    # rows of aborted transactions, by the record of the marker: see aborted.py
    aborted: bytes = b""
    # producer id -> (number of the transaction that ended last here, time of its decision, log time
    # of its end here), in the order of their ends
    ended: dict[int, tuple[int, int, int]] = {}


class Stream(msgspec.Struct, array_like=True, gc=False):
    """One stream. Only the machine changes it, inside `apply`."""

    uid: int
    name: str
    content_type: str
    encoding: int
    created_ms: int
    activity_ms: int  # the last logged activity; a sliding TTL counts from it
    next_record: int = 0
    next_byte: int = 0
    first_record: int = 0  # first kept record (trim)
    first_byte: int = 0
    closed: bool = False
    deleted: bool = False  # soft delete: forks still need the stream
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    stream_seq: str | None = None
    fork: Fork | None = None
    closed_by: tuple[str, int, int] | None = None  # the producer tuple that closed it
    hot: list[HotBatch] | None = None
    cold: Entries | None = None  # packed slices: see index.py
    producers: dict[str, bytes] | None = None  # packed states, longest idle first: see producers.py
    pins: dict[str, Pin] | None = None  # by attempt
    links: dict[str, Link] | None = None  # by subscription id
    tables: dict[int, TableClaim] | None = None  # by table uid
    extras: StreamExtras | None = None
    kafka: KafkaState | None = None
