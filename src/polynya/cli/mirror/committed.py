"""The committed batches of a Fetch response: without control and aborted ones, and without producers.

A read_committed response has all batches up to the last stable offset, and the list of the aborted
transactions with batches in it. The rule is that of Kafka's consumers: a producer's batches are
dropped from the first offset of its aborted transaction to that transaction's abort marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from polynya.wire.kafka.batches import (
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    header_of,
    records_of,
    without_producer,
)

_LENGTH_END, _OVERHEAD = 12, 12
_ABORT = 0  # the type of a control record, the last two bytes of its key


class OldBatch(Exception):
    """The source has a batch of before Kafka 0.11 at this offset."""


class Committed(msgspec.Struct):
    """Batches to be appended in order, and the offset behind all that the response had. `first`:
    the first offset of the first batch kept, -1 without one."""

    batches: list[bytes]
    end: int
    first: int = -1


def whole_batches(data: bytes) -> Iterator[memoryview]:
    """Iterate over the whole batches; a broker may cut off the last one. Raises OldBatch."""
    view, at = memoryview(data), 0
    while at + HEADER_BYTES <= len(view):
        if view[at + 16] < MAGIC:
            raise OldBatch(int.from_bytes(view[at : at + 8]))
        end = at + _OVERHEAD + int.from_bytes(view[at + 8 : at + _LENGTH_END])
        if end > len(view):
            return
        yield view[at:end]
        at = end


def committed_in(data: bytes, position: int, aborted: Iterable[tuple[int, int]]) -> Committed:
    """Return the committed batches from a position on. `aborted`: (producer id, first offset) of
    each aborted transaction. Raises OldBatch."""
    waiting = sorted(aborted, key=lambda each: each[1])
    open_: set[int] = set()  # the producers whose aborted transaction is being passed
    found = Committed([], position)
    for batch in whole_batches(data):
        header = header_of(batch)
        last = header.base_offset + header.last_offset_delta
        while waiting and waiting[0][1] <= last:
            open_.add(waiting.pop(0)[0])
        if header.is_control:
            if _is_abort(batch, header):
                open_.discard(header.producer_id)
        elif last >= position and header.records and not _is_aborted(header, open_):
            found.first = header.base_offset if found.first < 0 else found.first
            found.batches.append(_plain(batch, header))
        found.end = max(found.end, last + 1)
    return found


def _is_aborted(header: BatchHeader, producers: set[int]) -> bool:
    return bool(header.attributes & TRANSACTIONAL) and header.producer_id in producers


def _is_abort(batch: memoryview, header: BatchHeader) -> bool:
    return any(
        record.key is not None and int.from_bytes(record.key[2:4]) == _ABORT
        for record in records_of(batch)
    )


def _plain(batch: memoryview, header: BatchHeader) -> bytes:
    if header.producer_id < 0 and header.producer_epoch < 0 and header.base_sequence < 0:
        return bytes(batch)
    return without_producer(batch)
