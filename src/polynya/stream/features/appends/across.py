"""Appends of a transaction over several groups: the rule of `TxnAppend`, the part of one group.

The parts are judged as those of an `AppendAll`, and appended as batches that no reader sees.
Markers end them, as the batches of Kafka's transactions (`undecided.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import OPEN_TRANSACTIONS_MAX
from polynya.stream.command import applies
from polynya.stream.features.appends.commands import (
    KAFKA_CONTENT_TYPE,
    Append,
    AppendIf,
    TxnAppend,
)
from polynya.stream.features.appends.rules import apply_append, media_type, other_type
from polynya.stream.features.appends.together import (
    all_repeated,
    judge_append,
    none_appended,
    result_of,
)
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.parts import TRANSACTIONAL
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(TxnAppend)
def apply_txn_append(machine: Machine, command: TxnAppend, position: int) -> Reply:
    """Judge all parts, then append all without deciding, or none. See `TxnAppend`."""
    counters = machine.counters
    counters.raise_level(TRANSACTION_LEVEL)  # a standalone node gets no `SetLevel`
    parts = command.commands
    counters.log_ms = max(counters.log_ms, *(part.now_ms for part in parts))
    judged = [_judge(machine, part, command) for part in parts]
    if all_repeated(parts, judged):
        return Reply(Code.DUPLICATE, detail=[result_of(machine, part) for part in parts])
    for number, reply in enumerate(judged):
        if reply is not None:
            return none_appended(number, reply)
    for number, part in enumerate(parts):
        _append(machine, part, command, position + number)
    return Reply(Code.OK, detail=[result_of(machine, part) for part in parts])


def _judge(machine: Machine, part: Append | AppendIf, command: TxnAppend) -> Reply | None:
    """Judge an append, then its transaction: a repeat stays one after its end."""
    reply = judge_append(machine, part)
    if reply is not None and reply.code == Code.DUPLICATE:
        return reply
    stream = machine.directory.streams.get(part.name)
    refused = None if stream is None else _refusal(stream, command)
    return refused or reply


def _refusal(stream: Stream, command: TxnAppend) -> Reply | None:
    if media_type(stream.content_type) == KAFKA_CONTENT_TYPE:
        return other_type(stream)  # the transactions of a partition are those of Kafka's clients
    kafka = stream.kafka
    if kafka is None:
        return None
    ended = kafka.ended.get(command.producer)
    if ended is not None and command.number <= ended[0]:
        return tail_reply(Code.TXN_ENDED, stream)
    if command.producer in kafka.open:
        reply = tail_reply(Code.NOT_YET, stream)
        reply.detail = kafka.open[command.producer].number
        return reply
    is_full = len(kafka.open) >= OPEN_TRANSACTIONS_MAX
    return tail_reply(Code.TOO_MANY, stream) if is_full else None


def _append(machine: Machine, part: Append | AppendIf, command: TxnAppend, position: int) -> None:
    """Open the transaction at the tail, and append behind it."""
    stream = machine.directory.streams[part.name]
    kafka = stream.kafka = stream.kafka or KafkaState()
    machine.directory.undecided[stream.uid] = stream
    at = (stream.next_record, stream.next_byte)
    kafka.open[command.producer] = OpenTransaction(*at, command.epoch, part.now_ms, command.number)
    assert part.batch is not None
    undecided = Append(
        part.name,
        part.now_ms,
        part.content_type,
        structs.replace(part.batch, flags=TRANSACTIONAL),
        part.producer,
        incarnation=part.incarnation,
    )
    reply = apply_append(machine, undecided, position)
    assert reply.code == Code.OK, f"it was judged: {reply}"
