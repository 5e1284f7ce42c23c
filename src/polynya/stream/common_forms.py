"""The common forms of appends: quick checks that leave nothing for the full one (`sense`). Pure."""

from __future__ import annotations

from polynya.base.limits import TIME_MS_MAX
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.parts import Batch, Encoding, Producer

_KAFKA_SEQUENCE_MAX = 2**31 - 1
_KAFKA_EPOCH_MAX = 2**15 - 1
_KAFKA_ID_DIGITS = 19  # of a 63-bit number


def is_common_append(command: Append) -> bool:
    """Report whether the append is of the common form, without a fault. Appends are the hot path
    of leaders and followers. A right shift leaves 0 if the number fits its bits, and a non-zero
    value if it is larger or negative."""
    batch, producer = command.batch, command.producer
    numbers = command.incarnation
    if producer is not None:
        if producer.sequence_last != -1 or producer.kind:
            return False
        numbers |= producer.epoch | producer.sequence
    if numbers >> 63 or not 0 <= command.now_ms <= TIME_MS_MAX:
        return False
    if batch is None:
        return True
    if (
        batch.crc >> 32
        or batch.encoding >> 1
        or batch.compression
        or batch.flags
        or batch.record_time_ms_max
    ):
        return False
    return lengths_match(batch) if batch.lengths else batch.records == 1


def is_common_produce(command: Produce) -> bool:
    """Report whether the batch is of the common form, without a fault."""
    batch, producer = command.batch, command.producer
    if producer is not None and (
        (producer.epoch | producer.sequence) >> 31 or not sequences_match(producer, batch.records)
    ):
        return False
    return not (
        batch.flags
        or batch.compression
        or batch.lengths
        or batch.crc >> 32
        or command.uid >> 63
        or batch.encoding != Encoding.KAFKA
        or not batch.payload
        or not 1 <= batch.records < 1 << 32
        or not 0 <= batch.record_time_ms_max <= TIME_MS_MAX
        or not 0 <= command.now_ms <= TIME_MS_MAX
    )


def lengths_match(batch: Batch) -> bool:
    """Report whether the lengths match the records in the payload. Byte streams have lengths too: a
    fork can begin with part of a record, then a body."""
    lengths = batch.lengths
    return len(lengths) == 4 * batch.records and sum(memoryview(lengths).cast("I")) == len(
        batch.payload
    )


def sequences_match(producer: Producer, records: int) -> bool:
    """Report whether a Kafka producer's numbers are in range, and its sequences as many as the
    records."""
    first, last = producer.sequence, producer.sequence_last
    if producer.kind != 1 or producer.epoch > _KAFKA_EPOCH_MAX or first > _KAFKA_SEQUENCE_MAX:
        return False
    if not (producer.id.isascii() and producer.id.isdigit()) or len(producer.id) > _KAFKA_ID_DIGITS:
        return False
    return last == (first + records - 1) & _KAFKA_SEQUENCE_MAX
