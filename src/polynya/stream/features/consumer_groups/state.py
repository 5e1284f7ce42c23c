"""The logged state of consumer groups, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

import msgspec

from polynya.stream.features.consumer_groups.commands import ConsumerGroupMember, OffsetEntry

_PARTITION = Struct("<16sI")  # topic id, partition
_OFFSET = Struct("<qiq")  # offset, leader epoch, time of the commit; then the metadata
_GROUP_BYTES = 512  # of an object in memory, about
_ENTRY_BYTES = 160
CLASSIC, CONSUMER = 0, 1  # the kinds of groups, by the protocol of their members


class PendingOffsets(msgspec.Struct, array_like=True, gc=False):
    """The offsets that a producer's open transaction commits at its end."""

    number: int  # of the transaction
    since_ms: int  # the time of its first offsets here
    offsets: dict[bytes, bytes]  # packed, as those of the group


class PlainGroup(msgspec.Struct, array_like=True, gc=False):
    """A consumer group without transactions, as it is written: so these states have the same bytes
    as in releases that know none. `offsets` maps a packed partition to a packed offset."""

    id: str
    generation: int = 0
    protocol_type: str = ""  # "": of consumers without membership, which only commit
    protocol: str = ""
    leader: str = ""
    members: list[ConsumerGroupMember] = []
    offsets: dict[bytes, bytes] = {}
    used_ms: int = 0  # of the last change: an idle group's offsets expire
    kind: int = CLASSIC


class ConsumerGroup(PlainGroup, array_like=True, gc=False):
    """A consumer group, and its part of transactions, by the ids of their producers."""

    pending: dict[int, PendingOffsets] = {}
    # the number of the last ended transaction, and the time of its end, the oldest end first
    ended: dict[int, tuple[int, int]] = {}

    @property
    def is_shell(self) -> bool:
        """Report whether the group is kept only to refuse what comes late of ended transactions."""
        return bool(self.ended) and not (
            self.members or self.protocol_type or self.offsets or self.pending
        )

    @property
    def unstable(self) -> set[bytes]:
        """The packed partitions whose offsets an open transaction may change."""
        return {key for pending in self.pending.values() for key in pending.offsets}

    @property
    def size(self) -> int:
        """The approximate bytes in memory."""
        members = sum(_member_bytes(member) for member in self.members)
        offsets = sum(len(value) for value in self.offsets.values())
        pending = sum(pending_bytes(each) for each in self.pending.values())
        size = _GROUP_BYTES + members + offsets + _ENTRY_BYTES * len(self.offsets)
        return size + pending + _ENTRY_BYTES * len(self.ended)

    def as_written(self) -> PlainGroup:
        """Return the group as snapshots have it."""
        if self.pending or self.ended:
            return self
        return PlainGroup(*(getattr(self, field) for field in PlainGroup.__struct_fields__))

    def entries(self) -> Iterator[tuple[OffsetEntry, int]]:
        """Yield the committed offsets, each with the time of its commit."""
        for key, value in self.offsets.items():
            topic, partition = _PARTITION.unpack(key)
            offset, epoch, time_ms = _OFFSET.unpack_from(value)
            metadata = value[_OFFSET.size :].decode()
            yield OffsetEntry(topic, partition, offset, epoch, metadata), time_ms


class ConsumerGroups:
    """The consumer groups of one Raft group, and the bytes that they have in memory."""

    def __init__(self, groups: Iterable[ConsumerGroup] = ()) -> None:
        self.by_id = {group.id: group for group in groups}
        self.bytes = sum(group.size for group in self.by_id.values())
        # those with offsets of open transactions
        self.undecided = {id_: group for id_, group in self.by_id.items() if group.pending}

    def __len__(self) -> int:
        return len(self.by_id)

    def get(self, id_: str) -> ConsumerGroup | None:
        return self.by_id.get(id_)

    def add(self, group: ConsumerGroup) -> None:
        self.by_id[group.id] = group
        self.bytes += group.size

    def remove(self, group: ConsumerGroup) -> None:
        del self.by_id[group.id]
        self.bytes -= group.size

    def set_members(self, group: ConsumerGroup, members: list[ConsumerGroupMember]) -> None:
        """Replace the members of a group."""
        self.bytes += members_bytes(members) - members_bytes(group.members)
        group.members = members

    def set_offset(self, group: ConsumerGroup, key: bytes, value: bytes) -> None:
        """Set a packed offset."""
        known = group.offsets.get(key)
        self.bytes += len(value) + _ENTRY_BYTES if known is None else len(value) - len(known)
        group.offsets[key] = value

    def drop_offsets(self, group: ConsumerGroup, keys: Iterable[bytes]) -> int:
        """Remove packed partitions; return how many had an offset."""
        dropped = 0
        for key in keys:
            value = group.offsets.pop(key, None)
            if value is not None:
                self.bytes -= len(value) + _ENTRY_BYTES
                dropped += 1
        return dropped

    # --- transactions -----------------------------------------------------------------------------

    def set_pending(self, group: ConsumerGroup, producer: int, pending: PendingOffsets) -> None:
        """Set the offsets that a producer's transaction commits at its end."""
        self.take_pending(group, producer)
        group.pending[producer] = pending
        self.undecided[group.id] = group
        self.bytes += pending_bytes(pending)

    def take_pending(self, group: ConsumerGroup, producer: int) -> PendingOffsets | None:
        """Remove a producer's pending offsets, and return them."""
        pending = group.pending.pop(producer, None)
        if pending is not None:
            self.bytes -= pending_bytes(pending)
            if not group.pending:
                del self.undecided[group.id]
        return pending

    def drop_pending(
        self, group: ConsumerGroup, keys: Iterable[bytes], before_ms: int | None = None
    ) -> int:
        """Remove packed partitions from all pending offsets: those older than `before_ms`, or all.
        Return how many."""
        dropped = 0
        for pending in group.pending.values():
            for key in keys:
                value = pending.offsets.get(key)
                if value is not None and (before_ms is None or time_of(value) < before_ms):
                    del pending.offsets[key]
                    self.bytes -= len(value) + _ENTRY_BYTES
                    dropped += 1
        return dropped

    def set_ended(self, group: ConsumerGroup, producer: int, number: int, now_ms: int) -> None:
        """Keep the number of a producer's last ended transaction."""
        known = group.ended.pop(producer, None)
        group.ended[producer] = (number, now_ms)
        self.bytes += _ENTRY_BYTES * (known is None)

    def drop_ended(self, group: ConsumerGroup, before_ms: int) -> int:
        """Forget the transactions that ended before a time; return how many."""
        dropped = 0
        while group.ended:
            producer = next(iter(group.ended))
            if group.ended[producer][1] >= before_ms:
                break
            del group.ended[producer]
            self.bytes -= _ENTRY_BYTES
            dropped += 1
        return dropped


def pending_bytes(pending: PendingOffsets) -> int:
    """Return the approximate bytes of pending offsets in memory."""
    offsets = sum(len(value) for value in pending.offsets.values())
    return _GROUP_BYTES + offsets + _ENTRY_BYTES * len(pending.offsets)


def _member_bytes(member: ConsumerGroupMember) -> int:
    return _GROUP_BYTES + len(member.metadata) + len(member.assignment)


def members_bytes(members: Iterable[ConsumerGroupMember]) -> int:
    """Return the approximate bytes of members in memory."""
    return sum(map(_member_bytes, members))


def partition_key(topic: bytes, partition: int) -> bytes:
    """Pack a partition."""
    return _PARTITION.pack(topic, partition)


def unpacked_key(key: bytes) -> tuple[bytes, int]:
    """Return the topic id and the number of a packed partition."""
    topic, partition = _PARTITION.unpack(key)
    return topic, partition


def topic_of(key: bytes) -> bytes:
    """Return the topic id of a packed partition."""
    return key[:16]


def packed(entry: OffsetEntry, now_ms: int) -> bytes:
    """Pack an offset that is committed now."""
    return _OFFSET.pack(entry.offset, entry.leader_epoch, now_ms) + entry.metadata.encode()


def time_of(value: bytes) -> int:
    """Return the time of the commit of a packed offset."""
    time_ms: int = _OFFSET.unpack_from(value)[2]
    return time_ms
