"""Kafka topics in the meta group: their names, ids, partitions and configs. Pure.

A topic is put, its streams are created, then it is ready; it is dropped, its streams are deleted,
then it is gone. A topic grows by the same steps: it stays ready, and its further partitions count
once their streams exist. Each step may be repeated, so any core that finds a topic between two
steps may finish it. A name stays taken until its streams are deleted, so a new topic never gets the
data of an old one.

Each change has a number, the same on all replicas, so a reader asks for what is new since one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.base.limits import (
    PARTITIONS_MAX,
    RETENTION_BYTES_MAX,
    RETENTION_SECONDS_MAX,
    TOPICS_GONE_REMEMBERED_MAX,
    TOPICS_MAX,
)
from polynya.base.names import group_of, partition_name
from polynya.stream.commands import (
    Command,
    Retention,
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.group_commands import ForgetTopic
from polynya.stream.replies import Code, Reply
from polynya.stream.state.feature_level import level_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(TopicPut)
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


def retention_of_topic(topic: Topic) -> Retention | None:
    """Return the retention that the configs of a topic ask for; None: everything is kept.

    Seconds are rounded up. Without `delete` in its policy a topic loses nothing to retention."""
    configs = dict(topic.configs)
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return None
    age_ms, size = int(configs.get("retention.ms", -1)), int(configs.get("retention.bytes", -1))
    age_seconds = min(-(-age_ms // 1000), RETENTION_SECONDS_MAX) if age_ms >= 0 else None
    size_max = min(size, RETENTION_BYTES_MAX) if size >= 0 else None
    if age_seconds is None and size_max is None:
        return None
    return Retention(age_seconds, size_max)


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


def apply_put(machine: Machine, command: TopicPut, place: int) -> Reply:
    """Add a topic: CREATED, or EXISTS. TOO_MANY: a limit is reached. Detail: the topic."""
    known = machine.meta.topics.get(command.name)
    if known is not None:
        return Reply(Code.EXISTS, detail=known)
    if len(machine.meta.topics) >= TOPICS_MAX or command.partitions > PARTITIONS_MAX:
        return Reply(Code.TOO_MANY)
    topic = Topic(
        command.name,
        command.id,
        command.partitions,
        command.configs,
        command.now_ms,
        streams=command.streams,
    )
    machine.meta.topics[command.name] = topic
    _changed(machine, command.name)
    return Reply(Code.CREATED, detail=topic)


def apply_ready(machine: Machine, command: TopicReady, place: int) -> Reply:
    """Record that the streams exist. NOT_FOUND: the topic has another id or is dropped."""
    topic = _find(machine, command)
    if topic is None or topic.state == TopicState.DROPPED:
        return Reply(Code.NOT_FOUND)
    if topic.growing and command.partitions >= topic.growing:
        topic.partitions, topic.growing = topic.growing, 0
        _changed(machine, topic.name)
    _set_state(machine, topic, TopicState.READY)
    return Reply(Code.OK)


def apply_change(machine: Machine, command: TopicChange, place: int) -> Reply:
    """Set configs, and begin to grow or give it up. NOT_FOUND: no ready topic has this name and id. NOT_YET: it
    changed since, or it grows already."""
    topic = _find(machine, command)
    if topic is None or topic.state != TopicState.READY:
        return Reply(Code.NOT_FOUND)
    grows = command.partitions > topic.partitions
    if topic.revision != command.revision or (grows and topic.growing):
        return Reply(Code.NOT_YET)
    topic.configs = command.configs
    topic.growing = command.partitions if grows else 0
    _changed(machine, topic.name)
    return Reply(Code.OK)


def apply_drop(machine: Machine, command: TopicDrop, place: int) -> Reply:
    """Mark a topic for deletion. NOT_FOUND: no topic has this name and id."""
    topic = _find(machine, command)
    if topic is None:
        return Reply(Code.NOT_FOUND)
    _set_state(machine, topic, TopicState.DROPPED)
    return Reply(Code.OK)


def apply_gone(machine: Machine, command: TopicGone, place: int) -> Reply:
    """Remove a dropped topic. NOT_FOUND: it is gone already, or it is not dropped."""
    topic = _find(machine, command)
    if topic is None or topic.state != TopicState.DROPPED:
        return Reply(Code.NOT_FOUND)
    del machine.meta.topics[command.name]
    for group in range(1, machine.groups + 1):
        machine.outbox.send(group, ForgetTopic(command.id))
    _changed(machine, command.name)
    return Reply(Code.OK)


def _find(
    machine: Machine, command: TopicChange | TopicReady | TopicDrop | TopicGone
) -> Topic | None:
    topic = machine.meta.topics.get(command.name)
    return topic if topic is not None and topic.id == command.id else None


def _set_state(machine: Machine, topic: Topic, state: int) -> None:
    if topic.state != state:
        topic.state = state
        _changed(machine, topic.name)


def _changed(machine: Machine, name: str) -> None:
    machine.changes.topics.add(name)
    machine.meta.topic_changes.add(name, machine.meta.topics.get(name))
    machine.meta.topic_changes.tidy(machine.meta.topics)
    machine.counters.raise_level(_LEVEL)  # a standalone node gets no `SetLevel`


RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {
    TopicPut: apply_put,
    TopicChange: apply_change,
    TopicReady: apply_ready,
    TopicDrop: apply_drop,
    TopicGone: apply_gone,
}
