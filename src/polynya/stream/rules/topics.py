"""Kafka topics in the meta group: their names, ids, partitions and configs. Pure.

A topic is put, its streams are created, then it is ready; it is dropped, its streams are deleted,
then it is gone. Each step may be repeated, so any core that finds a topic between two steps may
finish it. A name stays taken until its streams are deleted, so a new topic never gets the data of
an old one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from polynya.base.limits import PARTITIONS_MAX, TOPICS_MAX
from polynya.stream.commands import Command, TopicDrop, TopicGone, TopicPut, TopicReady
from polynya.stream.group_commands import ForgetTopic
from polynya.stream.replies import Code, Reply
from polynya.stream.state.feature_level import level_of

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(TopicPut)


class TopicState:
    """The states of a topic."""

    CREATING = 0  # streams of partitions may be missing
    READY = 1
    DROPPED = 2  # streams of partitions may be left


class Topic(msgspec.Struct, array_like=True, gc=False):
    """A Kafka topic, in the meta group. Partition N is the stream `kafka/NAME/N`."""

    name: str
    id: bytes
    partitions: int
    configs: list[tuple[str, str]]
    created_ms: int
    state: int = TopicState.CREATING


def apply_put(machine: Machine, command: TopicPut, place: int) -> Reply:
    """Add a topic: CREATED, or EXISTS. TOO_MANY: a limit is reached. Detail: the topic."""
    known = machine.topics.get(command.name)
    if known is not None:
        return Reply(Code.EXISTS, detail=known)
    if len(machine.topics) >= TOPICS_MAX or command.partitions > PARTITIONS_MAX:
        return Reply(Code.TOO_MANY)
    topic = Topic(command.name, command.id, command.partitions, command.configs, command.now_ms)
    machine.topics[command.name] = topic
    _changed(machine, command.name)
    return Reply(Code.CREATED, detail=topic)


def apply_ready(machine: Machine, command: TopicReady, place: int) -> Reply:
    """Record that the streams exist. NOT_FOUND: the topic has another id or is dropped."""
    topic = _find(machine, command)
    if topic is None or topic.state == TopicState.DROPPED:
        return Reply(Code.NOT_FOUND)
    _set_state(machine, topic, TopicState.READY)
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
    del machine.topics[command.name]
    for group in range(1, machine.groups + 1):
        machine.send(group, ForgetTopic(command.id))
    _changed(machine, command.name)
    return Reply(Code.OK)


def _find(machine: Machine, command: TopicReady | TopicDrop | TopicGone) -> Topic | None:
    topic = machine.topics.get(command.name)
    return topic if topic is not None and topic.id == command.id else None


def _set_state(machine: Machine, topic: Topic, state: int) -> None:
    if topic.state != state:
        topic.state = state
        _changed(machine, topic.name)


def _changed(machine: Machine, name: str) -> None:
    machine.changes.topics.add(name)
    machine.topic_changes += 1
    machine.level = max(machine.level, _LEVEL)  # a standalone node gets no `SetLevel`


RULES: dict[type[Command], Callable[[Machine, Any, int], Reply]] = {
    TopicPut: apply_put,
    TopicReady: apply_ready,
    TopicDrop: apply_drop,
    TopicGone: apply_gone,
}
