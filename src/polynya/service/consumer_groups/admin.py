"""Consumer groups for people: the list, one group with its lag, new offsets, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from polynya.base.names import partition_name
from polynya.service.api import Facts
from polynya.service.consumer_groups.coordinator import GroupCoordinator
from polynya.service.routing.service import NodeService
from polynya.stream.consumer_groups.calls import (
    Commit,
    Describe,
    Description,
    Drop,
    FetchOffsets,
    GroupError,
    Offsets,
    Outcomes,
)
from polynya.stream.consumer_groups.subscription import assigned_in
from polynya.stream.group_commands import OffsetEntry
from polynya.stream.rules.topics import Topic, TopicState

EARLIEST, LATEST = "earliest", "latest"
_AT_ONCE = 64  # tails that are read concurrently
_DEAD = "Dead"


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


class GroupDetails(msgspec.Struct):
    """A group with members and offsets."""

    group: str
    state: str
    protocol_type: str
    protocol: str
    members: list[GroupMemberDetails]
    offsets: list[OffsetDetails]

    @property
    def lag(self) -> int:
        """The records that are not committed, of all partitions with an offset."""
        return sum(each.lag or 0 for each in self.offsets)


class GroupRefused(Exception):
    """A coordinator refused."""

    def __init__(self, error: int) -> None:
        super().__init__(error)
        self.error = GroupError(error)


class GroupAdmin:
    """The verbs of administrators. They raise GroupRefused and PolynyaError."""

    def __init__(self, service: NodeService, groups: GroupCoordinator) -> None:
        self._service = service
        self._groups = groups

    async def list_groups(self) -> list[Description]:
        """Return all groups of the cluster by id, without members."""
        found = await self._groups.list_groups(range(1, self._service.groups + 1))
        return sorted(found, key=lambda each: each.group)

    async def describe(self, id_: str, *, local: bool = False) -> GroupDetails:
        """Return a group. `local`: the ends of partitions may be slightly old."""
        told = await self._groups.call(Describe(id_))
        assert isinstance(told, Description)
        if told.state == _DEAD:
            raise GroupRefused(GroupError.GROUP_ID_NOT_FOUND)
        topics = {topic.id: topic for topic in await self._topics()}
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
                assigned_in(each.assignment),
            )
            for each in told.members
        ]
        read = {
            (topic, number)
            for member in members
            for topic, numbers in member.partitions.items()
            for number in numbers
        }
        places = sorted({*committed, *read})
        facts = await self._facts_of(places, local=local)
        rows = []
        for place in places:
            entry, found = committed.get(place), facts.get(place)
            if found is not None:
                offset = None if entry is None else entry.offset
                lag = (
                    None
                    if offset is None
                    else max(0, found.record - max(offset, found.first_record))
                )
                metadata = "" if entry is None else entry.metadata
                rows.append(OffsetDetails(*place, offset, found.record, lag, metadata))
        return GroupDetails(id_, told.state, told.protocol_type, told.protocol, members, rows)

    async def reset(self, id_: str, to: str | int, names: list[str] | None) -> list[OffsetDetails]:
        """Commit new offsets for all partitions of the topics; by default of those with offsets.

        `to`: EARLIEST, LATEST, or an offset, which is cut to what is there."""
        topics = {topic.name: topic for topic in await self._topics()}
        if names is None:
            ids = {entry.topic for entry in await self._offsets(id_)}
            names = [name for name, topic in topics.items() if topic.id in ids]
        missing = [name for name in names if name not in topics]
        if missing or not names:
            raise LookupError(missing[0] if missing else "")
        places = [(name, number) for name in names for number in range(topics[name].partitions)]
        facts = await self._facts_of(places)
        entries, rows = [], []
        for (name, number), found in facts.items():
            at = {EARLIEST: found.first_record, LATEST: found.record}.get(str(to))
            offset = at if at is not None else min(max(int(to), found.first_record), found.record)
            entries.append(OffsetEntry(topics[name].id, number, offset, -1, ""))
            rows.append(OffsetDetails(name, number, offset, found.record, found.record - offset))
        await self._outcome(Commit(id_, -1, "", None, entries))
        return rows

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

    async def _topics(self) -> list[Topic]:
        news = await self._service.topics(-1)
        return [topic for topic in news.topics if topic.state == TopicState.READY]

    async def _facts_of(
        self, places: Iterable[tuple[str, int]], *, local: bool = False
    ) -> dict[tuple[str, int], Facts]:
        """Return the facts of partitions that exist, in order."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(place: tuple[str, int]) -> tuple[tuple[str, int], object]:
            async with gate:
                return place, await self._service.facts(partition_name(*place), local=local)

        found = await asyncio.gather(*map(one, places))
        return {place: facts for place, facts in found if isinstance(facts, Facts)}
