"""Kafka topics in the meta group: their names, ids, partitions and configs. Pure.

A topic is put, its streams are created, then it is ready; it is dropped, its streams are deleted,
then it is gone. A topic grows by the same steps: it stays ready, and its further partitions count
once their streams exist. Each step may be repeated, so any core that finds a topic between two
steps may finish it. A name stays taken until its streams are deleted, so a new topic never gets the
data of an old one.

Each change has a number, the same on all replicas, so a reader asks for what is new since one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.base.limits import (
    PARTITIONS_MAX,
    RETENTION_BYTES_MAX,
    RETENTION_SECONDS_MAX,
    TOPICS_MAX,
)
from polynya.stream.command import applies, level_of
from polynya.stream.features.consumer_groups.commands import ForgetTopic
from polynya.stream.features.topics.commands import (
    TopicChange,
    TopicDrop,
    TopicGone,
    TopicPut,
    TopicReady,
)
from polynya.stream.features.topics.state import Topic, TopicState
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(TopicPut)


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


@applies(TopicPut)
def apply_put(machine: Machine, command: TopicPut, position: int) -> Reply:
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


@applies(TopicReady)
def apply_ready(machine: Machine, command: TopicReady, position: int) -> Reply:
    """Record that the streams exist. NOT_FOUND: the topic has another id or is dropped."""
    topic = _find(machine, command)
    if topic is None or topic.state == TopicState.DROPPED:
        return Reply(Code.NOT_FOUND)
    if topic.growing and command.partitions >= topic.growing:
        topic.partitions, topic.growing = topic.growing, 0
        _changed(machine, topic.name)
    _set_state(machine, topic, TopicState.READY)
    return Reply(Code.OK)


@applies(TopicChange)
def apply_change(machine: Machine, command: TopicChange, position: int) -> Reply:
    """Set configs, and begin to grow or give it up. NOT_FOUND: no ready topic has this name and id.
    NOT_YET: it changed since, or it grows already."""
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


@applies(TopicDrop)
def apply_drop(machine: Machine, command: TopicDrop, position: int) -> Reply:
    """Mark a topic for deletion. NOT_FOUND: no topic has this name and id."""
    topic = _find(machine, command)
    if topic is None:
        return Reply(Code.NOT_FOUND)
    _set_state(machine, topic, TopicState.DROPPED)
    return Reply(Code.OK)


@applies(TopicGone)
def apply_gone(machine: Machine, command: TopicGone, position: int) -> Reply:
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
