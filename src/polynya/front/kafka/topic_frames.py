"""Metadata of all topics as cached bytes, per version of the message and zone of the clients.

Each topic is encoded once for its last change and the brokers of that time. A change of one topic
costs its own encoding and a join. The partitions of a Raft group have the same brokers, so what
follows a partition's number is encoded once for its group.
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING

from polynya.front.kafka.errors import Error
from polynya.front.kafka.metadata import (
    Place,
    named,
    partition_of,
    place_of_group,
    response_of,
    topic_of,
)
from polynya.front.kafka.owners import is_diskless
from polynya.stream.features.topics.state import Topic, TopicState
from polynya.wire.kafka import primitives as p
from polynya.wire.kafka.generated import metadata as message
from polynya.wire.kafka.messages import APIS
from polynya.wire.kafka.primitives import Bytes

if TYPE_CHECKING:
    from polynya.front.kafka.server import Broker, KafkaFront

_NUMBER = Struct(">hi")  # the error and the number of a partition, before its brokers
_FRAMES_MAX = 4  # kept: 100,000 partitions have about 3 MB in each
_PART = 100  # topics that are encoded before others get the loop


class TopicFrames:
    """The bodies of Metadata responses for all topics."""

    def __init__(self) -> None:
        self._frames: dict[tuple[int, str], _Frame] = {}

    async def body(self, front: KafkaFront, version: int, zone: str) -> bytes:
        """Return the body of a response of this version, to a client of a zone."""
        key = (version, zone)
        frame = self._frames.pop(key, None) or _Frame(version, zone)
        if len(self._frames) >= _FRAMES_MAX:
            del self._frames[next(iter(self._frames))]
        self._frames[key] = frame  # the last used one is the last
        return await frame.body(front)


class _Frame:
    """The body of one version for the clients of a zone, and the topics in it."""

    def __init__(self, version: int, zone: str) -> None:
        self._version, self._zone = version, zone
        self._lock = asyncio.Lock()
        self._known: tuple[int, tuple[Broker, ...], list[Place], tuple[int, ...]] | None = None
        self._body = b""
        self._topics: dict[str, tuple[int, bytes]] = {}  # name -> its revision, encoded

    async def body(self, front: KafkaFront) -> bytes:
        async with self._lock:
            places = [place_of_group(front, group) for group in range(1, front.service.groups + 1)]
            owners = front.brokers.owners(self._zone) + front.brokers.owners("")
            now = (front.topics.version, tuple(front.brokers.all()), places, owners)
            if self._known != now:
                if self._known is None or self._known[1:] != now[1:]:
                    self._topics = {}
                self._body = await self._encode(front, places)
                self._known = now
            return self._body

    async def _encode(self, front: KafkaFront, places: list[Place]) -> bytes:
        before, self._topics, encoded = self._topics, {}, 0
        brokers = [_brokers_of(place, self._version) for place in places]
        for topic in tuple(front.topics.names.values()):
            if topic.state == TopicState.DROPPED:
                continue
            entry = before.get(topic.name)
            if entry is None or entry[0] != topic.revision:
                entry = (topic.revision, self._topic(front, topic, brokers))
                encoded += 1
                if encoded % _PART == 0:
                    await asyncio.sleep(0)
            self._topics[topic.name] = entry
        return self._around(front, [each for _, each in self._topics.values()])

    def _topic(self, front: KafkaFront, topic: Topic, brokers: list[bytes]) -> bytes:
        """Encode a topic. `brokers`: of the partitions of groups 1, 2, …, encoded."""
        pieces: list[Bytes] = []
        if is_diskless(topic):
            it = topic_of(front, topic, self._zone)
            message.write_metadata_response_topic(pieces.append, it, self._version)
            return b"".join(pieces)
        parts = [
            _NUMBER.pack(Error.NONE, number) + brokers[group - 1]
            for number, group in enumerate(topic.groups(front.service.groups))
        ]
        message.write_metadata_response_topic(pieces.append, named(topic), self._version)
        behind = 4 if self._version >= 8 else 0
        return self._filled(b"".join(pieces), parts, behind)

    def _around(self, front: KafkaFront, topics: list[bytes]) -> bytes:
        """Return the body with these topics."""
        version, pieces = self._version, list[Bytes]()
        message.write_metadata_response(pieces.append, response_of(front, []), version)
        behind = (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0)
        return self._filled(b"".join(pieces), topics, behind)

    def _filled(self, empty: bytes, entries: list[bytes], behind: int) -> bytes:
        """Return an encoded structure with these entries in place of none. `behind`: the bytes of
        the fields that follow its array."""
        is_flexible = self._version >= APIS[message.KEY].flexible
        count = list[Bytes]()
        (p.put_compact_array if is_flexible else p.put_array)(count.append, len(entries))
        end = len(empty) - behind - is_flexible
        return b"".join([empty[: end - (1 if is_flexible else 4)], *count, *entries, empty[end:]])


def _brokers_of(place: Place, version: int) -> bytes:
    """Encode the brokers of a partition, the fields after its number."""
    pieces: list[Bytes] = []
    it = partition_of(0, place)
    message.write_metadata_response_partition(pieces.append, it, version)
    return b"".join(pieces)[_NUMBER.size :]
