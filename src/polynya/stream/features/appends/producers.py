"""Idempotent producers: one packed state each, and the rules that judge a sequence.

A state is `bytes`: epoch, last sequence, time of the last append (three i64), then up to five
receipts, newest first. A receipt has first and last sequence, first record (i64 each, -1 when
nothing was appended), records (u32). From level 4 on the CRC-32C of the stored payload (u32) of each
of the newest receipts follows, newest first; 0: not known, and any body is a repeat. So the length
says how many there are, as five are shorter than a receipt. A stream keeps its states in a dict
ordered by last append, so the longest idle is the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from struct import Struct

from polynya.base.limits import (
    PRODUCER_EVICT_IDLE_MS,
    PRODUCER_IDLE_MS,
    PRODUCER_RECEIPTS,
    PRODUCERS_PER_STREAM_MAX,
)
from polynya.stream.parts import Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import KafkaState, Stream

STATE = Struct("<qqq")
NEW = Struct("<qqqqqqI")  # a state and its newest receipt
_EPOCH_AND_LAST = Struct("<qq")
_RECEIPT = Struct("<qqqI")
_CRC = Struct("<I")
_HEAD_END = STATE.size
# where the receipts end that are kept when a new one goes before them
_KEPT_END = STATE.size + (PRODUCER_RECEIPTS - 1) * _RECEIPT.size
_CRCS_KEPT = (PRODUCER_RECEIPTS - 1) * _CRC.size
# a state with all receipts and checksums, in which what stays of the one before is two pieces
_FULL = Struct(f"<qqqqqqI{_KEPT_END - _HEAD_END}sI{_CRCS_KEPT}s")
_FULL_CRCS = _HEAD_END + PRODUCER_RECEIPTS * _RECEIPT.size
assert PRODUCER_RECEIPTS * _CRC.size < _RECEIPT.size
_KAFKA = "1\0"  # the keys of Kafka's producers begin so
_KAFKA_SEQUENCE_MAX = 2**31 - 1  # the next sequence is 0


def producer_key(producer: Producer) -> str:
    """Return the producer's key in its stream: (kind, id). HTTP ids contain no NUL."""
    return producer.id if producer.kind == 0 else f"{producer.kind}\0{producer.id}"


def kafka_key(producer: int) -> str:
    """Return the key of a Kafka producer by its number."""
    return f"{_KAFKA}{producer}"


def judge_producer(stream: Stream, producer: Producer, now_ms: int, crc: int = 0) -> Reply | None:
    """Return the refusal or the duplicate reply for this tuple, or None if it is the next one.
    `crc`: of its payload; 0: any body is a repeat. Changes nothing."""
    states = stream.producers
    state = (
        states.get(producer.id if producer.kind == 0 else producer_key(producer))
        if states
        else None
    )
    if state is None:
        return _judge_unknown(stream, producer, now_ms)
    epoch, last, _ = STATE.unpack_from(state)
    if producer.epoch == epoch:
        if producer.sequence == last + 1:
            return None
        if producer.sequence <= last:
            return repeat_of(stream, producer, crc)
        return refusal(stream, Code.PRODUCER_GAP, producer, (epoch, last))
    if producer.epoch < epoch:
        return refusal(stream, Code.PRODUCER_STALE, producer, (epoch, last))
    return (
        None
        if producer.sequence == 0
        else refusal(stream, Code.PRODUCER_EPOCH_START, producer, (epoch, -1))
    )


def _judge_unknown(stream: Stream, producer: Producer, now_ms: int) -> Reply | None:
    if producer.sequence != 0:
        return refusal(stream, Code.PRODUCER_GAP, producer, (producer.epoch, -1))
    if is_full(stream, now_ms):
        return refusal(stream, Code.PRODUCER_LIMIT, producer, (producer.epoch, -1))
    return None


def is_full(stream: Stream, now_ms: int) -> bool:
    """Report whether the stream has as many producers as it may, and none is idle enough to go."""
    states = stream.producers or {}
    if len(states) < PRODUCERS_PER_STREAM_MAX:
        return False
    longest_idle = next(_droppable(stream, states), None)
    return longest_idle is None or _idle_ms(states[longest_idle], now_ms) < PRODUCER_EVICT_IDLE_MS


def refusal(stream: Stream, code: Code, producer: Producer, known: tuple[int, int]) -> Reply:
    """Return a refusal that names the `known` epoch and last sequence."""
    epoch, last = known
    return Reply(
        code=code,
        uid=stream.uid,
        record=stream.next_record,
        byte=stream.next_byte,
        closed=stream.closed,
        producer_epoch=epoch,
        producer_sequence=last,
        expected_sequence=last + 1,
        received_sequence=producer.sequence,
    )


def repeat_of(stream: Stream, producer: Producer, crc: int = 0) -> Reply:
    """Return the reply for a tuple applied before: the highest sequence, and the batch's first
    record if its receipt is still kept. A `crc` that differs from the kept one is a conflict."""
    assert stream.producers is not None
    state = stream.producers[producer_key(producer)]
    epoch, last, _ = STATE.unpack_from(state)
    first_record = -1
    for number, (begin, end, record, _) in enumerate(receipts_of(state)):
        if begin <= producer.sequence <= end:
            is_whole = (begin, end) == (producer.sequence, last_of(producer))
            if crc and is_whole and crc_of(state, number) not in (0, crc):
                return refusal(stream, Code.PRODUCER_CONFLICT, producer, (epoch, last))
            first_record = record
            break
    return Reply(
        code=Code.DUPLICATE,
        uid=stream.uid,
        record=stream.next_record,
        byte=stream.next_byte,
        closed=stream.closed,
        producer_epoch=epoch,
        producer_sequence=last,
        first_record=first_record,
    )


def accept_producer(
    stream: Stream, producer: Producer, now_ms: int, record: int, records: int, crc: int = 0
) -> Reply | None:
    """Judge a tuple. If it is the next one, record it as applied to `records` records from `record`
    (0 from -1: a bare close). `crc`: of its payload; 0: not to be kept.

    Returns the refusal or the duplicate reply, having changed nothing; else None."""
    sequence = producer.sequence
    epoch = producer.epoch
    key = producer.id if producer.kind == 0 else producer_key(producer)
    states = stream.producers
    known = states.get(key) if states else None
    if known is None or not known.startswith(_EPOCH_AND_LAST.pack(epoch, sequence - 1)):
        reply = judge_producer(stream, producer, now_ms, crc)
        if reply is not None:
            return reply
    last = producer.sequence_last
    if last < 0:
        last = sequence
    if known is None or states is None:
        put(stream, key, _first(producer, now_ms, record, records, crc), now_ms)
        return None
    if len(states) > 1:  # the same as `put`: this is the hot path
        del states[key]
    if crc and sequence and len(known) == _FULL.size:
        states[key] = _FULL.pack(
            epoch,
            last,
            now_ms,
            sequence,
            last,
            record,
            records,
            known[_HEAD_END:_KEPT_END],
            crc,
            known[_FULL_CRCS : _FULL_CRCS + _CRCS_KEPT],
        )
    elif sequence:
        head = NEW.pack(epoch, last, now_ms, sequence, last, record, records)
        states[key] = head + _behind(known, crc)
    else:
        states[key] = _first(producer, now_ms, record, records, crc)
    return None


def _first(producer: Producer, now_ms: int, record: int, records: int, crc: int) -> bytes:
    """Return the state of a producer with the receipt of this tuple alone."""
    sequence, last = producer.sequence, last_of(producer)
    head = NEW.pack(producer.epoch, last, now_ms, sequence, last, record, records)
    return head + _CRC.pack(crc) if crc else head


def put(stream: Stream, key: str, state: bytes, now_ms: int) -> None:
    """Keep the new state of a producer, as the least idle one."""
    states = stream.producers
    if states is None:
        stream.producers = {key: state}
        return
    if key not in states:
        _make_room(stream, states, now_ms)
    elif len(states) > 1:
        del states[key]  # re-inserted below, at the end
    states[key] = state


def without_newest(state: bytes, record: int) -> bytes:
    """Return the state before its newest receipt, if that is of this record."""
    receipts = receipts_of(state)
    if not receipts or receipts[0][2] != record:
        return state
    epoch, _, active_ms = STATE.unpack_from(state)
    crcs = [crc_of(state, number) for number in range(1, len(receipts))]
    while crcs and not crcs[-1]:
        crcs.pop()
    kept = [_RECEIPT.pack(*receipt) for receipt in receipts[1:]]
    head = STATE.pack(epoch, receipts[0][0] - 1, active_ms)
    return b"".join((head, *kept, *map(_CRC.pack, crcs)))


def receipts_of(state: bytes) -> list[tuple[int, int, int, int]]:
    """Return (first sequence, last sequence, first record, records) of each receipt, newest
    first."""
    return list(_RECEIPT.iter_unpack(memoryview(state)[_HEAD_END : _receipts_end(state)]))


def crc_of(state: bytes, number: int) -> int:
    """Return the checksum of the payload of a receipt, by its number from the newest; 0: it is not
    known."""
    at = _receipts_end(state) + number * _CRC.size
    return int(_CRC.unpack_from(state, at)[0]) if at < len(state) else 0


def kept_receipts(state: bytes) -> bytes:
    """Return the receipts that stay when a new one goes before them, with their checksums if there
    are any."""
    return _behind(state, 0)


def _behind(state: bytes, crc: int) -> bytes:
    """Return what follows the newest receipt: those that stay of a producer's earlier `state`, and
    the checksums, of which the newest is `crc`."""
    end = _receipts_end(state)
    if not crc and end == len(state):
        return state[_HEAD_END:_KEPT_END]
    return state[_HEAD_END : min(end, _KEPT_END)] + _CRC.pack(crc) + state[end : end + _CRCS_KEPT]


def _receipts_end(state: bytes) -> int:
    return len(state) - (len(state) - _HEAD_END) % _RECEIPT.size


def last_of(producer: Producer) -> int:
    """Return the highest sequence of a tuple."""
    return producer.sequence if producer.sequence_last < 0 else producer.sequence_last


def _idle_ms(state: bytes, now_ms: int) -> int:
    """Return how long a producer has been idle."""
    active_ms: int = STATE.unpack_from(state)[2]
    return now_ms - active_ms


def _droppable(stream: Stream, states: dict[str, bytes]) -> Iterator[str]:
    """Yield the producers without an open transaction, longest idle first. One with a transaction
    is kept: its next batch has to continue the sequence."""
    kafka = stream.kafka
    if kafka is None or not kafka.open:
        return iter(states)
    held = set(map(kafka_key, kafka.open))
    return (key for key in states if key not in held)


def _make_room(stream: Stream, states: dict[str, bytes], now_ms: int) -> None:
    """Evict producers idle beyond the guaranteed time, and one more if the stream is at its
    limit."""
    idle = [
        *takewhile(
            lambda key: _idle_ms(states[key], now_ms) >= PRODUCER_IDLE_MS,
            _droppable(stream, states),
        )
    ]
    for key in idle:
        _forget(stream, states, key)
    if len(states) >= PRODUCERS_PER_STREAM_MAX:
        _forget(stream, states, next(_droppable(stream, states)))
    assert len(states) < PRODUCERS_PER_STREAM_MAX


def _forget(stream: Stream, states: dict[str, bytes], key: str) -> None:
    """Drop a producer's state. Of a Kafka producer the stream remembers that it was dropped."""
    del states[key]
    kind, _, number = key.partition("\0")
    if kind == "1" and number.isascii() and number.isdigit():
        stream.kafka = stream.kafka or KafkaState()
        stream.kafka.forgotten = max(stream.kafka.forgotten, int(number))


def cut_receipts(states: dict[str, bytes] | None, record: int) -> dict[str, bytes] | None:
    """Undo the appends of `record` and later: drop their receipts, and lower each last sequence. A
    producer with nothing left becomes unknown."""
    kept: dict[str, bytes] = {}
    for key, state in (states or {}).items():
        epoch, last, active_ms = STATE.unpack_from(state)
        receipts, crcs = [], []
        for number, receipt in enumerate(receipts_of(state)):
            begin, _, first, records = receipt
            if records and first + records > record:
                last = begin - 1
            else:
                receipts.append(_RECEIPT.pack(*receipt))
                crcs.append(crc_of(state, number))
        while crcs and not crcs[-1]:
            crcs.pop()
        if last < 0 and receipts and key.startswith(_KAFKA):
            last = _KAFKA_SEQUENCE_MAX
        if last >= 0:
            parts = [STATE.pack(epoch, last, active_ms), *receipts, *map(_CRC.pack, crcs)]
            kept[key] = b"".join(parts)
    return kept or None
