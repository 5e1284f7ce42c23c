"""The calls to a group's coordinator, and its answers. They travel between cores and nodes."""

from __future__ import annotations

import enum

import msgspec

from polynya.stream.features.consumer_groups.commands import OffsetEntry


class GroupError(enum.IntEnum):
    """The outcomes of calls, with Kafka's numbers."""

    UNKNOWN = -1
    NONE = 0
    COORDINATOR_LOADING = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    INVALID_REQUEST = 42
    INVALID_TXN_STATE = 48
    POLICY_VIOLATION = 44
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    INVALID_REGULAR_EXPRESSION = 128


class Join(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Join a group, or join it again."""

    group: str
    member: str  # "": a new member
    instance: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: list[tuple[str, bytes]]  # name and metadata, the preferred one first
    session_timeout_ms: int
    rebalance_timeout_ms: int
    takes_id_first: bool = False  # MEMBER_ID_REQUIRED is understood
    skips_assignment: bool = False


class Sync(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Get the own assignment; the leader brings those of all members."""

    group: str
    generation: int
    member: str
    instance: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: list[tuple[str, bytes]]


class Heartbeat(msgspec.Struct, array_like=True, tag=3, gc=False):
    """Keep the membership."""

    group: str
    generation: int
    member: str
    instance: str | None


class Leave(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Remove members: (member id, instance id)."""

    group: str
    members: list[tuple[str, str | None]]


class Commit(msgspec.Struct, array_like=True, tag=5, gc=False):
    """Commit offsets."""

    group: str
    generation: int
    member: str
    instance: str | None
    offsets: list[OffsetEntry]


class CommitInTransaction(msgspec.Struct, array_like=True, tag=11, gc=False):
    """Commit offsets at the end of a transaction of a producer. Behind COORDINATOR_LOADING is the
    number of an earlier transaction that is in the way."""

    group: str
    producer: int
    epoch: int
    number: int  # of the transaction
    generation: int
    member: str
    instance: str | None
    offsets: list[OffsetEntry]


class FetchOffsets(msgspec.Struct, array_like=True, tag=6, gc=False):
    """Read the committed offsets: all of the group. A member of the consumer protocol names itself
    and its epoch."""

    group: str
    member: str = ""
    epoch: int = -1


class Describe(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Describe a group."""

    group: str


class Drop(msgspec.Struct, array_like=True, tag=8, gc=False):
    """Delete a group without members."""

    group: str


class DropPartitionOffsets(msgspec.Struct, array_like=True, tag=9, gc=False):
    """Delete offsets of partitions: (topic name, topic id, partition)."""

    group: str
    partitions: list[tuple[str, bytes, int]]


class ListAll(msgspec.Struct, array_like=True, tag=10, gc=False):
    """List the consumer groups of some Raft groups."""

    raft_groups: list[int]


class ConsumerHeartbeat(msgspec.Struct, array_like=True, tag=12, gc=False):
    """Join, keep the membership, confirm partitions, or leave: the consumer protocol (KIP-848).
    None: as in the member's last heartbeat."""

    group: str
    member: str
    epoch: int  # 0: join; -1: leave; -2: leave, and come back as this static member
    instance: str | None
    client_id: str
    client_host: str
    rack: str | None
    rebalance_timeout_ms: int  # -1: as before
    topics: list[str] | None
    regex: str | None
    reads: list[str] | None  # the prefixes that the caller may read; None: all
    assignor: str | None
    claim: list[tuple[bytes, list[int]]] | None  # the partitions that it has

    @property
    def is_full(self) -> bool:
        """Report whether the member said all, as it does after a fault."""
        has_topics = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms >= 0 and has_topics and self.claim is not None


Call = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | Commit
    | CommitInTransaction
    | FetchOffsets
    | Describe
    | Drop
    | DropPartitionOffsets
    | ListAll
    | ConsumerHeartbeat
)


class Joined(msgspec.Struct, array_like=True, tag=1, gc=False):
    """The answer to `Join`. The leader gets the members: id, instance, metadata."""

    error: int = 0
    member: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: list[tuple[str, str | None, bytes]] = []
    skips_assignment: bool = False


class Synced(msgspec.Struct, array_like=True, tag=2, gc=False):
    """The answer to `Sync`."""

    error: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Outcomes(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The answer of calls that return errors alone: one, or one for each thing that was named."""

    errors: list[int]


class Offsets(msgspec.Struct, array_like=True, tag=4, gc=False):
    """The answer to `FetchOffsets`. `unstable`: the partitions, by topic id and number, whose
    offsets an open transaction may change."""

    entries: list[OffsetEntry]
    unstable: list[tuple[bytes, int]] = []


class DescribedMember(msgspec.Struct, array_like=True, gc=False):
    """A member as administrators see it."""

    id: str
    instance: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes
    # of a member of the consumer protocol; partitions by topic id
    epoch: int = -1
    rack: str | None = None
    topics: list[str] = []
    regex: str = ""
    owned: list[tuple[bytes, list[int]]] = []
    target: list[tuple[bytes, list[int]]] = []


class Description(msgspec.Struct, array_like=True, tag=5, gc=False):
    """The answer to `Describe`, and an entry of `Listing` without members."""

    group: str
    state: str  # "Dead": there is no such group
    protocol_type: str = ""
    protocol: str = ""
    members: list[DescribedMember] = []
    kind: int = 0  # `state.CLASSIC` or `state.CONSUMER`
    epoch: int = 0  # of the group, in the consumer protocol


class Listing(msgspec.Struct, array_like=True, tag=6, gc=False):
    """The answer to `ListAll`."""

    groups: list[Description]


class HeartbeatAnswer(msgspec.Struct, array_like=True, tag=8, gc=False):
    """The answer to `ConsumerHeartbeat`. `assignment`: partitions by topic id; None: as before."""

    error: int = 0
    message: str | None = None
    member: str = ""
    epoch: int = 0
    interval_ms: int = 0
    assignment: list[tuple[bytes, list[int]]] | None = None


Answer = Joined | Synced | Outcomes | Offsets | Description | Listing | HeartbeatAnswer
