"""The numbers of transactions: which batches of a producer a stream accepts, and what they open.

A producer's transactions have ascending numbers. A stream refuses those up to the one that it ended
last, so a late batch never opens a transaction that has no end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.levels import TRANSACTION_LEVEL
from polynya.base.limits import OPEN_TRANSACTIONS_MAX
from polynya.stream.features.appends.commands import Produce, TxnProduce
from polynya.stream.features.lifetimes.rules import tail_reply
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import KafkaState, OpenTransaction, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_KAFKA = 1  # the kind of its producers


def judge_number(stream: Stream, kafka: KafkaState, command: Produce) -> Reply | None:
    """Return the refusal of a batch by the number of its transaction, or None. Without a number it
    has none.

    TXN_ENDED: the transaction has ended here. NOT_YET: another one of the producer is open, and its
    number is the detail. TXN_STATE: the producer has one open, and the batch is of none.
    TOO_MANY: as many are open as may be, until some end."""
    producer = command.producer
    if producer is None or producer.kind != _KAFKA or not (kafka.open or kafka.ended):
        return None
    id_ = int(producer.id)
    number = command.txn if type(command) is TxnProduce else 0
    ended = kafka.ended.get(id_)
    if number and ended is not None and number <= ended[0]:
        return tail_reply(Code.TXN_ENDED, stream)
    opened = kafka.open.get(id_)
    if opened is None:
        is_full = type(command) is TxnProduce and not _has_room(kafka, command.owner)
        return tail_reply(Code.TOO_MANY, stream) if is_full else None
    if opened.number == number:
        return None
    reply = tail_reply(Code.NOT_YET if number else Code.TXN_STATE, stream)
    reply.detail = opened.number
    return reply


def _has_room(kafka: KafkaState, owner: int) -> bool:
    """Report whether one more transaction may be open. Of those one principal has at most half."""
    count = len(kafka.open)
    if count >= OPEN_TRANSACTIONS_MAX:
        return False
    half = OPEN_TRANSACTIONS_MAX // 2
    if not owner or count < half:
        return True
    return sum(opened.owner == owner for opened in kafka.open.values()) < half


def begin_transaction(machine: Machine, stream: Stream, command: TxnProduce) -> None:
    """Open the transaction of an accepted batch at the tail, unless it is open."""
    assert command.producer is not None
    machine.counters.raise_level(TRANSACTION_LEVEL)  # a standalone node gets no `SetLevel`
    kafka = stream.kafka = stream.kafka or KafkaState()
    id_ = int(command.producer.id)
    machine.directory.undecided[stream.uid] = stream
    if id_ not in kafka.open:
        kafka.open[id_] = OpenTransaction(
            stream.next_record,
            stream.next_byte,
            command.producer.epoch,
            command.now_ms,
            command.txn,
            command.owner,
        )
