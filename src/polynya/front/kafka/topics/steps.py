"""The steps of creations, changes and deletions: commands in the meta group and in those of the
partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.names import partition_of, spelled_name
from polynya.front.kafka.configs import CONTENT_TYPE, profile_of, segments_of
from polynya.front.kafka.topics import profile_change
from polynya.front.kafka.topics.producers import DeletedTopics, allot
from polynya.front.kafka.topics.profile_change import NotChanged
from polynya.local.api import Refusal, StreamInfo
from polynya.service.api import Service
from polynya.stream.command import Command
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.features.profiles.commands import SetProfile
from polynya.stream.features.topics.commands import TopicChange, TopicDrop, TopicGone, TopicReady
from polynya.stream.features.topics.state import Topic, TopicNews, TopicState
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.headers import media_type
from polynya.wire.kafka.values import partition_type

META_GROUP = 0
_PATIENCE_SECONDS = 20.0
_AGAIN_SECONDS = 0.25
_AT_ONCE = 64  # streams that are created or deleted concurrently
log = logging.getLogger("polynya.kafka")


class TopicSource(Protocol):
    """The meta group, which has the topics, and settings."""

    async def entries(self, scope: str) -> dict[str, bytes]: ...

    async def call(self, command: Command) -> Reply: ...

    def is_here(self) -> bool:
        """Report whether this core acts for the group. Raise NotLeader while it has no leader."""
        ...

    async def topics(self, since: int, *, local: bool) -> TopicNews:
        """Return the topics that changed since a number; -1: all. `local`: of this node's
        replica."""
        ...


class GroupVoters(Protocol):
    """The nodes of the groups."""

    def voters_of(self, group: int) -> dict[int, bool]:
        """Return the nodes with a voter of a group; empty for a node alone."""
        ...


class TopicService(Service, Protocol):
    """The service, with what topics and producer ids need beyond streams."""

    @property
    def meta_group(self) -> TopicSource: ...

    @property
    def directory(self) -> GroupVoters: ...

    async def call(self, group: int, command: Command) -> Reply: ...

    async def epoch_end(self, name: str, epoch: int) -> int | Refusal:
        """Return the end of the records of a leader epoch; -1: the epoch has not begun."""
        ...

    groups: int

    def group_of(self, name: str) -> int: ...


class KnownTopics(Protocol):
    """The topics as a core knows them."""

    names: dict[str, Topic]

    async def refresh(self) -> None: ...


class TopicRefused(PolynyaError):
    """A topic cannot be changed as requested; the message says why."""


class TopicSteps:
    """The steps of changes: commands in the meta group and in those of the partitions."""

    def __init__(self, known: KnownTopics, service: TopicService) -> None:
        self._known, self._service = known, service
        self._deleted = DeletedTopics(service)

    def now_ms(self) -> int:
        return self._service.now_ms()

    async def changed(self, command: TopicChange) -> Topic | None:
        """Propose a change, and return the topic after it. None: the topic changed first, and is
        known again."""
        reply = await self.call(META_GROUP, command)
        await self._known.refresh()
        return self._known.names.get(command.name) if reply.code == Code.OK else None

    async def profiles_set(self, topic: Topic, commands: Iterable[SetProfile]) -> list[Reply]:
        """Propose commands, unless another core goes on with the topic's change."""

        def check() -> None:
            known = self._known.names.get(topic.name)
            if known is None or known.revision != topic.revision:
                raise Unavailable(f"topic '{topic.name}' changed meanwhile; retry")

        return await self.all_of(commands, check)

    async def call(self, group: int, command: Command) -> Reply:
        """Propose a step. Try again while nothing was applied: an election, or a new cluster that
        has not settled."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_SECONDS
        while True:
            try:
                return await self._service.call(group, command)
            except Unavailable:
                if loop.time() >= until:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)

    async def all_of(
        self,
        commands: Iterable[Create | Delete | SetProfile],
        check: Callable[[], None] = lambda: None,
    ) -> list[Reply]:
        """Propose the commands, some at a time, and return their replies in order. `check` is
        called before each."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(command: Create | Delete | SetProfile) -> Reply:
            async with gate:
                check()
                return await self.call(self._service.group_of(command.name), command)

        return await asyncio.gather(*map(one, commands))

    async def adoptable(self, name: str, stream: str) -> str:
        """Return the content type of a stream that can become a partition of a topic. Raises
        TopicRefused."""
        spelled = spelled_name(stream)
        info = await self._service.open(stream).info()
        if not isinstance(info, StreamInfo):
            raise TopicRefused(f"stream '{spelled}' does not exist: create it, then adopt it")
        if info.encoding == Encoding.KAFKA or partition_of(stream) is not None:
            raise TopicRefused(f"stream '{spelled}' is a partition of a topic already")
        if info.ttl_seconds is not None or info.expires_at_ms is not None:
            raise TopicRefused(f"stream '{spelled}' expires, which a partition does not")
        for topic in self._known.names.values():
            if topic.name != name and stream in topic.streams:
                raise TopicRefused(f"topic '{topic.name}' has adopted stream '{spelled}'")
        return media_type(info.content_type)

    async def go_on(self, topic: Topic) -> None:
        """Go on with a change of the profile that another core began."""
        try:
            await profile_change.go_on(self, topic)
        except NotChanged as why:
            log.warning("a change of a topic's profile is taken back", extra={"error": str(why)})

    async def create(self, topic: Topic) -> None:
        """Create the streams that are missing of a new or a growing topic."""
        service = self._service
        configs = dict(topic.configs)
        content_type = partition_type(configs.get(CONTENT_TYPE, ""))
        segments, profile = segments_of(configs), profile_of(configs)
        names = topic.own_streams(topic.partitions if topic.growing else 0)
        # A producer that runs while a topic is deleted and created again goes on with its sequence.
        # In another topic each producer begins at 0, so batches in flight do not overtake the first.
        older = await self._deleted.has(topic.name)
        newest_id = await allot(self, 1) if older else -1
        replies = await self.all_of(
            Create(
                name,
                service.now_ms(),
                content_type,
                Encoding.KAFKA,
                segments=segments,
                profile=profile,
                producer_id_max=newest_id,
            )
            for name in names
        )
        made = [
            (name, reply.uid)
            for name, reply in zip(names, replies, strict=True)
            if reply.code == Code.CREATED
        ]
        if any(reply.code not in (Code.CREATED, Code.EXISTS) for reply in replies):
            await self._give_up(topic, made)
            return
        count = max(topic.partitions, topic.growing)
        ready = await self.call(META_GROUP, TopicReady(topic.name, topic.id, count))
        if ready.code != Code.OK:  # dropped meanwhile, and the deletion may not have seen these
            await self.delete(topic, made)

    async def _give_up(self, topic: Topic, made: list[tuple[str, int]]) -> None:
        """End a creation or growth: a stream of another kind has the name of a partition."""
        if topic.state == TopicState.CREATING:
            await self.call(META_GROUP, TopicDrop(topic.name, topic.id))
            await self.delete(topic, made)
            return
        same = TopicChange(topic.name, topic.id, topic.revision, topic.partitions, topic.configs)
        await self.call(META_GROUP, same)
        await self._delete_streams(made)
        raise TopicRefused(
            f"topic '{topic.name}' cannot grow: a stream under kafka/{topic.name}/ exists and is "
            "no partition, or a limit is reached"
        )

    async def delete(self, topic: Topic, made: list[tuple[str, int]] | None = None) -> None:
        """Delete the streams of a dropped topic, those of `made` alone if given, then the topic."""
        if made is None:  # else no producer wrote to it
            await self._deleted.add(topic.name)
        await self._delete_streams(
            [(name, 0) for name in topic.own_streams()] if made is None else made
        )
        await self.call(META_GROUP, TopicGone(topic.name, topic.id))

    async def _delete_streams(self, streams: list[tuple[str, int]]) -> None:
        """Delete streams by name and uid; uid 0 is any."""
        now_ms = self._service.now_ms()
        await self.all_of(Delete(name, now_ms, uid) for name, uid in streams)
