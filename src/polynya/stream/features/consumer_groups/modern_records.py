"""The logged state of a member of the consumer protocol: its subscription and its partitions.

The log keeps such a member as `ConsumerGroupMember`, as it keeps classic ones: `metadata` is a
`Subscription`, and `assignment` are `Holdings`, both in msgpack.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from polynya.base.names import topic_folder

Numbered = list[tuple[bytes, list[tuple[int, int]]]]
"""By topic id: partitions, and the member epochs at which they were assigned."""


class Subscription(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The subscription of a member."""

    topics: list[str]
    regex: str
    reads: list[str] | None  # prefixes of the streams that it may read; None: all
    assignor: str  # "": no preference
    rack: str | None

    @classmethod
    def unpacked(cls, data: bytes) -> Subscription:
        """Decode it. Raises msgspec.MsgspecError."""
        return msgspec.msgpack.decode(data, type=cls)

    def may_read(self, topic: str) -> bool:
        """Report whether the member may read a topic."""
        folder = topic_folder(topic)
        return self.reads is None or any(map(folder.startswith, self.reads))


class Holdings(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The partitions of a member: those that it has, those that it has to give up, and those that
    it shall have."""

    epoch: int
    previous: int
    has_rejoined: bool
    owned: Numbered
    revoking: Numbered
    target: list[tuple[bytes, list[int]]]

    @classmethod
    def unpacked(cls, data: bytes) -> Holdings:
        """Decode them. Raises msgspec.MsgspecError."""
        return msgspec.msgpack.decode(data, type=cls)

    def assigned(self) -> Mapping[tuple[bytes, int], int]:
        """Return the partitions that it has or has to give up, with their epochs."""
        return {
            (topic, number): epoch
            for rows in (self.owned, self.revoking)
            for topic, some in rows
            for number, epoch in some
        }


def may_commit(epoch: int, member_epoch: int, assigned: int | None) -> bool:
    """Report whether a member may commit a partition. At an earlier epoch than its own it may
    commit what it had then and still has: a commit and a heartbeat may cross (KIP-1251).
    `assigned`: the epoch at which it got the partition; None: it does not have it."""
    is_held = assigned is not None and assigned <= epoch < member_epoch
    return epoch == member_epoch or is_held


def records_fault(metadata: bytes, assignment: bytes) -> str:
    """Return why the two parts of a member cannot be decoded; "" if they can."""
    try:
        Subscription.unpacked(metadata)
        Holdings.unpacked(assignment)
    except msgspec.MsgspecError as error:
        return f"a member of the consumer protocol cannot be decoded: {error}"
    return ""
