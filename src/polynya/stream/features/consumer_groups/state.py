"""The logged state of consumer groups, and their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

import msgspec

from polynya.stream.features.consumer_groups.commands import ConsumerGroupMember, OffsetEntry

_PLACE = Struct("<16sI")  # topic id, partition
_OFFSET = Struct("<qiq")  # offset, leader epoch, time of the commit; then the metadata
_GROUP_BYTES = 512  # of an object in memory, about
_ENTRY_BYTES = 160
CLASSIC, CONSUMER = 0, 1  # the kinds of groups, by the protocol of their members


class ConsumerGroup(msgspec.Struct, array_like=True, gc=False):
    """A consumer group. `offsets` maps a packed partition to a packed offset."""

    id: str
    generation: int = 0
    protocol_type: str = ""  # "": of consumers without membership, which only commit
    protocol: str = ""
    leader: str = ""
    members: list[ConsumerGroupMember] = []
    offsets: dict[bytes, bytes] = {}
    used_ms: int = 0  # of the last change: an idle group's offsets expire
    kind: int = CLASSIC

    @property
    def size(self) -> int:
        """The approximate bytes in memory."""
        members = sum(_member_bytes(member) for member in self.members)
        offsets = sum(len(value) for value in self.offsets.values())
        return _GROUP_BYTES + members + offsets + _ENTRY_BYTES * len(self.offsets)

    def entries(self) -> Iterator[tuple[OffsetEntry, int]]:
        """Yield the committed offsets, each with the time of its commit."""
        for place, value in self.offsets.items():
            topic, partition = _PLACE.unpack(place)
            offset, epoch, time_ms = _OFFSET.unpack_from(value)
            metadata = value[_OFFSET.size :].decode()
            yield OffsetEntry(topic, partition, offset, epoch, metadata), time_ms


class ConsumerGroups:
    """The consumer groups of one Raft group, and the bytes that they have in memory."""

    def __init__(self, groups: Iterable[ConsumerGroup] = ()) -> None:
        self.by_id = {group.id: group for group in groups}
        self.bytes = sum(group.size for group in self.by_id.values())

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

    def set_offset(self, group: ConsumerGroup, place: bytes, value: bytes) -> None:
        """Set a packed offset."""
        known = group.offsets.get(place)
        self.bytes += len(value) + _ENTRY_BYTES if known is None else len(value) - len(known)
        group.offsets[place] = value

    def drop_offsets(self, group: ConsumerGroup, places: Iterable[bytes]) -> int:
        """Remove packed partitions; return how many had an offset."""
        dropped = 0
        for place in places:
            value = group.offsets.pop(place, None)
            if value is not None:
                self.bytes -= len(value) + _ENTRY_BYTES
                dropped += 1
        return dropped


def _member_bytes(member: ConsumerGroupMember) -> int:
    return _GROUP_BYTES + len(member.metadata) + len(member.assignment)


def members_bytes(members: Iterable[ConsumerGroupMember]) -> int:
    """Return the approximate bytes of members in memory."""
    return sum(map(_member_bytes, members))


def place_of(topic: bytes, partition: int) -> bytes:
    """Pack a partition."""
    return _PLACE.pack(topic, partition)


def topic_of(place: bytes) -> bytes:
    """Return the topic id of a packed partition."""
    return place[:16]


def packed(entry: OffsetEntry, now_ms: int) -> bytes:
    """Pack an offset that is committed now."""
    return _OFFSET.pack(entry.offset, entry.leader_epoch, now_ms) + entry.metadata.encode()


def time_of(value: bytes) -> int:
    """Return the time of the commit of a packed offset."""
    time_ms: int = _OFFSET.unpack_from(value)[2]
    return time_ms
