"""Metadata of all topics as cached bytes, per version of the message.

Each topic is encoded once for its last change and the brokers of that time. A change of one topic
costs its own encoding and a join.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from polynya.front.kafka.metadata import Place, place_of_group, response_of, topic_of
from polynya.stream.rules.topics import TopicState
from polynya.wire.kafka import primitives as p
from polynya.wire.kafka.generated import metadata as message
from polynya.wire.kafka.messages import APIS
from polynya.wire.kafka.primitives import Bytes

if TYPE_CHECKING:
    from polynya.front.kafka.server import Broker, KafkaFront

_VERSIONS_MAX = 4  # kept: 100,000 partitions have about 3 MB in each
_PART = 100  # topics that are encoded before others get the loop


class TopicFrames:
    """The bodies of Metadata responses for all topics."""

    def __init__(self) -> None:
        self._versions: dict[int, _Frame] = {}

    async def body(self, front: KafkaFront, version: int) -> bytes:
        """Return the body of a response of this version."""
        frame = self._versions.pop(version, None) or _Frame(version)
        if len(self._versions) >= _VERSIONS_MAX:
            del self._versions[next(iter(self._versions))]
        self._versions[version] = frame  # the last used one is the last
        return await frame.body(front)


class _Frame:
    """The body of one version, and the topics in it."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._lock = asyncio.Lock()
        self._known: tuple[int, tuple[Broker, ...], list[Place]] | None = None
        self._body = b""
        self._topics: dict[str, tuple[int, bytes]] = {}  # name -> its revision, encoded

    async def body(self, front: KafkaFront) -> bytes:
        async with self._lock:
            places = [place_of_group(front, group) for group in range(1, front.service.groups + 1)]
            now = (front.topics.version, tuple(front.brokers.all()), places)
            if self._known != now:
                if self._known is None or self._known[1:] != now[1:]:
                    self._topics = {}
                self._body = await self._encode(front, places)
                self._known = now
            return self._body

    async def _encode(self, front: KafkaFront, places: list[Place]) -> bytes:
        before, self._topics, encoded = self._topics, {}, 0
        for topic in tuple(front.topics.names.values()):
            if topic.state == TopicState.DROPPED:
                continue
            entry = before.get(topic.name)
            if entry is None or entry[0] != topic.revision:
                pieces: list[Bytes] = []
                it = topic_of(front, topic, places)
                message.write_metadata_response_topic(pieces.append, it, self._version)
                entry = (topic.revision, b"".join(pieces))
                encoded += 1
                if encoded % _PART == 0:
                    await asyncio.sleep(0)
            self._topics[topic.name] = entry
        return self._around(front, [each for _, each in self._topics.values()])

    def _around(self, front: KafkaFront, topics: list[bytes]) -> bytes:
        """Return the body with these topics in place of none."""
        version, pieces, count = self._version, list[Bytes](), list[Bytes]()
        message.write_metadata_response(pieces.append, response_of(front, []), version)
        empty = b"".join(pieces)
        is_flexible = version >= APIS[message.KEY].flexible
        behind = (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + is_flexible
        end = len(empty) - behind
        (p.put_compact_array if is_flexible else p.put_array)(count.append, len(topics))
        return b"".join([empty[: end - (1 if is_flexible else 4)], *count, *topics, empty[end:]])
