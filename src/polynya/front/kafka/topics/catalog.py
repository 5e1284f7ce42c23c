"""The topics as one core knows them, and the steps that create, change and delete them.

The meta group has the truth. A core follows its node's replica by what changed since, and asks the
leader for a topic that it does not know. Any core that finds a topic between two steps
(`polynya.stream.features.topics.rules`) finishes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Mapping

import msgspec

from polynya.base.errors import PolynyaError, Unavailable
from polynya.base.names import partition_name
from polynya.front.kafka.configs import (
    CONTENT_TYPE,
    profile_of,
    rules_of,
)
from polynya.front.kafka.topics import profile_change
from polynya.front.kafka.topics.profile_change import NotChanged, is_abandoned
from polynya.front.kafka.topics.steps import META_GROUP, TopicRefused, TopicService, TopicSteps
from polynya.jobs import Failures, repeat
from polynya.routing.handle import StreamHandle
from polynya.stream.features.topics.commands import TopicChange, TopicDrop, TopicPut
from polynya.stream.features.topics.state import Topic, TopicNews, TopicState

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
# those that Kafka calls internal: what it keeps in them is in the nodes' logs here
_RESERVED = frozenset(
    ("__cluster_metadata", "__consumer_offsets", "__share_group_state", "__transaction_state")
)
_FRESH_SECONDS = 0.5  # a list of topics may be this old
_FINISH_SECONDS = 5.0
_FOLLOW_SECONDS = 1.0  # between two looks at this node's replica
_LIST_SECONDS = 1.0  # for the leader to answer for a list of all topics
log = logging.getLogger("polynya.kafka")


NAME_RULE = "a topic's name has 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"


def _metric_name(name: str) -> str:
    return name.replace(".", "_")


def is_topic_name(name: str) -> bool:
    """Report whether Kafka allows the name."""
    return _NAME.fullmatch(name) is not None and name not in (".", "..")


def acks_of(service: TopicService, topic: str) -> int:
    """Return on how many replicas a batch of a topic is when it is acknowledged: a majority."""
    voters = service.directory.voters_of(service.group_of(partition_name(topic, 0)))
    return len(voters) // 2 + 1


class Adoption(msgspec.Struct, frozen=True):
    """A topic to create over streams that exist: its first partitions, by canonical name."""

    streams: list[str]
    partitions: int = 0  # more than the streams: the others are created
    configs: dict[str, str] = {}


class OpenTopic:
    """A ready topic: the configs that are enforced when records arrive, and the handles of its
    partitions, which are opened when they are first used."""

    __slots__ = ("_handles", "_open", "rules", "topic")

    def __init__(self, topic: Topic, open_: Callable[[str], StreamHandle]) -> None:
        self.topic = topic
        self.rules = rules_of(topic.configs)
        self._open = open_
        self._handles: dict[int, StreamHandle] = {}

    def partition(self, number: int) -> StreamHandle | None:
        """Return the stream of a partition; None: there is none of this number."""
        found = self._handles.get(number)
        if found is None and 0 <= number < self.topic.partitions:
            found = self._handles[number] = self._open(self.topic.stream(number))
        return found


class TopicCatalog:
    """The known topics of one core."""

    def __init__(self, service: TopicService, new_id: Callable[[], bytes]) -> None:
        self.names: dict[str, Topic] = {}
        self.ids: dict[bytes, Topic] = {}
        self._alike: dict[str, set[str]] = {}  # a name without '.' -> the topics of this spelling
        self.version = -1  # the number of the last change that is known here
        self._open: dict[str | bytes, OpenTopic] = {}  # those that were used, by name and by id
        self._service = service
        self._new_id = new_id
        self._read_at = -_FRESH_SECONDS
        self._listing = asyncio.Lock()
        self._lists = self._listed = 0  # lists that were requested, and those that were read for
        self._busy: dict[str, asyncio.Lock] = {}
        self._steps = TopicSteps(self, service)

    def known(self, name: str) -> Topic | None:
        """Return a ready topic without asking anybody."""
        topic = self.names.get(name)
        return topic if topic is not None and topic.state == TopicState.READY else None

    def ready(self, key: str | bytes) -> OpenTopic | None:
        """Return a ready topic by its name or its id without asking anybody."""
        found = self._open.get(key)
        if found is None:
            topic = self.names.get(key) if isinstance(key, str) else self.ids.get(key)
            if topic is None or topic.state != TopicState.READY:
                return None
            found = OpenTopic(topic, self._service.open)
            self._open[topic.name] = self._open[topic.id] = found
        return found

    async def open(self, key: str | bytes) -> OpenTopic | None:
        """Return a topic by its name or its id as `find` and `find_id` do."""
        found = self.ready(key)
        if found is None:
            topic = await (self.find(key) if isinstance(key, str) else self.find_id(key))
            found = None if topic is None else self.ready(topic.name)
        return found

    async def refresh(self, *, local: bool = False) -> None:
        """Read the topics. `local`: accept what this node knows, or what was read just now."""
        now = asyncio.get_running_loop().time()
        if local and now - self._read_at < _FRESH_SECONDS:
            return
        news = await self._service.meta_group.topics(self.version, local=local)
        self._read_at = now
        if news.revision >= self.version:
            self._take(news)

    async def read_all(self) -> None:
        """Read the topics for a list of all of them: it has every topic that any core or node
        answered for before. What this node knows must do while the meta group has no leader.

        Requests that come during a read share the next one."""
        self._lists += 1
        wanted = self._lists
        async with self._listing:
            if self._listed >= wanted:
                return
            begun = self._lists
            try:
                async with asyncio.timeout(_LIST_SECONDS):
                    await self.refresh()
            except (Unavailable, TimeoutError):
                await self.refresh(local=True)
            self._listed = begun

    def _take(self, news: TopicNews) -> None:
        """Apply changes. They may repeat or precede known ones: another read was faster."""
        if news.whole:
            self.names, self.ids, self._open, self._alike = {}, {}, {}, {}
        for name in news.gone:
            self._forget(name)
        for topic in news.topics:
            known = self.names.get(topic.name)
            if known is None or known.revision < topic.revision:
                self._forget(topic.name)
                self.names[topic.name] = self.ids[topic.id] = topic
                self._alike.setdefault(_metric_name(topic.name), set()).add(topic.name)
        self.version = news.revision

    def _forget(self, name: str) -> None:
        known = self.names.pop(name, None)
        if known is not None:
            self.ids.pop(known.id, None)
            self._open.pop(name, None)
            self._open.pop(known.id, None)
            alike = self._alike[_metric_name(name)]
            alike.discard(name)
            if not alike:
                del self._alike[_metric_name(name)]

    def refusal_of(self, name: str) -> str:
        """Return why no new topic may have this name; "": it may. Kafka refuses names that its
        metrics cannot tell apart."""
        if not is_topic_name(name):
            return NAME_RULE
        if name in _RESERVED:
            return f"topic name '{name}' is reserved: Kafka keeps its own state in it"
        alike = self._alike.get(_metric_name(name), set()) - {name}
        if not alike:
            return ""
        return (
            f"topic '{name}' collides with existing topic '{min(alike)}': names that differ in '.' "
            "and '_' alone are one name in metrics; choose another"
        )

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
        return await self._put(put)

    async def adopt(self, name: str, wanted: Adoption) -> int:
        """Create a topic whose first partitions are streams that exist. Return CREATED, EXISTS or
        TOO_MANY. Raises TopicRefused."""
        types = [await self._steps.adoptable(name, stream) for stream in wanted.streams]
        configs = dict(wanted.configs)
        if len(set(types)) == 1 and types[0]:
            configs.setdefault(CONTENT_TYPE, types[0])
        put = TopicPut(
            name,
            self._new_id(),
            max(wanted.partitions, len(wanted.streams)),
            sorted(configs.items()),
            self._service.now_ms(),
            wanted.streams,
        )
        return await self._put(put)

    async def _put(self, put: TopicPut) -> int:
        name = put.name
        reply = await self._steps.call(META_GROUP, put)
        await self.refresh()
        topic = self.names.get(name)
        if topic is not None and topic.state != TopicState.READY:
            await self.finish(topic)
            await self.refresh()
        return reply.code

    async def alter(
        self, name: str, change: Callable[[dict[str, str]], Mapping[str, str]]
    ) -> dict[str, str]:
        """Replace the configs of a topic by those that `change` returns; it may be called again
        after a concurrent change. Raises TopicRefused and what `change` raises."""
        while True:
            topic = await self._ready(name)
            wanted = dict(change(topic.settings))
            if wanted == topic.settings:
                return wanted
            try:
                if await self._altered(topic, wanted):
                    return wanted
            except NotChanged:
                raise TopicRefused(
                    f"the profile of topic '{name}' could not be changed for all partitions, so it "
                    "stays: they could not be flushed in time, or the node has no object store; "
                    "retry"
                ) from None

    async def _altered(self, topic: Topic, wanted: Mapping[str, str]) -> bool:
        if profile_of(wanted) != profile_of(topic.settings):
            return await profile_change.change(self._steps, topic, wanted)
        command = TopicChange(
            topic.name, topic.id, topic.revision, topic.partitions, sorted(wanted.items())
        )
        return await self._steps.changed(command) is not None

    async def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, and create their streams. Raises TopicRefused."""
        while True:
            topic = await self._ready(name)
            if partitions <= topic.partitions:
                raise TopicRefused(
                    f"topic '{name}' has {topic.partitions} partitions; {partitions} were requested"
                )
            command = TopicChange(name, topic.id, topic.revision, partitions, topic.configs)
            if await self._steps.changed(command):
                await self.finish(self.names[name])
                await self.refresh()
                return

    async def _ready(self, name: str) -> Topic:
        """Return the newest state of a topic, after the steps that are missing."""
        await self.refresh()
        topic = self.names.get(name)
        if topic is not None and not self._is_in_other_hands(topic):
            if not topic.is_settled:
                await self.finish(topic)
                await self.refresh()
            topic = self.known(name)
        if topic is not None and topic.changing is not None:
            raise Unavailable(f"the profile of topic '{name}' changes; retry")
        if topic is None:
            raise TopicRefused(f"topic '{name}' does not exist, or is being deleted")
        return topic

    async def drop(self, topic: Topic) -> None:
        """Delete a topic and its streams."""
        await self._steps.call(META_GROUP, TopicDrop(topic.name, topic.id))
        await self._steps.delete(topic)
        await self.refresh()

    async def finish(self, topic: Topic) -> None:
        """Take the last step of a creation or a deletion that somebody began."""
        lock = self._busy.setdefault(topic.name, asyncio.Lock())
        try:
            async with lock:
                if topic.state == TopicState.DROPPED:
                    await self._steps.delete(topic)
                elif topic.state == TopicState.READY and topic.changing is not None:
                    await self._steps.go_on(topic)
                elif not topic.is_settled:
                    await self._steps.create(topic)
        finally:
            self._busy.pop(topic.name, None)

    def _is_in_other_hands(self, topic: Topic) -> bool:
        """Report whether a topic's profile changes, and the core that began it may be alive."""
        return topic.changing is not None and not is_abandoned(topic, self._service.now_ms())

    async def follow(self) -> None:
        """Keep what this core knows as new as its node's replica. Run until cancelled."""
        await repeat(self._follow_once, _FOLLOW_SECONDS)

    async def _follow_once(self) -> None:
        with contextlib.suppress(PolynyaError):  # the meta group elects
            await self.refresh(local=True)

    async def finish_all(self) -> None:
        """Finish all topics on the core that leads the meta group, now and then. Run until
        cancelled."""
        message = "a topic could not be finished; retrying"
        failures = Failures(log, message, PolynyaError, level=logging.INFO)
        await repeat(self._finish_unsettled, _FINISH_SECONDS, failures)

    async def _finish_unsettled(self) -> None:
        if not self._service.meta_group.is_here():
            return
        await self.refresh(local=True)
        for topic in [each for each in self.names.values() if not each.is_settled]:
            if not self._is_in_other_hands(topic):
                log.info("finishing a topic", extra={"topic": topic.name, "state": topic.state})
                await self.finish(topic)
