"""Records that were posted over HTTP, as the record batches that a Kafka client fetches. Pure code.

Such a record has no key, no headers and no time of its own. Its batch is built when it is fetched,
so the same records may come in other batches the next time; their offsets stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from polynya.stream.commands import Encoding
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.record_pages import StoredSpan, plain_values

NO_TIME = -1
_RECORDS_MAX = 1000  # of one batch …
_BYTES_MAX = 256 << 10  # … and of its values, unless it has one record


def record_batches(span: StoredSpan) -> bytes:
    """Return the records of a span as record batches that begin at offset 0.

    A span of record batches is returned as stored."""
    if span.encoding == Encoding.KAFKA:
        return bytes(span.payload)
    return b"".join(map(_batch, _groups(plain_values(span))))


def _batch(values: list[bytes]) -> bytes:
    return build_batch(Record(None, value, NO_TIME) for value in values)


def _groups(values: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Divide values into lists that fit into one batch each."""
    group: list[bytes] = []
    size = 0
    for value in values:
        if group and (size + len(value) > _BYTES_MAX or len(group) == _RECORDS_MAX):
            yield group
            group, size = [], 0
        group.append(value)
        size += len(value)
    if group:
        yield group
