"""The commands of Kafka consumer groups: tags 130-139, of levels 3 and 4; and of their offsets in
transactions."""

from __future__ import annotations

import msgspec

from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL, TRANSACTION_LEVEL
from polynya.base.limits import GROUP_ID_BYTES_MAX, PARTITIONS_MAX
from polynya.stream.command import Command, command
from polynya.stream.command_validation import DATE, NONE, TIME, WIDE, WORD, bounded, first_fault
from polynya.stream.features.consumer_groups.modern_records import records_fault


@bounded({"session_timeout_ms": WORD, "rebalance_timeout_ms": WORD})
class ConsumerGroupMember(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A member of a consumer group, as logged at the end of a rebalance."""

    id: str
    instance: str | None  # of a static member
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes  # of the selected protocol: the client's subscription
    assignment: bytes


@bounded(
    {
        "partition": (0, PARTITIONS_MAX),
        "offset": (-(2**63), 2**63 - 1),
        "leader_epoch": (-(2**31), 2**31 - 1),
    }
)
class OffsetEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A committed offset of one partition."""

    topic: bytes  # the topic's id
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


def _consumer_group(
    command: ConsumerGroupPut
    | ConsumerPut
    | CommitOffsets
    | ConsumerGroupDrop
    | DropOffsets
    | TxnOffsets,
) -> str:
    if not 0 < len(command.id) <= GROUP_ID_BYTES_MAX:
        return f"the id of a consumer group has 1 to {GROUP_ID_BYTES_MAX} characters"
    match command:
        case ConsumerGroupPut():
            return first_fault(command.members)
        case ConsumerPut():
            faults = (records_fault(each.metadata, each.assignment) for each in command.members)
            return first_fault(command.members) or next(filter(None, faults), "")
        case CommitOffsets() | TxnOffsets():
            strange = [each for each in command.offsets if len(each.topic) != 16]
            return first_fault(command.offsets) or ("a topic id has 16 bytes" if strange else "")
        case DropOffsets():
            strange_partitions = [
                partition
                for partition in command.partitions
                if len(partition[0]) != 16 or not 0 <= partition[1] <= PARTITIONS_MAX
            ]
            return (
                "a partition is a topic id of 16 bytes and a number" if strange_partitions else ""
            )
    return ""


@command(since=3, bounds={"now_ms": TIME, "generation": (0, 2**31 - 1)}, check=_consumer_group)
class ConsumerGroupPut(Command, tag=130, frozen=True, gc=False):
    """Set the members of a consumer group at the end of a rebalance. Level 3.

    FENCED: the group has a later generation. Without members the group is empty."""

    id: str
    now_ms: int
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: list[ConsumerGroupMember]


@command(since=3, bounds={"now_ms": TIME, "generation": (-1, 2**31 - 1)}, check=_consumer_group)
class CommitOffsets(Command, tag=131, frozen=True, gc=False):
    """Commit offsets of a consumer group. Level 3.

    FENCED: the generation is not the group's. `generation` -1 without a member: a group without
    members accepts it, and it creates the group."""

    id: str
    now_ms: int
    generation: int
    member: str
    offsets: list[OffsetEntry]


@command(since=3, bounds=NONE, check=_consumer_group)
class ConsumerGroupDrop(Command, tag=132, frozen=True, gc=False):
    """Delete a consumer group without members and its offsets. Level 3."""

    id: str


@command(since=3, bounds=NONE, check=_consumer_group)
class DropOffsets(Command, tag=133, frozen=True, gc=False):
    """Delete committed offsets of some partitions: (topic id, partition). Level 3."""

    id: str
    partitions: list[tuple[bytes, int]]


@command(since=3, bounds={"before_ms": DATE})
class ExpireOffsets(Command, tag=134, frozen=True, gc=False):
    """Delete the offsets of a group without members that are older than `before_ms`. Level 3.

    A group that has no offsets then is deleted."""

    id: str
    before_ms: int


def _forgotten(command: ForgetTopic) -> str:
    return "" if len(command.topic) == 16 else "the id of a topic has 16 bytes"


@command(since=3, bounds=NONE, check=_forgotten)
class ForgetTopic(Command, tag=135, frozen=True, gc=False):
    """Delete the committed offsets of a deleted topic in all groups of this Raft group. Level 3."""

    topic: bytes


@command(
    since=CONSUMER_PROTOCOL_LEVEL,
    bounds={"now_ms": TIME, "epoch": (0, 2**31 - 1)},
    check=_consumer_group,
)
class ConsumerPut(Command, tag=136, frozen=True, gc=False):
    """Set members of a group of the consumer protocol, and remove some. Level 4.

    FENCED: the group has a later epoch, or members of the classic protocol. `members` are those
    that changed; their `metadata` is a `Subscription`, their `assignment` are `Holdings`."""

    id: str
    now_ms: int
    epoch: int  # of the group
    assignor: str
    members: list[ConsumerGroupMember]
    gone: list[str]


@command(
    since=TRANSACTION_LEVEL,
    bounds={
        "now_ms": TIME,
        "producer": WIDE,
        "epoch": (0, 2**15 - 1),
        "number": (1, 2**62),
        "generation": (-1, 2**31 - 1),
    },
    check=_consumer_group,
)
class TxnOffsets(Command, tag=115, frozen=True, gc=False):
    """Commit offsets of a consumer group at the end of a transaction, with its records. Level 4.

    TXN_ENDED: the transaction has ended here. NOT_YET: an earlier one of the producer has not.
    NOT_FOUND and FENCED: as of `CommitOffsets`; without a member any group accepts it."""

    id: str
    now_ms: int
    producer: int
    epoch: int
    number: int
    generation: int
    member: str
    offsets: list[OffsetEntry]
