"""The commands of Kafka consumer groups: tags 130-139, level 3."""

from __future__ import annotations

import msgspec

from polynya.stream.command import Command


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


class OffsetEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A committed offset of one partition."""

    topic: bytes  # the topic's id
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


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


class CommitOffsets(Command, tag=131, frozen=True, gc=False):
    """Commit offsets of a consumer group. Level 3.

    FENCED: the generation is not the group's. `generation` -1 without a member: a group without
    members accepts it, and it creates the group."""

    id: str
    now_ms: int
    generation: int
    member: str
    offsets: list[OffsetEntry]


class ConsumerGroupDrop(Command, tag=132, frozen=True, gc=False):
    """Delete a consumer group without members and its offsets. Level 3."""

    id: str


class DropOffsets(Command, tag=133, frozen=True, gc=False):
    """Delete committed offsets of some partitions: (topic id, partition). Level 3."""

    id: str
    places: list[tuple[bytes, int]]


class ExpireOffsets(Command, tag=134, frozen=True, gc=False):
    """Delete the offsets of a group without members that are older than `before_ms`. Level 3.

    A group that has no offsets then is deleted."""

    id: str
    before_ms: int


class ForgetTopic(Command, tag=135, frozen=True, gc=False):
    """Delete the committed offsets of a deleted topic in all groups of this Raft group. Level 3."""

    topic: bytes
