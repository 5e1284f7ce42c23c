"""The members of a group of the consumer protocol (KIP-848), in memory and as logged. Pure.

The log keeps them as `ConsumerGroupMember`, as it keeps classic ones: `metadata` is a
`Subscription`, and `assignment` are `Holdings`, both in msgpack. docs/formats/group-state.md has
their fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from polynya.stream.features.consumer_groups.assignors import TopicPartition, TopicPartitions
from polynya.stream.features.consumer_groups.calls import ConsumerHeartbeat, GroupError
from polynya.stream.features.consumer_groups.commands import ConsumerGroupMember
from polynya.stream.features.consumer_groups.modern_records import (
    Holdings,
    Numbered,
    Subscription,
    may_commit,
)

LEFT_EPOCH, LEAVE_EPOCH, JOIN_EPOCH = -2, -1, 0  # a static member that comes back; leave; join


class ModernMember:
    """A member of a group. `claim`: the partitions that it said it has since it was last given
    some; None: it said nothing."""

    __slots__ = (
        "claim",
        "client_host",
        "client_id",
        "deadline_ms",
        "epoch",
        "has_rejoined",
        "id",
        "instance",
        "names_bytes",
        "owned",
        "previous",
        "rebalance_timeout_ms",
        "revoke_by_ms",
        "revoking",
        "subscription",
        "target",
    )

    def __init__(self, id_: str, instance: str | None) -> None:
        self.id, self.instance = id_, instance
        self.client_id = self.client_host = ""
        self.rebalance_timeout_ms = 0
        self.subscription = Subscription([], "", None, "", None)
        self.names_bytes = 0
        self.epoch, self.previous = JOIN_EPOCH, -1
        self.has_rejoined = False  # the next heartbeat at its epoch ends all of `revoking`
        self.owned: dict[TopicPartition, int] = {}  # with the epoch of the assignment
        self.revoking: dict[TopicPartition, int] = {}
        self.target: TopicPartitions = frozenset()
        self.claim: set[TopicPartition] | None = None
        self.deadline_ms = 0  # of its session
        self.revoke_by_ms = 0  # 0: it has nothing to revoke

    @classmethod
    def logged(cls, stored: ConsumerGroupMember) -> ModernMember:
        """Return a member as the log has it."""
        made = cls(stored.id, stored.instance)
        made.client_id, made.client_host = stored.client_id, stored.client_host
        made.rebalance_timeout_ms = stored.rebalance_timeout_ms
        made.subscription = Subscription.unpacked(stored.metadata)
        made.names_bytes = sum(map(len, made.subscription.topics))
        holdings = Holdings.unpacked(stored.assignment)
        made.epoch, made.previous = holdings.epoch, holdings.previous
        made.has_rejoined = holdings.has_rejoined
        made.owned = _by_partition(holdings.owned)
        made.revoking = _by_partition(holdings.revoking)
        made.target = frozenset(
            (topic, number) for topic, numbers in holdings.target for number in numbers
        )
        return made

    def to_log(self) -> ConsumerGroupMember:
        holdings = Holdings(
            self.epoch,
            self.previous,
            self.has_rejoined,
            _by_topic(self.owned),
            _by_topic(self.revoking),
            sorted(numbers_by_topic(self.target).items()),
        )
        return ConsumerGroupMember(
            self.id,
            self.instance,
            self.client_id,
            self.client_host,
            0,  # the session's timeout is the group's
            self.rebalance_timeout_ms,
            msgspec.msgpack.encode(self.subscription),
            msgspec.msgpack.encode(holdings),
        )

    def update(self, call: ConsumerHeartbeat) -> bool:
        """Take over what a heartbeat says of the member; report whether its subscription or its
        preference of an assignor is another."""
        self.client_id, self.client_host = call.client_id, call.client_host
        if call.rebalance_timeout_ms >= 0:
            self.rebalance_timeout_ms = call.rebalance_timeout_ms
        known = self.subscription
        given = Subscription(
            known.topics if call.topics is None else sorted(set(call.topics)),
            known.regex if call.regex is None else call.regex,
            call.reads,
            known.assignor if call.assignor is None else call.assignor,
            known.rack if call.rack is None else call.rack,
        )
        self.subscription = given
        self.names_bytes = sum(map(len, given.topics))
        return given != msgspec.structs.replace(known, rack=given.rack)

    def is_repeated_by(self, call: ConsumerHeartbeat) -> bool:
        """Report whether a heartbeat at the epoch before may be a repeat: its answer was lost."""
        known = self.owned.keys() | self.revoking.keys()
        return 0 < call.epoch == self.previous and positions_of(call.claim or ()) <= known

    @property
    def subscription_bytes(self) -> int:
        """The bytes of the names in its subscription."""
        return self.names_bytes + len(self.subscription.regex)

    @property
    def is_stable(self) -> bool:
        """Report whether it has its target, and nothing to revoke."""
        return not self.revoking and self.owned.keys() == self.target


def commit_errors(
    member: ModernMember, epoch: int, partitions: Iterable[TopicPartition]
) -> Iterator[GroupError]:
    """Yield the error of a commit for each partition."""
    for partition in partitions:
        assigned = member.owned.get(partition, member.revoking.get(partition))
        is_valid = may_commit(epoch, member.epoch, assigned)
        yield GroupError.NONE if is_valid else GroupError.STALE_MEMBER_EPOCH


def fetch_error(member: ModernMember, epoch: int) -> GroupError:
    """Return the error of reading offsets: a member must have had a partition at this epoch."""
    assigned = [*member.owned.values(), *member.revoking.values()]
    is_valid = min([member.epoch, *assigned]) <= epoch <= member.epoch
    return GroupError.NONE if is_valid else GroupError.STALE_MEMBER_EPOCH


def positions_of(claim: Iterable[tuple[bytes, list[int]]]) -> set[TopicPartition]:
    """Return the partitions of a claim."""
    return {(topic, number) for topic, numbers in claim for number in numbers}


def numbers_by_topic(partitions: Iterable[TopicPartition]) -> dict[bytes, list[int]]:
    """Group partitions by topic, both in order."""
    found: dict[bytes, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def _by_topic(partitions: Mapping[TopicPartition, int]) -> Numbered:
    found: dict[bytes, list[tuple[int, int]]] = {}
    for (topic, number), epoch in sorted(partitions.items()):
        found.setdefault(topic, []).append((number, epoch))
    return list(found.items())


def _by_partition(numbered: Numbered) -> dict[TopicPartition, int]:
    return {(topic, number): epoch for topic, rows in numbered for number, epoch in rows}
