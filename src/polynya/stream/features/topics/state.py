"""The state of Kafka topics, in the meta group."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from polynya.base.limits import (
    TOPICS_GONE_REMEMBERED_MAX,
)
from polynya.base.names import group_of, partition_name

PROFILE_CHANGING = "profile.changing"  # a config that a topic has while its partitions change


class TopicState:
    """The states of a topic."""

    CREATING = 0  # streams of partitions may be missing
    READY = 1
    DROPPED = 2  # streams of partitions may be left


class Topic(msgspec.Struct, array_like=True, gc=False):
    """A Kafka topic, in the meta group. Partition N is the stream `kafka/NAME/N`, or an adopted
    one."""

    name: str
    id: bytes
    partitions: int
    configs: list[tuple[str, str]]
    created_ms: int
    state: int = TopicState.CREATING
    revision: int = 0  # the number of its last change
    growing: int = 0  # the partitions that it is to have; 0: it does not grow
    streams: list[str] = []  # adopted streams: its first partitions

    @property
    def is_settled(self) -> bool:
        """Report whether no step is missing."""
        return self.state == TopicState.READY and not self.growing and self.changing is None

    @property
    def changing(self) -> tuple[str, int] | None:
        """The profile that its partitions are getting, and the log time at which that began."""
        for name, value in self.configs:
            if name == PROFILE_CHANGING and self.state == TopicState.READY:
                profile, _, since_ms = value.partition(" ")
                return profile, int(since_ms)
        return None

    @property
    def settings(self) -> dict[str, str]:
        """The configs that somebody set."""
        return {name: value for name, value in self.configs if name != PROFILE_CHANGING}

    def stream(self, number: int) -> str:
        """Return the canonical name of a partition's stream."""
        adopted = self.streams
        return adopted[number] if number < len(adopted) else partition_name(self.name, number)

    def groups(self, groups: int) -> list[int]:
        """Return the group of each partition. Those of `kafka/NAME/N` are consecutive."""
        adopted = self.streams[: self.partitions]
        first = group_of(partition_name(self.name, 0), groups) - 1
        rest = range(len(adopted), self.partitions)
        return [group_of(name, groups) for name in adopted] + [
            1 + (first + number) % groups for number in rest
        ]

    def own_streams(self, first: int = 0) -> list[str]:
        """Return the streams from a partition on that were or are created for the topic."""
        first = max(first, len(self.streams))
        count = max(self.partitions, self.growing)
        return [partition_name(self.name, number) for number in range(first, count)]


class TopicNews(msgspec.Struct, array_like=True, gc=False):
    """The topics that changed since a number, and the names of those that are gone."""

    revision: int  # of the newest change: ask since this one next
    whole: bool  # these are all topics
    topics: list[Topic]
    gone: list[str] = []


class TopicChanges:
    """The order of the last changes: what a reader that knows an earlier number lacks.

    Names of topics that are gone are remembered up to a limit, and not across a restart. A reader
    that is further behind gets all topics."""

    def __init__(self, revision: int = 0, topics: Iterable[Topic] = ()) -> None:
        self.revision = revision
        self._first = revision  # what was gone up to here is not known
        ordered = sorted(topics, key=lambda topic: topic.revision)
        self._names = {topic.name: topic.revision for topic in ordered}
        self._gone = 0  # names above without a topic

    def add(self, name: str, topic: Topic | None) -> None:
        """Record a change. None: the topic is gone."""
        self.revision += 1
        self._names.pop(name, None)
        self._names[name] = self.revision
        if topic is not None:
            topic.revision = self.revision
        self._gone += topic is None

    def since(self, revision: int, topics: dict[str, Topic]) -> TopicNews:
        """Return what changed after `revision`; -1 for a reader that knows nothing."""
        if revision < self._first:
            return TopicNews(self.revision, True, list(topics.values()))
        news = TopicNews(self.revision, False, [])
        for name, changed in reversed(self._names.items()):
            if changed <= revision:
                break
            topic = topics.get(name)
            if topic is None:
                news.gone.append(name)
            else:
                news.topics.append(topic)
        return news

    def tidy(self, topics: dict[str, Topic]) -> None:
        """Forget the names that are gone if there are too many."""
        if self._gone > TOPICS_GONE_REMEMBERED_MAX:
            self._names = {name: at for name, at in self._names.items() if name in topics}
            self._first, self._gone = self.revision, 0
