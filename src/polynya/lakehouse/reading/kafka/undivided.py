"""Divide the batches of an undivided slice into records, and gather them in columns."""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator

from polynya.base.errors import CorruptData
from polynya.base.limits import TIME_MS_MAX
from polynya.wire.kafka.batches import HEADER_BYTES, Record, header_of, records_of
from polynya.wire.kafka.codecs import decompressed
from polynya.wire.kafka.primitives import Malformed
from polynya.wire.slices import Slice

BLOCK_BYTES = 16 << 20  # of records that are gathered before they are given on
_OVERHEAD = 12  # bytes of a batch before those that its length counts
_COMMA = 44
Headers = list[tuple[str, bytes | None]]


class Columns:
    """Records of whole batches. `data` has a separator behind each value, if the caller wants
    one."""

    def __init__(self, separated: bool) -> None:
        self._separated = separated
        self.numbers = array("q")  # of the records in the slice
        self.bytes = array("q")  # where the record's batch begins in the payload
        self.batches = array("q")  # first record of the record's batch
        self.times_ms = array("q")
        self.append_times_ms = array("q")
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] = []
        self.absent = bytearray()  # 1 for a tombstone
        self.data = bytearray()
        self.ends = array("q")

    def add(
        self, record: Record, number: int, position: tuple[int, int], append_time_ms: int
    ) -> None:
        """Add a record. `position`: first record and byte of its batch."""
        self.numbers.append(number)
        self.batches.append(position[0])
        self.bytes.append(position[1])
        has_time = 0 <= record.timestamp <= TIME_MS_MAX
        self.times_ms.append(record.timestamp if has_time else append_time_ms)
        self.append_times_ms.append(append_time_ms)
        self.keys.append(record.key)
        self.headers.append(list(record.headers) or None)
        self.absent.append(record.value is None)
        self.data += record.value or b""
        if self._separated:
            self.data.append(_COMMA)
        self.ends.append(len(self.data))


def columns_of(
    found: Slice, begin: int, end: int, *, separated: bool, hidden: Container[int] = ()
) -> Iterator[Columns]:
    """Yield the records from number `begin` to `end` of a slice, in runs of about `BLOCK_BYTES`.

    Control batches, batches outside and the `hidden` ones are not opened. Raises CorruptData.
    """
    columns = Columns(separated)
    numbers, positions = found.batch_begins
    payload_begins = found.stored_begins[1]
    for at in found.kept:
        first, last = numbers[at], numbers[at + 1]
        if last <= begin or first >= end or at in hidden:
            continue
        try:
            batch = bytes(found.payload[payload_begins[at] : payload_begins[at + 1]])
            counts = found.batch_records[at], last - first
            for number, record in _numbered(batch, first, *counts):
                if begin <= number < end:
                    position = (first, positions[at])
                    columns.add(record, number, position, found.append_times_ms[at])
        except (CorruptData, Malformed) as fault:
            raise CorruptData(f"the Kafka batch at record {first} of the slice: {fault}") from None
        if len(columns.data) + 64 * len(columns.ends) >= BLOCK_BYTES:
            yield columns
            columns = Columns(separated)
    if columns.ends:
        yield columns


def _numbered(batch: bytes, first: int, count: int, span: int) -> Iterator[tuple[int, Record]]:
    """Iterate over the records of a batch with their numbers. A control batch has none. `count`,
    `span`: records of the batch and its numbers. One of a mirror may have fewer records than the
    slice says."""
    if len(batch) < HEADER_BYTES:
        raise CorruptData(f"it has {len(batch)} bytes, and a header alone has {HEADER_BYTES}")
    header = header_of(batch)
    is_sparse = header.records < count == header.last_offset_delta + 1
    if header.length + _OVERHEAD != len(batch) or not (header.records == count or is_sparse):
        raise CorruptData(
            f"its header says {header.length + _OVERHEAD} bytes and {header.records} records, the "
            f"slice {len(batch)} and {count}"
        )
    if header.is_control:
        return
    body = decompressed(header.codec, batch[HEADER_BYTES:])
    before = -1
    for at, record in enumerate(records_of(batch, body)):
        delta = record.offset - header.base_offset
        # without missing numbers each record has the one behind the record before
        if not before < delta < span - header.records + at + 1:
            raise CorruptData(f"record {at} has offset delta {delta}")
        before = delta
        yield first + delta, record
