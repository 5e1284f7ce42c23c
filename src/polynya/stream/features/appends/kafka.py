"""Kafka's way to append: a record batch stays opaque, and the rules for its producer are Kafka's.

The states of producers are those of `producers.py`. A sequence wraps from 2^31-1 to 0, so two of
them are compared by the shorter way between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import PRODUCER_RECEIPTS
from polynya.stream.command import applies, level_of
from polynya.stream.features.appends import producers
from polynya.stream.features.appends.commands import Produce, ProducerIds, TxnProduce
from polynya.stream.features.appends.numbers import begin_transaction, judge_number
from polynya.stream.features.appends.rules import AddBatch, add_batch, tail_moved
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.profiles.rules import judge_logged
from polynya.stream.parts import Producer
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

SEQUENCE_MAX = 2**31 - 1
_HALF = 1 << 30
_LEVEL = level_of(Produce)


@applies(TxnProduce)
@applies(Produce)
def apply_produce(
    machine: Machine, command: Produce, position: int, add: AddBatch = add_batch
) -> Reply:
    """Append a batch: OK, or DUPLICATE with the first record that the batch got before.

    Refusals: NOT_FOUND, EVICTED, GONE, INCARNATION, CLOSED, PRODUCER_STALE, PRODUCER_GAP,
    DUPLICATE_SEQUENCE, PRODUCER_LIMIT, WRONG_PROFILE, NOT_YET, and those of `judge_number`. `add`
    as in `apply_append`."""
    directory = machine.directory
    stream = directory.streams.get(command.name)
    if stream is None:
        return directory.absent(command.name)
    record, batch, producer = stream.next_record, command.batch, command.producer
    if (
        machine.diskless.streams
        and add is add_batch
        and (reply := judge_logged(machine, stream, batch))
    ):
        return reply
    reply = judge(stream, command)
    if reply is not None:
        return reply
    if producer is not None:
        _keep(stream, producer, command.now_ms, record, batch.records)
        if type(command) is TxnProduce:
            begin_transaction(machine, stream, command)
    machine.changes.streams.add(stream.uid)
    size = add(machine, stream, command, batch, position)
    stream.activity_ms = command.now_ms
    tails = machine.tails
    if stream.uid in tails.watched:
        live = batch if add is add_batch else None
        moved = tail_moved(stream, live, record, size, time_ms=command.now_ms)
        tails.effects.append(moved)
    return Reply(
        Code.OK,
        stream.uid,
        stream.next_record,
        stream.next_byte,
        stream.closed,
        first_record=record,
    )


def judge(stream: Stream, command: Produce) -> Reply | None:
    """Return the refusal of a batch or the reply to a repeat; None: it is the next. Changes
    nothing."""
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    producer = command.producer
    reply = None if producer is None else _judge_producer(stream, producer, command)
    if stream.closed and (reply is None or reply.code != Code.DUPLICATE):
        return tail_reply(Code.CLOSED, stream)
    return reply


def _judge_producer(stream: Stream, producer: Producer, command: Produce) -> Reply | None:
    """Judge in this order: epoch, an exact repeat, the transaction's number, sequence."""
    states, kafka = stream.producers, stream.kafka
    state = states.get(producers.producer_key(producer)) if states else None
    if state is None:
        refused = None if kafka is None else judge_number(stream, kafka, command)
        return refused or _judge_unknown(stream, producer, command)
    epoch, last, _ = producers.STATE.unpack_from(state)
    if producer.epoch < epoch:
        return _refusal(stream, Code.PRODUCER_STALE, producer, (epoch, last))
    if producer.epoch > epoch:
        refused = None if kafka is None else judge_number(stream, kafka, command)
        if refused is not None or producer.sequence == 0:
            return refused
        return _refusal(stream, Code.PRODUCER_GAP, producer, (epoch, -1))
    receipts = producers.receipts_of(state)
    for begin, end, record, _ in receipts:  # first, as Kafka does
        if (begin, end) == (producer.sequence, producer.sequence_last):
            reply = tail_reply(Code.DUPLICATE, stream)
            reply.producer_epoch, reply.producer_sequence = epoch, last
            reply.first_record = record
            return reply
    if kafka is not None and (refused := judge_number(stream, kafka, command)) is not None:
        return refused
    if producer.sequence == (last + 1) & SEQUENCE_MAX:
        return None
    behind = (receipts[-1][0] - 1 - producer.sequence_last) & SEQUENCE_MAX if receipts else _HALF
    # Without all receipts none was dropped, so an older batch was never applied.
    older = len(receipts) == PRODUCER_RECEIPTS and behind < _HALF
    code = Code.DUPLICATE_SEQUENCE if older else Code.PRODUCER_GAP
    return _refusal(stream, code, producer, (epoch, last))


def _judge_unknown(stream: Stream, producer: Producer, command: Produce) -> Reply | None:
    """Judge the first batch of a producer. It begins at 0, unless the stream may have forgotten
    the producer, or is the successor of one that knew it: else a batch whose predecessor was lost
    would be accepted."""
    if producer.sequence and not is_forgotten(stream, producer):
        return _refusal(stream, Code.PRODUCER_GAP, producer, (producer.epoch, -1))
    if producers.is_full(stream, command.now_ms):
        return _refusal(stream, Code.PRODUCER_LIMIT, producer, (producer.epoch, -1))
    return None


def is_forgotten(stream: Stream, producer: Producer) -> bool:
    """Report whether the stream may have dropped the state of this producer, or an earlier stream
    of its name may have had it. Ids ascend, so a producer above all of these is new."""
    return stream.kafka is not None and int(producer.id) <= stream.kafka.forgotten


def _refusal(stream: Stream, code: Code, producer: Producer, known: tuple[int, int]) -> Reply:
    reply = producers.refusal(stream, code, producer, known)
    reply.expected_sequence &= SEQUENCE_MAX
    return reply


def _keep(stream: Stream, producer: Producer, now_ms: int, record: int, records: int) -> None:
    """Record a batch as applied."""
    first, last, key = producer.sequence, producer.sequence_last, producers.producer_key(producer)
    known = stream.producers.get(key) if stream.producers else None
    state = producers.NEW.pack(producer.epoch, last, now_ms, first, last, record, records)
    if known is not None and producers.STATE.unpack_from(known)[0] == producer.epoch:
        state += producers.kept_receipts(known)
    producers.put(stream, key, state, now_ms)


@applies(ProducerIds)
def apply_producer_ids(machine: Machine, command: ProducerIds, position: int) -> Reply:
    """Allot a block of ids: the group's number above a counter."""
    machine.counters.raise_level(_LEVEL)
    return Reply(Code.OK, detail=machine.counters.next_producer_ids(command.count))
