"""Planning: which records a read covers, and how they are divided into Spark's tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from polynya.base.errors import PolynyaError
from polynya.lakehouse.jobs.plan import Range, span_of
from polynya.spark.options import SERVER, Connection, SourceOptions, StoreKeys
from polynya.spark.server import StreamRanges, Tail, TimedRange
from polynya.spark.starts import EARLIEST, FIRST, LATEST, TAIL, Start
from polynya.wire.tables import StoreRef

ALWAYS = (0, 1 << 62)


class DataLoss(PolynyaError):
    """Records that the read should have are gone."""


class Span(msgspec.Struct, frozen=True):
    """Records `first` to `end` (exclusive) of one incarnation of a stream. `known`: the query has
    read the stream before, so that earlier records than the retained ones are lost."""

    stream: str
    uid: int
    first: int
    end: int
    known: bool = True


class Split(msgspec.Struct, frozen=True):
    """The work of one Spark task: ranges of packs, or else a span to read through the server."""

    connection: Connection
    fail_on_data_loss: bool
    store: StoreRef | None = None
    ranges: list[Range] = []
    span: Span | None = None
    keys: StoreKeys = StoreKeys()


class RangeFinder(Protocol):
    """The server's index, see `polynya.spark.server.Server.ranges`."""

    def ranges(
        self, wanted: Sequence[tuple[str, int, int]]
    ) -> tuple[StoreRef, list[StreamRanges | None]]: ...


def bound(tails: Mapping[str, Tail], wanted: Start) -> dict[str, int]:
    """Return a record number for each stream. Streams that `wanted` does not name begin at their
    first record. Times are resolved before (`polynya.spark.times`)."""
    if wanted == LATEST:
        return {name: tail.next for name, tail in tails.items()}
    given: Mapping[str, int] = wanted if isinstance(wanted, dict) else {}
    return {name: _record(tail, given.get(name, FIRST)) for name, tail in tails.items()}


def _record(tail: Tail, number: int) -> int:
    """Return a record number, or that of one of Kafka's two words, up to the tail."""
    if number == FIRST:
        return tail.first
    return tail.next if number == TAIL else min(number, tail.next)


def batch_spans(tails: Mapping[str, Tail], options: SourceOptions) -> list[Span]:
    """Return the spans of a batch read. Raises DataLoss."""
    begin = bound(tails, options.starting)
    given = options.ending if isinstance(options.ending, dict) else {}
    if options.ending == EARLIEST:
        given = dict.fromkeys(tails, FIRST)
    end = {name: _record(tail, given.get(name, TAIL)) for name, tail in tails.items()}
    missing = [name for name in options.streams if name not in tails]
    if missing:
        raise PolynyaError(f"there is no stream '{missing[0]}' to read")
    spans = []
    for name, tail in sorted(tails.items()):
        if options.fail_on_data_loss and begin[name] < tail.first:
            raise _trimmed(name, begin[name], tail.first)
        first, stop = max(begin[name], tail.first), min(end[name], tail.next)
        if first < stop:
            spans.append(Span(name, tail.uid, first, stop))
    return spans


def splits(
    finder: RangeFinder,
    spans: Sequence[Span],
    options: SourceOptions,
    times_ms: tuple[int, int] = ALWAYS,
) -> list[Split]:
    """Divide spans into tasks of about `partition_bytes`, without packs that were appended outside
    of `times_ms`. Raises DataLoss, PolynyaError."""
    connection, strict = options.connection, options.fail_on_data_loss
    if options.read_from == SERVER:
        return [Split(connection, strict, span=span) for span in spans]
    store, ranges = located(finder, spans, strict=strict)
    ranges = _within(ranges, times_ms)
    found: list[Split] = []
    run: list[Range] = []
    size = 0
    for part in ranges:
        if run and size + part.read_bytes > options.partition_bytes:
            found.append(Split(connection, strict, store, run, keys=options.keys))
            run, size = [], 0
        run.append(part)
        size += part.read_bytes
    if run:
        found.append(Split(connection, strict, store, run, keys=options.keys))
    return found


def _within(ranges: Sequence[TimedRange], times_ms: tuple[int, int]) -> list[TimedRange]:
    """Leave out ranges that were appended outside of these times. A range ends in time where the
    stream's next begins."""
    low, high = times_ms
    kept = []
    for part, after in zip(ranges, [*ranges, None][1:], strict=True):
        last = after.time_ms if after is not None and after.uid == part.uid else high
        if part.time_ms <= high and last >= low:
            kept.append(part)
    return kept


def located(
    finder: RangeFinder, spans: Sequence[Span], *, strict: bool
) -> tuple[StoreRef | None, list[TimedRange]]:
    """Return the ranges of packs that hold these records. Raises DataLoss, PolynyaError."""
    store: StoreRef | None = None
    found: dict[str, list[TimedRange]] = {span.stream: [] for span in spans}
    left = list(spans)
    while left:
        store, answers = finder.ranges([(span.stream, span.first, span.end) for span in left])
        again = []
        for span, answer in zip(left, answers, strict=True):
            rest = _cut(span, answer, found[span.stream], strict=strict)
            if rest is not None:
                again.append(rest)
        left = again
    return store, [part for span in spans for part in found[span.stream]]


def _cut(
    span: Span, answer: StreamRanges | None, found: list[TimedRange], *, strict: bool
) -> Span | None:
    """Add a span's ranges to `found`. Return what the answer does not reach."""
    if answer is None or int(answer.uid) != span.uid:
        if strict:
            raise DataLoss(
                f"stream '{span.stream}' was deleted before its records {span.first} to "
                f"{span.end - 1} were read; {_REMEDY}"
            )
        return None
    first = max(span.first, answer.own)
    if strict and span.known and answer.first > first:
        raise _trimmed(span.stream, first, answer.first)
    first = max(first, answer.first)
    reached = max(first, answer.end)
    for part in answer.ranges:
        skip = max(0, first - part.record)
        take = min(span_of(part), span.end - part.record) - skip
        reached = max(reached, part.record + span_of(part))
        if take > 0:
            found.append(msgspec.structs.replace(part, skip=skip, take=take))
    if reached >= span.end:
        return None
    if reached == first:
        raise PolynyaError(
            f"records {first} to {span.end - 1} of stream '{span.stream}' are not in an object "
            "store: set the option readFrom to 'server', or give the server an object store"
        )
    return msgspec.structs.replace(span, first=reached)


def _trimmed(stream: str, first: int, retained: int) -> DataLoss:
    return DataLoss(
        f"records {first} to {retained - 1} of stream '{stream}' were trimmed before they were "
        f"read; {_REMEDY}"
    )


_REMEDY = "set the option failOnDataLoss to 'false' to go on without them"
