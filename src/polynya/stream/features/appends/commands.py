"""Commands that append to streams: tags 2, 8, 9, 12, 13, 15, 26, 27, 119, and 99 for several of
them in one entry."""

from __future__ import annotations

from typing import get_args

from polynya.base.levels import ATOMIC_LEVEL, CONDITIONS_LEVEL, MIRROR_LEVEL, TRANSACTION_LEVEL
from polynya.base.limits import KIB, MIB, TIME_MS_MAX
from polynya.stream.command import Command, command, its_name, level_for, level_of
from polynya.stream.command_validation import (
    COUNTER,
    NONE,
    TIME,
    WIDE,
    common_form,
    fault_of,
    first_fault,
    nested,
)
from polynya.stream.parts import (
    CONTROL,
    TRANSACTIONAL,
    Batch,
    Encoding,
    Producer,
    lengths_match,
)

BUNDLE_BYTES = 64 * KIB  # of the appends in one entry: reading back one batch reads them all

# of an entry with Kafka batches, which are larger: fewer entries cost less
PRODUCE_BUNDLE_BYTES = 1 * MIB

# fewer than the bytes of any journal entry, so positions within one entry never reach the next entry
BUNDLE_COMMANDS_MAX = 64


_KAFKA_SEQUENCE_MAX = 2**31 - 1
_KAFKA_EPOCH_MAX = 2**15 - 1
_KAFKA_ID_DIGITS = 19  # of a 63-bit number
PRODUCER_IDS_MAX = 1 << 20  # of one block


def _append_level(command: Append) -> int:
    batch = command.batch
    is_kafka = batch is not None and batch.encoding == Encoding.KAFKA
    return level_of(Produce if is_kafka else Append)


@command(
    since=1,
    bounds={"now_ms": TIME, "incarnation": WIDE},
    check=nested("batch", "producer"),
    level=_append_level,
    names=its_name,
)
class Append(Command, tag=2, frozen=True):
    """Append a batch, close the stream, or both. `batch` None with `close` True only closes."""

    name: str
    now_ms: int
    content_type: str  # "" on close-only
    batch: Batch | None
    producer: Producer | None = None
    stream_seq: str | None = None
    close: bool = False
    incarnation: int = 0  # precondition: the stream's uid; 0: none


@common_form(Append)
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


@command(
    since=CONDITIONS_LEVEL,
    bounds={"now_ms": TIME, "incarnation": WIDE, "record": (-1, COUNTER[1])},
    check=nested("batch", "producer"),
    names=its_name,
)
class AppendIf(Append, tag=15, frozen=True):
    """An append that is refused (PRECONDITION) unless the tail is at `record`. Level 4."""

    record: int = -1  # the number of the next record; -1 is never the tail


def _produce(command: Produce) -> str:
    batch, producer = command.batch, command.producer
    if batch.encoding != Encoding.KAFKA:
        return f"a Produce has a batch of encoding {batch.encoding}; expected {Encoding.KAFKA}"
    if producer is not None and not sequences_match(producer, batch.records):
        return f"the Kafka producer {producer} does not match a batch of {batch.records} records"
    return first_fault((batch, producer))


KAFKA_CONTENT_TYPE = (
    "application/vnd.apache.kafka.recordbatch"  # of the streams that are partitions
)


@command(since=3, bounds={"now_ms": TIME, "uid": WIDE}, check=_produce, names=its_name)
class Produce(Command, tag=8, frozen=True):
    """Append one Kafka record batch to a stream, by Kafka's rules for producers. Level 3."""

    name: str
    now_ms: int
    batch: Batch
    producer: Producer | None = None  # of kind 1; None: not idempotent
    uid: int = 0  # precondition: the stream's uid; 0: none


@common_form(Produce)
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


def sequences_match(producer: Producer, records: int) -> bool:
    """Report whether a Kafka producer's numbers are in range, and its sequences as many as the
    records."""
    first, last = producer.sequence, producer.sequence_last
    if producer.kind != 1 or producer.epoch > _KAFKA_EPOCH_MAX or first > _KAFKA_SEQUENCE_MAX:
        return False
    if not (producer.id.isascii() and producer.id.isdigit()) or len(producer.id) > _KAFKA_ID_DIGITS:
        return False
    return last == (first + records - 1) & _KAFKA_SEQUENCE_MAX


def _in_transaction(command: TxnProduce) -> str:
    return fault_in_transaction(command) or _produce(command)


def fault_in_transaction(command: TxnProduce) -> str:
    """Return why a batch cannot be of a transaction, or ""."""
    if command.producer is None:
        return "a TxnProduce has no producer; expected the one of the transaction"
    if command.batch.flags & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
        return f"a TxnProduce has a batch with the flags {command.batch.flags}; expected {TRANSACTIONAL}"
    return ""


@command(
    since=TRANSACTION_LEVEL,
    bounds={"now_ms": TIME, "uid": WIDE, "txn": (1, COUNTER[1]), "owner": WIDE},
    check=_in_transaction,
    names=its_name,
)
class TxnProduce(Produce, tag=119, frozen=True):
    """Append a batch of a transaction, the one of number `txn` of its producer. An older release
    refuses it: it must not pass as a `Produce`. Level 4."""

    txn: int = 0
    owner: int = 0  # a hash of the principal that writes; 0: without access control


def _mirrored(command: MirrorBatch) -> str:
    if command.producer is not None:
        return "a MirrorBatch has a producer; expected none: batches of a mirror have offsets"
    if command.record < command.begin:
        return f"a MirrorBatch at {command.record} follows {command.begin}, which is behind it"
    return _produce(command)


@command(
    since=MIRROR_LEVEL,
    bounds={"now_ms": TIME, "uid": WIDE, "begin": COUNTER, "record": COUNTER},
    check=_mirrored,
    names=its_name,
)
class MirrorBatch(Produce, tag=12, frozen=True):
    """Append one Kafka record batch of another cluster at its own offset, which may be behind the
    tail: the numbers between are a gap. A batch that ends at or before the tail is a repeat.

    `batch.records` is the span of its offsets, of which some may be missing. `begin`: the sender
    has sent all before it, so the tail must have reached it. Level 4."""

    begin: int = 0
    record: int = 0  # of its first offset


@command(
    since=MIRROR_LEVEL,
    bounds={"now_ms": TIME, "uid": WIDE, "begin": COUNTER, "end": COUNTER},
    names=its_name,
)
class MirrorGap(Command, tag=13, frozen=True, gc=False):
    """Move the tail of a stream to `end` without records, if it has reached `begin`. With `first`
    a stream that never had a record begins there. Level 4."""

    name: str
    now_ms: int
    uid: int
    begin: int
    end: int
    first: bool = False


@command(since=3, bounds={"count": (1, PRODUCER_IDS_MAX), "now_ms": TIME})
class ProducerIds(Command, tag=9, frozen=True):
    """Allot `count` Kafka producer ids that were never allotted before. Detail: the first. Level
    3."""

    count: int
    now_ms: int


# the kinds of commands that add a batch to a stream: those of a turn may share an entry
AnyAppend = Append | AppendIf | Produce | MirrorBatch | TxnProduce
APPENDS = frozenset(get_args(AnyAppend))
APPEND_BASES = (Append, Produce)  # those of all of them
KAFKA_APPENDS = frozenset(kind for kind in APPENDS if issubclass(kind, Produce))


def _bundle(command: Bundle) -> str:
    if not 1 <= len(command.commands) <= BUNDLE_COMMANDS_MAX:
        return (
            f"the bundle has {len(command.commands)} commands; expected 1 to {BUNDLE_COMMANDS_MAX}"
        )
    return next((fault for fault in map(fault_of, command.commands) if fault), "")


def _bundle_level(command: Bundle) -> int:
    return max([level_of(Bundle), *map(level_for, command.commands)])


@command(since=2, bounds=NONE, check=_bundle, level=_bundle_level)
class Bundle(Command, tag=99, frozen=True, gc=False):
    """Appends of one turn in one log entry, at most `BUNDLE_COMMANDS_MAX`. Each is judged and
    answered as if it were alone, in order. A batch's position is the entry's position plus its
    number here. The reply's detail has the replies. Level 3 with a `Produce`, 4 with an `AppendIf`,
    a `MirrorBatch` or a `TxnProduce`."""

    commands: list[AnyAppend]


def _append_all(command: AppendAll | TxnAppend) -> str:
    parts = command.commands
    if not 1 <= len(parts) <= BUNDLE_COMMANDS_MAX:
        return f"it has {len(parts)} appends; expected 1 to {BUNDLE_COMMANDS_MAX}"
    if len({part.name for part in parts}) < len(parts):
        return "it has two appends to one stream; expected one for each stream"
    if any(part.batch is not None and part.batch.encoding == Encoding.KAFKA for part in parts):
        return "it has a Kafka batch; expected those of other encodings"
    return first_fault(parts)


def _append_all_names(command: AppendAll | TxnAppend) -> list[str]:
    return [part.name for part in command.commands]


@command(since=ATOMIC_LEVEL, bounds=NONE, check=_append_all, names=_append_all_names)
class AppendAll(Command, tag=26, frozen=True, gc=False):
    """Append to several streams of the group, all or nothing. A part that has no batch and does not
    close is a condition alone. A batch's position is as in a `Bundle`.

    The reply's detail is [uid, record, byte, closed] of each part. A refusal is `NONE_APPENDED`,
    with [the number of the first part that is refused, its reply]. Level 4."""

    commands: list[Append | AppendIf]


def _txn_append(command: TxnAppend) -> str:
    for part in command.commands:
        if part.batch is None or part.batch.flags or part.close or part.stream_seq is not None:
            return "it has a part that has no batch, or flags, closes, or has a Stream-Seq"
        if not part.incarnation or (part.producer is not None and part.producer.kind):
            return "it has a part without an incarnation, or with a producer of Kafka"
    return _append_all(command)


@command(
    since=TRANSACTION_LEVEL,
    bounds={"producer": WIDE, "epoch": (0, _KAFKA_EPOCH_MAX), "number": (1, COUNTER[1])},
    check=_txn_append,
    names=_append_all_names,
)
class TxnAppend(Command, tag=27, frozen=True, gc=False):
    """Append to several streams of the group in the transaction `number` of a producer: all or
    nothing, and not to be seen before its end. One append to a stream for each transaction. A
    batch's position is as in a `Bundle`.

    The replies are those of an `AppendAll`; and TXN_ENDED, NOT_YET: the producer has another one
    open in a stream; TOO_MANY: a stream has as many open as may be. Level 4."""

    commands: list[Append | AppendIf]
    producer: int  # of the transactional id
    epoch: int
    number: int
