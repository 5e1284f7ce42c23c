"""Commands that append to streams: tags 2, 8, 9, 15, and 99 for several of them in one entry."""

from __future__ import annotations

from polynya.base.limits import KIB, MIB
from polynya.stream.command import Command
from polynya.stream.parts import (
    Batch,
    Producer,
)

BUNDLE_BYTES = 64 * KIB  # of the appends in one entry: reading back one batch reads them all

# of an entry with Kafka batches, which are larger: fewer entries cost less
PRODUCE_BUNDLE_BYTES = 1 * MIB

# fewer than the bytes of any journal entry, so places within one entry never reach the next entry
BUNDLE_COMMANDS_MAX = 64


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


class AppendIf(Append, tag=15, frozen=True):
    """An append that is refused (PRECONDITION) unless the tail is at `record`. Level 4."""

    record: int = -1  # the number of the next record; -1 is never the tail


KAFKA_CONTENT_TYPE = (
    "application/vnd.apache.kafka.recordbatch"  # of the streams that are partitions
)


class Produce(Command, tag=8, frozen=True):
    """Append one Kafka record batch to a stream, by Kafka's rules for producers. Level 3."""

    name: str
    now_ms: int
    batch: Batch
    producer: Producer | None = None  # of kind 1; None: not idempotent
    uid: int = 0  # precondition: the stream's uid; 0: none


class ProducerIds(Command, tag=9, frozen=True):
    """Allot `count` Kafka producer ids that were never allotted before. Detail: the first. Level
    3."""

    count: int
    now_ms: int


class Bundle(Command, tag=99, frozen=True, gc=False):
    """Appends of one turn in one log entry, at most `BUNDLE_COMMANDS_MAX`. Each is judged and
    answered as if it were alone, in order. A batch's place is the entry's place plus its number
    here. The reply's detail has the replies. Level 3 with a `Produce`, 4 with an `AppendIf`."""

    commands: list[Append | AppendIf | Produce]
