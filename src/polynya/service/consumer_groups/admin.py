"""Consumer groups for people: the list, one group with its lag, new offsets, deletion."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from polynya.base.names import spelled_name
from polynya.local.api import StreamInfo
from polynya.service.consumer_groups.coordinator import ConsumerGroupCoordinator
from polynya.service.node_service import NodeService
from polynya.stream.features.consumer_groups.calls import (
    Commit,
    Describe,
    DescribedMember,
    Description,
    Drop,
    FetchOffsets,
    GroupError,
    Offsets,
    Outcomes,
)
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.consumer_groups.state import CLASSIC, CONSUMER
from polynya.stream.features.consumer_groups.subscription import assigned_in
from polynya.stream.features.topics.state import Topic, TopicState

_AT_ONCE = 64  # tails that are read concurrently
_DEAD = "Dead"
KINDS = {CLASSIC: "classic", CONSUMER: "consumer"}


class GroupMemberDetails(msgspec.Struct):
    """A member, and the partitions that it reads, by topic."""

    id: str
    instance: str | None
    client_id: str
    host: str
    partitions: dict[str, list[int]]


class OffsetDetails(msgspec.Struct):
    """A partition that a group has committed, or reads."""

    topic: str
    partition: int
    offset: int | None
    end: int
    lag: int | None
    metadata: str = ""
    stream: str = ""  # as spelled in URLs


class GroupDetails(msgspec.Struct):
    """A group with members and offsets."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: list[GroupMemberDetails]
    offsets: list[OffsetDetails]
    kind: str = "classic"  # or "consumer": the group protocol of its members

    @property
    def lag(self) -> int:
        """The records that are not committed, of all partitions with an offset."""
        return sum(each.lag or 0 for each in self.offsets)


class Target(enum.Enum):
    """The positions that the offsets of a group can be set to."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"  # from the committed offset
    TIME = "time"  # the first record of a time in ms or later
    OFFSETS = "offsets"  # an offset of its own for each partition


class Wanted(msgspec.Struct, frozen=True):
    """A target, with its offset, distance or time."""

    target: Target
    number: int = 0
    offsets: dict[tuple[str, int], int] = {}  # of OFFSETS, by topic and partition


class NewOffset(msgspec.Struct):
    """A partition whose offset is reset. `before`: what was committed."""

    topic: str
    partition: int
    before: int | None
    offset: int
    end: int
    lag: int


class ResetRefused(Exception):
    """Offsets cannot be reset as requested; the message says why."""


Sees = Callable[[str], bool]
"""Reports whether the caller may know of a topic."""


def _all(topic: str) -> bool:
    return True


OffsetOfTime = Callable[[NodeService, StreamInfo, int], Awaitable[int]]
"""Returns the offset of the first record of a time in ms or later, else the end."""


class GroupRefused(Exception):
    """A coordinator refused."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        self.error = GroupError(error)


class GroupAdmin:
    """The verbs of administrators. They raise GroupRefused and PolynyaError."""

    def __init__(
        self, service: NodeService, groups: ConsumerGroupCoordinator, offset_of_time: OffsetOfTime
    ) -> None:
        self._service = service
        self._groups = groups
        self._offset_of_time = offset_of_time

    async def list_groups(self) -> list[Description]:
        """Return all groups of the cluster by id, without members."""
        found = await self._groups.list_groups(range(1, self._service.groups + 1))
        return sorted(found, key=lambda each: each.group)

    async def describe(self, id_: str, *, sees: Sees = _all) -> GroupDetails:
        """Return a group, with its offsets in the topics that the caller sees."""
        description = await self._groups.call(Describe(id_))
        assert isinstance(description, Description)
        if description.state == _DEAD:
            raise GroupRefused(GroupError.GROUP_ID_NOT_FOUND)
        topics = {topic.id: topic for topic in await self._topics(sees)}
        committed = {
            (topics[each.topic].name, each.partition): each
            for each in await self._offsets(id_)
            if each.topic in topics
        }
        members = [
            GroupMemberDetails(
                each.id,
                each.instance,
                each.client_id,
                each.client_host,
                _partitions_of_member(each, topics),
            )
            for each in description.members
        ]
        read = {
            (topic, number)
            for member in members
            for topic, numbers in member.partitions.items()
            for number in numbers
        }
        partitions = sorted({*committed, *read})
        info = await self._facts_of(topics.values(), partitions)
        rows = []
        for partition in partitions:
            entry, found = committed.get(partition), info.get(partition)
            if found is not None:
                offset = None if entry is None else entry.offset
                lag = (
                    None
                    if offset is None
                    else max(0, found.record - max(offset, found.first_record))
                )
                metadata = "" if entry is None else entry.metadata
                stream = spelled_name(found.name)
                rows.append(OffsetDetails(*partition, offset, found.record, lag, metadata, stream))
        kind = KINDS[description.kind]
        return GroupDetails(
            id_,
            description.state,
            description.protocol_type,
            description.protocol,
            members,
            rows,
            kind,
        )

    async def reset(
        self,
        id_: str,
        wanted: Wanted,
        topics: list[str] | None,
        *,
        dry_run: bool = False,
        sees: Sees = _all,
    ) -> list[NewOffset]:
        """Commit new offsets for partitions of the topics; by default of those with offsets.

        `topics`: names, each with `:0,2` behind it to name partitions. `dry_run`: commit nothing.
        Raises ResetRefused."""
        known = {topic.name: topic for topic in await self._topics(sees)}
        committed = {(each.topic, each.partition): each for each in await self._offsets(id_)}
        if wanted.offsets:
            topics = sorted(f"{name}:{number}" for name, number in wanted.offsets)
        if topics is None:
            ids = {topic for topic, _ in committed}
            topics = [name for name, topic in known.items() if topic.id in ids]
        partitions = [partition for each in topics for partition in _partitions_of(each, known)]
        if not partitions:
            raise ResetRefused(f"group '{id_}' has no offsets: name the topics")
        entries, rows = [], []
        for partition, info in (await self._facts_of(known.values(), partitions)).items():
            topic = known[partition[0]].id
            before = committed.get((topic, partition[1]))
            old = None if before is None else before.offset
            given = wanted.offsets.get(partition)
            offset = (
                await self._wanted(wanted, info, old) if given is None else _within(info, given)
            )
            if offset is not None:
                entries.append(OffsetEntry(topic, partition[1], offset, -1, ""))
                rows.append(NewOffset(*partition, old, offset, info.record, info.record - offset))
        if not rows:
            raise ResetRefused(
                "none of the partitions has a committed offset to start from: name a target such as "
                "'earliest'"
            )
        if not dry_run:
            await self._outcome(Commit(id_, -1, "", None, entries))
        return rows

    async def _wanted(self, wanted: Wanted, info: StreamInfo, before: int | None) -> int | None:
        """Resolve a reset target to an existing offset. None: a relative target, and nothing is
        committed."""
        if wanted.target == Target.TIME:
            return await self._offset_of_time(self._service, info, wanted.number)
        if wanted.target == Target.SHIFT and before is None:
            return None
        at = {
            Target.EARLIEST: info.first_record,
            Target.LATEST: info.record,
            Target.OFFSET: wanted.number,
            Target.SHIFT: (before or 0) + wanted.number,
        }[wanted.target]
        return _within(info, at)

    async def delete(self, id_: str) -> None:
        """Delete a group without members."""
        await self._outcome(Drop(id_))

    async def _outcome(self, call: Commit | Drop) -> None:
        answer = await self._groups.call(call)
        assert isinstance(answer, Outcomes)
        if answer.errors[0]:
            raise GroupRefused(answer.errors[0])

    async def _offsets(self, id_: str) -> list[OffsetEntry]:
        answer = await self._groups.call(FetchOffsets(id_))
        assert isinstance(answer, Offsets)
        return answer.entries

    async def _topics(self, sees: Sees) -> list[Topic]:
        news = await self._service.meta_group.topics(-1)
        return [
            topic for topic in news.topics if topic.state == TopicState.READY and sees(topic.name)
        ]

    async def _facts_of(
        self, topics: Iterable[Topic], partitions: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], StreamInfo]:
        """Return the facts of partitions that exist, in order."""
        gate, known = asyncio.Semaphore(_AT_ONCE), {topic.name: topic for topic in topics}

        async def one(partition: tuple[str, int]) -> tuple[tuple[str, int], object]:
            stream = known[partition[0]].stream(partition[1])
            async with gate:
                return partition, await self._service.info(stream)

        found = await asyncio.gather(*map(one, (each for each in partitions if each[0] in known)))
        return {partition: info for partition, info in found if isinstance(info, StreamInfo)}


def _partitions_of_member(
    member: DescribedMember, topics: Mapping[bytes, Topic]
) -> dict[str, list[int]]:
    """Return the partitions of a member by topic: the coordinator's, or those in the assignment of
    a classic one."""
    if member.assignment:
        return assigned_in(member.assignment)
    return {topics[topic].name: numbers for topic, numbers in member.owned if topic in topics}


def _within(info: StreamInfo, offset: int) -> int:
    """Return an offset that the partition has, or its end."""
    return min(max(offset, info.first_record), info.record)


def _partitions_of(spelled: str, known: dict[str, Topic]) -> list[tuple[str, int]]:
    """Return the partitions that `orders` or `orders:0,2` names. Raises ResetRefused."""
    name, colon, listed = spelled.partition(":")
    topic = known.get(name)
    if topic is None:
        raise ResetRefused(f"topic '{name}' does not exist: name existing topics")
    if not colon:
        return [(name, number) for number in range(topic.partitions)]
    numbers = listed.split(",")
    if not all(each.isascii() and each.isdigit() for each in numbers):
        raise ResetRefused(f"'{spelled}': expected TOPIC:N or TOPIC:N,N, as in 'orders:0,2'")
    found = sorted({int(each[:9]) for each in numbers})
    if found[-1] >= topic.partitions:
        raise ResetRefused(
            f"topic '{name}' has {topic.partitions} partitions, from 0; there is no {found[-1]}"
        )
    return [(name, number) for number in found]
