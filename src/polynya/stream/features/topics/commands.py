"""Commands of Kafka topics, in the meta group: tags 100-104."""

from __future__ import annotations

import msgspec

from polynya.stream.command import Command


class TopicPut(Command, tag=100, frozen=True, gc=False):
    """Add a Kafka topic, in the meta group, unless its name is taken. Level 3.

    Detail: the topic, new or known. Its partitions' streams are created next; then comes
      `TopicReady`."""

    name: str
    id: bytes  # 16 random bytes: a topic of the same name that is created later has another
    partitions: int
    configs: list[tuple[str, str]]
    now_ms: int
    # of an adopted topic: the streams that are its first partitions
    streams: list[str] = msgspec.field(default_factory=list)


class TopicReady(Command, tag=101, frozen=True, gc=False):
    """Record in the meta group that the streams of all partitions exist. Level 3."""

    name: str
    id: bytes
    partitions: int = 0  # how many exist; 0: those of the creation


class TopicDrop(Command, tag=102, frozen=True, gc=False):
    """Begin to delete a topic, in the meta group. Its name stays taken until `TopicGone`. Level
    3."""

    name: str
    id: bytes


class TopicGone(Command, tag=103, frozen=True, gc=False):
    """Remove a dropped topic whose streams are deleted from the meta group. Level 3."""

    name: str
    id: bytes


class TopicChange(Command, tag=104, frozen=True, gc=False):
    """Set the configs of a topic and the number of its partitions, in the meta group, if it is at
    `revision`. Level 3.

    The streams of further partitions are created next; then comes `TopicReady`."""

    name: str
    id: bytes
    revision: int  # the topic's own; another one is refused
    partitions: int
    configs: list[tuple[str, str]]
