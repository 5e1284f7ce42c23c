"""The parts of commands that have no tag of their own: batches, producers, retention, snapshots,
forks, slices."""

from __future__ import annotations

from typing import Annotated

import msgspec

from polynya.base.limits import (
    FORK_DEPTH_MAX,
    GROUPS_MAX,
    SNAPSHOTS_KEPT_MAX,
    SNAPSHOTS_KEPT_MIN,
)
from polynya.stream.command_validation import (
    AMOUNT,
    COUNTER,
    NODE,
    TIME,
    WIDE,
    WORD,
    bounded,
    first_fault,
)

PAGED = 254  # encoding of an index entry that stands for the entries of a page
INLINE = 253  # encoding of an index entry that is a marker of a transaction itself (level 4)
INLINE_COMMIT = 32  # flag of such an entry: the transaction was committed
COMPRESSED = 16  # flag of an index entry: the payload of its slice is compressed (level 4)

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Encoding:
    """The layout of a batch's payload. The batches of a stream may have several."""

    BYTES = 0  # the payload is one record: the POST body
    JSON = 1  # each record's exact bytes, then one comma; a record's length includes its comma
    KAFKA = 2  # one Kafka record batch v2, opaque: it may have many records, and has no lengths


PRODUCER_ID = slice(43, 51)  # the position of a producer's id in a Kafka batch
ENCODING = (Encoding.BYTES, Encoding.KAFKA)
# Flags of a batch. An entry of an index has those of its batches, and …
TRANSACTIONAL = 1
CONTROL = 2
ABORTED = 4  # of an aborted transaction; of an entry: some of its batches are
UNDECIDED = 8  # … this: some were of open transactions when its slice was built
HIDDEN = CONTROL | ABORTED  # of batches whose records are nothing to read
FLAGS = (0, 7)  # a slice has those of its batches, so a batch may not have others
ENTRY_FLAGS = (0, 31)


def _batch(batch: Batch) -> str:
    if batch.encoding == Encoding.KAFKA:
        return (
            "a Kafka batch has record lengths or no payload"
            if batch.lengths or not batch.payload
            else ""
        )
    if (batch.records == 1 and not batch.lengths) or lengths_match(batch):
        return ""
    return (
        f"the record lengths of a batch do not match its {batch.records} records and "
        f"{len(batch.payload)} bytes of payload"
    )


def lengths_match(batch: Batch) -> bool:
    """Report whether the lengths match the records in the payload. Byte streams have lengths too: a
    fork can begin with part of a record, then a body."""
    lengths = batch.lengths
    return len(lengths) == 4 * batch.records and sum(memoryview(lengths).cast("I")) == len(
        batch.payload
    )


@bounded(
    {
        "encoding": ENCODING,
        "records": (1, 2**32 - 1),
        "crc": WORD,
        "compression": WORD,
        "flags": FLAGS,
        "record_time_ms_max": TIME,
    },
    check=_batch,
)
class Batch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The stored form of one append. `lengths` is empty for a single record, else packed
    little-endian u32."""

    encoding: int
    records: Count
    payload: bytes
    crc: int  # CRC-32C of the payload
    lengths: bytes = b""  # byte length of each record, separator included; never of a Kafka batch
    compression: int = 0
    flags: int = 0  # 1 transactional, 2 control, 4 aborted
    record_time_ms_max: int = 0  # 0: use the append time


def _producer(producer: Producer) -> str:
    if producer.kind == 0 and -1 < producer.sequence_last < producer.sequence:
        return (
            f"the last producer sequence {producer.sequence_last} is below the first, "
            f"{producer.sequence}"
        )
    return ""


@bounded(
    {"epoch": WIDE, "sequence": WIDE, "sequence_last": (-1, 2**63 - 1), "kind": (0, 1)},
    check=_producer,
)
class Producer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The producer of an append, for exactly-once delivery. `kind` 0 is HTTP, 1 Kafka.

    A Kafka producer's `id` is decimal. Its sequences wrap, so `sequence_last` may be the
    smaller."""

    id: str
    epoch: Natural
    sequence: Natural
    sequence_last: Annotated[
        int, msgspec.Meta(ge=-1, le=2**63 - 1)
    ] = -1  # -1: the same as `sequence`
    kind: int = 0


@bounded(
    {
        "record": COUNTER,
        "byte": COUNTER,
        "size": AMOUNT,
        "created_ms": TIME,
        "dropped_ms": TIME,
    }
)
class Mark(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A snapshot of a stream: the state after all records before `record`. Its body is records of
    the companion."""

    record: int
    byte: int
    parts: tuple[tuple[int, int, int], ...]  # (record, byte, size) of each part of the body
    size: int  # bytes of the body
    sha256: bytes
    content_type: str
    created_ms: int
    origin: str = ""  # the clients', or `REDUCER@REVISION`
    dropped_ms: int = 0  # 0: it is one of those kept; else the time since which it is superseded


@bounded({"trims": (0, 1), "kept": (SNAPSHOTS_KEPT_MIN, SNAPSHOTS_KEPT_MAX)})
class SnapshotRule(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The rule of a retention for snapshots. `trims` 1: each publish of a client trims the stream
    to the oldest snapshot that can still be read. `kept`: the newest ones of an origin to keep."""

    record_time: bool = False  # that of the retention
    trims: int = 0
    kept: int = SNAPSHOTS_KEPT_MIN


@bounded(
    {"age_seconds": AMOUNT, "bytes": AMOUNT},
    check=lambda value: first_fault((value.snapshots,)),
)
class Retention(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The records of a stream to keep: younger than `age_seconds`, and the newest `bytes`. None: no
    bound. `record_time`: the age is that of the times that clients gave their records (level 3);
    or, with a rule of snapshots, that rule, which says so too (level 4)."""

    age_seconds: int | None = None
    bytes: int | None = None
    record_time: bool | SnapshotRule = False

    @property
    def snapshots(self) -> SnapshotRule | None:
        """The rule of snapshots, if there is one."""
        return None if isinstance(self.record_time, bool) else self.record_time

    @property
    def by_record_time(self) -> bool:
        """Report whether the age is that of record times."""
        rule = self.record_time
        return rule if isinstance(rule, bool) else rule.record_time


@bounded({"records": AMOUNT, "bytes": AMOUNT, "writer": NODE})
class SegmentLimits(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The size of the segments of a leased stream: an append behind either limit opens the next
    segment. 0: the setting of the node that leads. `writer`: the node of the first segment."""

    records: Natural
    bytes: Natural
    writer: Natural = 0


def _fork(fork: Fork) -> str:
    if fork.first_record > fork.record:
        return (
            f"the fork point is record {fork.record}, but the first inherited record is "
            f"{fork.first_record}"
        )
    return ""


@bounded(
    {
        "source_uid": (
            0,
            (GROUPS_MAX + 1 << 48) - 1,
        ),
        "record": COUNTER,
        "byte": COUNTER,
        "requested_sub_offset": WIDE,
        "depth": (0, FORK_DEPTH_MAX),
        "first_record": COUNTER,
        "first_byte": COUNTER,
    },
    check=_fork,
)
class Fork(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The fork point: the fork inherits the source's records before `record`. Part of `Create`, as
    resolved by the coordinator."""

    attempt: str  # 128 random bits in hex: the idempotency key of this fork's two-group protocol
    source_name: str
    source_uid: int
    record: int
    byte: int
    requested_offset: str = (
        ""  # as the client sent it, normalized; compared to detect "same configuration"
    )
    requested_sub_offset: int = 0
    depth: int = 1
    first_record: int = 0  # the source's first kept boundary at pin time, at most the fork point
    first_byte: int = 0


def _slice(cold: ColdSlice) -> str:
    if cold.missing_records > cold.records or cold.missing_bytes > cold.length:
        return (
            f"a slice spans {cold.records} records and {cold.length} bytes; of these "
            f"{cold.missing_records} and {cold.missing_bytes} are missing"
        )
    return ""


@bounded(
    {
        "record": COUNTER,
        "byte": COUNTER,
        "records": (1, 2**32 - 1),
        "length": WORD,
        "offset": WORD,
        "stored": WORD,
        "crc": WORD,
        "time_ms": TIME,
        "encoding": (-1, Encoding.KAFKA),
        "record_time_ms_max": TIME,
        "missing_records": WORD,
        "missing_bytes": WORD,
        "flags": ENTRY_FLAGS,
        "first_batch": WORD,
        "batches": WORD,
    },
    check=_slice,
)
class ColdSlice(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A contiguous run of batches in a pack: one entry of the stream's index."""

    record: int
    byte: int
    records: int  # the span in record numbers
    length: int  # the span in stream positions
    pack: str  # object key
    offset: int  # of the slice in the object
    stored: int  # bytes of the slice in the object, header included
    crc: int  # CRC-32C of those bytes
    time_ms: int = 0  # append time of the first batch; 0: unknown
    # The fields below are those of index entries of version 2, which need level 3.
    encoding: int = -1  # -1: an entry of version 1, which has none of the following
    record_time_ms_max: int = 0  # of batches without a record time it is their append time
    missing_records: int = 0  # numbers of the span that no record has
    missing_bytes: int = 0  # positions of the span that are not stored
    # of all batches: 1 transactional, 2 control, 4 aborted; 8: some were of open transactions when
    # the slice was built, so that flag 4 may be missing; 16: COMPRESSED
    flags: int = 0
    first_batch: int = 0  # the run is only a part of the slice in the object from here …
    batches: int = 0  # … of so many batches; 0: not known, all. Of a page: its entries

    @property
    def is_page(self) -> bool:
        """Report whether this stands for the entries of a page, and `pack` is the key of that."""
        return self.encoding == PAGED

    @property
    def is_inline(self) -> bool:
        """Report whether this is a marker itself, and `pack` is empty: see
        `wire.inline_markers`."""
        return self.encoding == INLINE

    @property
    def is_compressed(self) -> bool:
        """Report whether the payload is compressed; of a page: that of one of its slices."""
        return bool(self.flags & COMPRESSED)

    @property
    def read_bytes(self) -> int:
        """Return the bytes that its reader gets, at least: those stored, or more if these are
        compressed."""
        return self.length if self.is_inline else max(self.stored, self.length - self.missing_bytes)
