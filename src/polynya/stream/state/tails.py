"""The two ends of a stream: the high watermark, behind its last record, and the last stable end.

Records from the first open transaction on may still be aborted, so readers that want committed
records stop before it. Without an open transaction both ends are the same.
"""

from __future__ import annotations

from polynya.stream.state.model import Stream

Boundary = tuple[int, int]  # record, byte


def stable_of(stream: Stream) -> Boundary:
    """Return the end of what readers see: no record before it is part of an open transaction."""
    kafka = stream.kafka
    if kafka is None or not kafka.open:
        return stream.next_record, stream.next_byte
    oldest = next(iter(kafka.open.values()))  # they are in the order of their first records
    return oldest.record, oldest.byte


def high_watermark(stream: Stream) -> Boundary:
    """Return the end of all records that are committed to the log."""
    return stream.next_record, stream.next_byte


def is_stable(stream: Stream) -> bool:
    """Report whether readers see all records: no transaction is open."""
    return stream.kafka is None or not stream.kafka.open
