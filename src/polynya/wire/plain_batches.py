"""Records that were posted over HTTP, as the record batches that a Kafka client fetches. Pure code.

Such a record has no key and no headers; its time is that of its append. Its batch is built when it
is fetched, so the same records may come in other batches the next time; offsets and times stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from struct import iter_unpack

from polynya.stream.parts import Encoding
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.record_pages import StoredSpan, plain_values

NO_TIME = -1
_RECORDS_MAX = 1000  # of one batch …
_BYTES_MAX = 256 << 10  # … and of its values, unless it has one record


def record_batches(span: StoredSpan) -> bytes:
    """Return the records of a span, with their append times, as record batches that begin at
    offset 0. A span of record batches is returned as stored."""
    if span.encoding == Encoding.KAFKA:
        return bytes(span.payload)
    each_ms = _times_of(span.record, span.times) if span.times else repeat(span.time_ms)
    return b"".join(map(build_batch, _groups(plain_values(span), each_ms)))


def _times_of(record: int, times: bytes) -> Iterator[int]:
    """Iterate over the times of the records from `record` on; the last one goes on."""
    runs: list[Iterator[int]] = []
    before = None
    for begin, time_ms in iter_unpack("<qq", times):
        if before is not None:
            runs.append(repeat(before, begin - record))
            record = begin
        before = time_ms
    return chain(*runs, repeat(before if before is not None else NO_TIME))


def _groups(values: Iterator[bytes], times: Iterator[int]) -> Iterator[list[Record]]:
    """Divide records into lists that fit into one batch each."""
    group: list[Record] = []
    size = 0
    for value, time_ms in zip(values, times, strict=False):
        if group and (size + len(value) > _BYTES_MAX or len(group) == _RECORDS_MAX):
            yield group
            group, size = [], 0
        group.append(Record(None, value, time_ms))
        size += len(value)
    if group:
        yield group
