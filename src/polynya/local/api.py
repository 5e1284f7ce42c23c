"""The questions about streams and their answers, as the fronts see them and as they travel
between cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.parts import Fork, Mark, Retention
from polynya.stream.replies import Done, KnownCode
from polynya.stream.state.model import Attributes, Stream
from polynya.stream.state.profile_epochs import profile_of
from polynya.stream.state.tails import stable_of


class StreamInfo(msgspec.Struct, gc=False, array_like=True, tag=1):
    """The metadata of a stream at one moment, the source of HEAD and of every response header."""

    uid: int
    name: str  # canonical
    content_type: str
    encoding: int
    created_ms: int
    # the end of what readers see: number of the next record; before the first open transaction …
    record: int
    byte: int  # … and its byte position
    first_record: int = 0  # first retained record
    first_byte: int = 0
    closed: bool = False
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    history: int = 0  # of the cluster; (uid, history) goes into ETags and SSE ids
    retention: Retention | None = None  # the stream's own setting
    stream_seq: str | None = None  # last `Stream-Seq`
    known: bool = True  # False: a local read of a replica, which may lack acknowledged records
    high: int = 0  # high watermark: the next record with those of open transactions
    segment: int = 0  # epoch of the open segment of a leased stream; 0: it has none
    segment_writer: int = 0  # the node that appends to it
    profile: int = 0  # `Profile` that appends need now
    attributes: Attributes | None = None  # only where they are asked for, as the snapshots are
    compact: bool = False  # its keys are compacted, by its own setting
    marks: list[Mark] | None = None
    rewrites: int = 0  # slices that lost records by compaction
    fork: Fork | None = None  # where it begins, with the snapshots

    @property
    def high_watermark(self) -> int:
        """The end of all records, open transactions included."""
        return max(self.high, self.record)


def info_of(
    stream: Stream, history: int = 0, *, known: bool = True, attributes: bool = False
) -> StreamInfo:
    """Return the current `StreamInfo` of a stream. `attributes`: with these, its snapshots and its
    fork point."""
    record, byte = stable_of(stream)
    extras = stream.extras
    segments = None if extras is None else extras.segments
    compaction = None if extras is None else extras.compaction
    return StreamInfo(
        stream.uid,
        stream.name,
        stream.content_type,
        stream.encoding,
        stream.created_ms,
        record,
        byte,
        stream.first_record,
        stream.first_byte,
        stream.closed and record == stream.next_record,  # else more will be seen
        stream.ttl_seconds,
        stream.expires_at_ms,
        history,
        None if extras is None else extras.retention,
        stream.stream_seq,
        known,
        stream.next_record,
        0 if segments is None else segments.epoch,
        0 if segments is None else segments.writer,
        0 if extras is None else profile_of(stream),
        extras.attributes if attributes and extras is not None else None,
        compaction is not None and compaction.is_wanted,
        extras.marks if attributes and extras is not None else None,
        0 if compaction is None else compaction.rewrites,
        stream.fork if attributes else None,
    )


class Position:
    """Special values of `ReadQuery.record`."""

    START = -1  # first retained record
    NOW = -2  # the tail
    AT_BYTE = -3  # `byte` is a bare byte position (Ursula's spelling)
    # `byte` is a time in ms: first retained record appended at or after it, or the tail
    AT_TIME = -4
    # likewise by record times, which may decrease: the first batch with such a record
    AT_RECORD_TIME = -5
    NEWEST = -6  # the batch with the largest record time, or the tail
    TIMES = (AT_TIME, AT_RECORD_TIME, NEWEST)


class Isolation:
    """The records that a reader gets."""

    ROWS = 0  # to the stable end, without control batches and aborted ones
    STABLE = 1  # all to the stable end, with these batches and their flags
    ALL = 2  # all, with those of open transactions


class ReadQuery(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A catch-up read from an offset token (`record`, `byte`), or from the `Position` in
    `record`."""

    name: str
    record: int = Position.START
    byte: int = 0
    bytes_max: int = 4 << 20
    touch: bool = True  # extends a sliding TTL
    whole_records: bool = False  # for raw streams too: for SSE
    # a record number beyond the tail returns an empty page at the tail instead of a refusal
    beyond_tail_waits: bool = False
    local: bool = False  # read this node's replica without contacting the leader
    uncommitted: bool = False  # with the records of open transactions
    # the reader goes on where the page ends: what follows is fetched ahead
    sequential: bool = False
    append_times: bool = False  # of each plain record: see `Span.append_times`
    # of a lookup by record times: batches that end at or before this record do not count
    record_from: int = 0
    batch_times: bool = False  # with `append_times`, those of Kafka batches too
    # with control batches and aborted ones: for Kafka's readers, and those that want a position
    raw: bool = False

    @property
    def isolation(self) -> int:
        """The records to read, as an `Isolation`."""
        if self.uncommitted:
            return Isolation.ALL
        return Isolation.STABLE if self.raw else Isolation.ROWS


OWN_ENCODING = -1  # of a span from an older node: the stream's


class Span(msgspec.Struct, gc=False, array_like=True):
    """One batch in a page as stored, or a part of one; JSON records end with a comma. Small
    neighbours of one encoding may be one span, which has the largest of their times."""

    record: int
    byte: int
    payload: bytes  # or a memoryview
    encoding: int = OWN_ENCODING
    # of raw records in reads with `whole_records`, packed as in a batch; empty for one record
    lengths: bytes = b""
    records: int = 0  # that end here, missing numbers not included; a part of one record: 0
    time_ms: int = 0  # append time; 0 from an older node
    record_time_ms_max: int = 0  # largest time that clients gave; 0: the append time
    flags: int = 0  # of a batch: 1 transactional, 2 control, 4 aborted
    # in reads with `append_times`, where the records were not appended at one time: packed pairs
    # (i64 each) of a record and the time of it and those behind it
    append_times: bytes = b""


class ReadLimits(msgspec.Struct, frozen=True, gc=False):
    """The part of a `ReadQuery` that also holds in the source of a fork."""

    bytes_max: int
    whole_records: bool
    append_times: bool = False
    batch_times: bool = False
    raw: bool = False


class Page(msgspec.Struct, gc=False, array_like=True, tag=3):
    """The result of a read. `spans` are in order from (`begin_record`, `begin_byte`) to (`record`,
    `byte`). Between them may be batches that the reader does not get: a page of such ones alone has
    no spans, and ends behind them."""

    info: StreamInfo
    spans: list[Span]
    begin_record: int
    begin_byte: int
    record: int
    byte: int
    up_to_date: bool  # the page reaches the tail that this replica knows

    @property
    def first_record(self) -> int:
        """The first record that a reader gets. The first Kafka batch may hold trimmed ones too."""
        return max(self.begin_record, self.info.first_record)

    @property
    def has_all(self) -> bool:
        """Report whether no acknowledged record follows the page: the value of `Stream-Up-To-Date`.
        A closed stream cannot grow."""
        return self.up_to_date and (self.info.known or self.info.closed)

    @property
    def closed(self) -> bool:
        """Report whether the stream is closed and the page reaches its final offset."""
        return self.up_to_date and self.info.closed


class Refusal(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=2):
    """The deterministic rejection of a read: a `polynya.stream.replies.Code`, and the token to use
    instead (tail, or first retained record)."""

    code: KnownCode
    record: int = 0
    byte: int = 0
    message: str = ""


class TrimQuery(msgspec.Struct, frozen=True, gc=False):
    """The new start of a stream: an offset token or `Position`, or the position that keeps at least
    the newest `keep_bytes`. An AT_BYTE position inside a record means that record."""

    name: str
    record: int = Position.START
    byte: int = 0
    keep_bytes: int | None = None
    incarnation: int = 0  # precondition: uid of the stream; 0: no precondition
    inside: bool = False  # a record inside a Kafka batch is the new start, not its batch's first


class Trimmed(msgspec.Struct, frozen=True, gc=False):
    """The start of a stream after a trim, and how much was deleted."""

    uid: int
    record: int
    byte: int
    records: int = 0
    bytes: int = 0


class LiveEvent(msgspec.Struct, gc=False, array_like=True):
    """One append, close or delete, or the end of a transaction, as delivered to live readers.
    `frames` caches encodings that fronts share between subscribers."""

    uid: int
    begin_record: int
    begin_byte: int
    record: int  # the tail after the event
    byte: int
    encoding: int
    payload: bytes  # b"" for a close without data, and for records that have to be read
    closed: bool = False
    gone: bool = False  # deleted or expired: the last event
    # the feed broke (another core failed): end the response so that the client resumes
    cut: bool = False
    frames: dict[str, bytes] = {}  # noqa: RUF012 (msgspec copies mutable defaults)
    # no acknowledged record follows at this moment; False on a replica that is not the leader
    known: bool = True
    unstable: bool = False  # part of an open transaction, or behind one
    time_ms: int = 0  # the append time of the payload; 0 from an older node
    first_record: int = -1  # the first one that the stream keeps; -1 from an older node


AppendTo = Callable[[Append | Produce, Done], None]
"""Propose an append that was stamped in this pass of the loop."""


class Sink(Protocol):
    """A live subscriber. `live` is called on the loop, must not block, and must bound its
    buffer. One with a true attribute `uncommitted` gets the records of open transactions too."""

    def live(self, event: LiveEvent) -> None: ...
