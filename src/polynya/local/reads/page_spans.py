"""The spans of a page, from the pieces of its plan."""

from __future__ import annotations

from collections.abc import Iterable
from struct import unpack

from polynya.local.api import Span
from polynya.local.dependencies import ColdReader
from polynya.stream.parts import ABORTED, HIDDEN, Encoding
from polynya.stream.read_plan import HotPiece
from polynya.stream.state.model import ColdSlice

_PAIR_BYTES = 16  # a record and a time


def is_hidden(flags: int, encoding: int, *, raw: bool) -> bool:
    """Report whether a reader does not get a batch with flags. `raw`: it gets what is of Kafka's
    transactions and drops it itself; an aborted batch of another encoding names no transaction."""
    if raw:
        return bool(flags & ABORTED) and encoding != Encoding.KAFKA
    return bool(flags & HIDDEN)


def span_of(piece: HotPiece) -> Span:
    """Return a piece as a span, without the lengths of its records."""
    return Span(
        piece.record,
        piece.byte,
        piece.payload,  # type: ignore[arg-type]
        piece.encoding,
        b"",
        piece.records,
        piece.time_ms,
        piece.record_time_ms_max,
        piece.flags,
    )


def whole_span_of(piece: HotPiece) -> Span:
    """Return a piece of whole records as a span. JSON ones need no lengths."""
    span = span_of(piece)
    if piece.lengths and piece.encoding == Encoding.BYTES:
        span.lengths = piece.lengths
    return span


async def fill_append_times(
    reader: ColdReader, cold: ColdSlice, spans: Iterable[Span], *, kafka: bool
) -> None:
    """Set the times of the spans of a slice, which may be parts of joined batches; those of Kafka
    batches, which have the times of their records, if `kafka`."""
    for span in spans:
        if (kafka or span.encoding != Encoding.KAFKA) and span.records:
            end = span.record + span.records
            times = await reader.append_times(cold, span.record, end)
            if len(times) > _PAIR_BYTES:
                span.append_times = times
            else:
                _, span.time_ms = unpack("<qq", times)
