"""The topics as one core knows them, and the steps that create and delete them.

The meta group has the truth. A core reads its node's replica, and asks the leader for a topic that
it does not know. Any core that finds a topic between two steps (`polynya.stream.rules.topics`)
finishes it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from typing import Protocol

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.names import partition_name
from polynya.service.api import Service
from polynya.stream.commands import (
    Command,
    Create,
    Delete,
    Encoding,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.replies import Code, Reply
from polynya.stream.rules.topics import Topic, TopicState
from polynya.wire.kafka.values import partition_type

META_GROUP = 0
CONTENT_TYPE = "content.type"  # the config of a topic that has the content type of its values
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_FRESH_SECONDS = 0.5  # a list of topics may be this old
_FINISH_SECONDS = 5.0
_PATIENCE_SECONDS = 20.0
_AGAIN_SECONDS = 0.25
_AT_ONCE = 64  # streams that are created or deleted concurrently
log = logging.getLogger("polynya.kafka")


class TopicService(Service, Protocol):
    """The service, with what topics and producer ids need beyond streams."""

    async def call(self, group: int, command: Command) -> Reply: ...

    async def topics(self, *, local: bool) -> list[Topic]:
        """Return the topics: of this node's replica, or as of now."""
        ...

    groups: int

    def group_of(self, name: str) -> int: ...

    def home_of(self, group: int) -> int: ...

    @property
    def core(self) -> int: ...


def is_topic_name(name: str) -> bool:
    """Report whether Kafka allows the name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


class TopicCatalog:
    """The known topics of one core."""

    def __init__(self, service: TopicService, new_id: Callable[[], bytes]) -> None:
        self.names: dict[str, Topic] = {}
        self.ids: dict[bytes, Topic] = {}
        self.version = 0  # grows when something changed
        self._service = service
        self._new_id = new_id
        self._read_at = -_FRESH_SECONDS
        self._busy: dict[str, asyncio.Lock] = {}

    def known(self, name: str) -> Topic | None:
        """Return a ready topic without asking anybody."""
        topic = self.names.get(name)
        return topic if topic is not None and topic.state == TopicState.READY else None

    async def refresh(self, *, local: bool = False) -> None:
        """Read the topics. `local`: accept what this node knows, or what was read just now."""
        now = asyncio.get_running_loop().time()
        if local and now - self._read_at < _FRESH_SECONDS:
            return
        found = await self._service.topics(local=local)
        self._read_at = now
        names = {topic.name: topic for topic in found}
        if names != self.names:
            self.names = names
            self.ids = {topic.id: topic for topic in found}
            self.version += 1

    async def find(self, name: str) -> Topic | None:
        """Return a topic that is ready, after finishing its creation if need be; None: there is
        none."""
        topic = self.known(name)
        if topic is None:
            await self.refresh()
            topic = self.names.get(name)
            if topic is not None and topic.state != TopicState.READY:
                await self.finish(topic)
                await self.refresh()
            topic = self.known(name)
        return topic

    async def find_id(self, id_: bytes) -> Topic | None:
        """Return the ready topic with this id."""
        if id_ not in self.ids:
            await self.refresh()
        topic = self.ids.get(id_)
        return None if topic is None else await self.find(topic.name)

    async def create(self, name: str, partitions: int, configs: list[tuple[str, str]]) -> int:
        """Create a topic and its streams. Return CREATED, EXISTS or TOO_MANY."""
        put = TopicPut(name, self._new_id(), partitions, configs, self._service.now_ms())
        reply = await self._call(META_GROUP, put)
        await self.refresh()
        topic = self.names.get(name)
        if topic is not None and topic.state != TopicState.READY:
            await self.finish(topic)
            await self.refresh()
        return reply.code

    async def drop(self, topic: Topic) -> None:
        """Delete a topic and its streams."""
        await self._call(META_GROUP, TopicDrop(topic.name, topic.id))
        await self._delete(topic)
        await self.refresh()

    async def finish(self, topic: Topic) -> None:
        """Take the last step of a creation or a deletion that somebody began."""
        lock = self._busy.setdefault(topic.name, asyncio.Lock())
        try:
            async with lock:
                if topic.state == TopicState.DROPPED:
                    await self._delete(topic)
                elif topic.state == TopicState.CREATING:
                    await self._create(topic)
        finally:
            self._busy.pop(topic.name, None)

    async def finish_all(self) -> None:
        """Finish all topics on the core that leads the meta group, now and then. Run until
        cancelled."""
        while True:
            try:
                if self._service.home_of(META_GROUP) == self._service.core:
                    await self.refresh(local=True)
                    for topic in [
                        each for each in self.names.values() if each.state != TopicState.READY
                    ]:
                        log.info(
                            "finishing a topic", extra={"topic": topic.name, "state": topic.state}
                        )
                        await self.finish(topic)
            except PolynyaError as fault:
                log.info("a topic could not be finished; retrying", extra={"error": str(fault)})
            await asyncio.sleep(_FINISH_SECONDS)

    async def _create(self, topic: Topic) -> None:
        service = self._service
        content_type = partition_type(dict(topic.configs).get(CONTENT_TYPE, ""))
        made = await self._of_all(
            Create(
                partition_name(topic.name, number), service.now_ms(), content_type, Encoding.KAFKA
            )
            for number in range(topic.partitions)
        )
        if any(reply.code not in (Code.CREATED, Code.EXISTS) for reply in made):
            # A stream of another kind has the name of a partition: the topic cannot be.
            await self._call(META_GROUP, TopicDrop(topic.name, topic.id))
            await self._delete(topic, [reply.uid for reply in made if reply.code == Code.CREATED])
            return
        ready = await self._call(META_GROUP, TopicReady(topic.name, topic.id))
        if ready.code != Code.OK:  # dropped meanwhile, and the deletion may not have seen these
            await self._delete(topic, [reply.uid for reply in made if reply.code == Code.CREATED])

    async def _delete(self, topic: Topic, uids: list[int] | None = None) -> None:
        """Delete the streams of a dropped topic, those of `uids` alone if given, then the topic."""
        service = self._service
        names = [partition_name(topic.name, number) for number in range(topic.partitions)]
        if uids is None:
            await self._of_all(Delete(name, service.now_ms()) for name in names)
        else:
            await self._of_all(
                Delete(name, service.now_ms(), uid) for name in names for uid in uids
            )
        await self._call(META_GROUP, TopicGone(topic.name, topic.id))

    async def _call(self, group: int, command: Command) -> Reply:
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

    async def _of_all(self, commands: Iterable[Create | Delete]) -> list[Reply]:
        """Propose the commands, some at a time, and return their replies in order."""
        service, gate = self._service, asyncio.Semaphore(_AT_ONCE)

        async def one(command: Create | Delete) -> Reply:
            async with gate:
                return await self._call(service.group_of(command.name), command)

        return await asyncio.gather(*map(one, commands))
