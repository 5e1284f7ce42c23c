"""Topics as Metadata describes them, and all of them as cached bytes, per version of the message
and zone of the clients.

Each topic is encoded once for its last change and the brokers of that time. A change of one topic
costs its own encoding and a join. The partitions of a Raft group have the same brokers, so what
follows a partition's number is encoded once for its group.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from polynya.front.kafka.brokers import (
    Broker,
    Brokers,
    PartitionBrokers,
    brokers_of_diskless,
    brokers_of_group,
    is_diskless,
)
from polynya.front.kafka.errors import Error
from polynya.front.kafka.topics.catalog import TopicCatalog
from polynya.stream.features.topics.state import Topic, TopicState
from polynya.wire.kafka import primitives as p
from polynya.wire.kafka.generated import metadata as message
from polynya.wire.kafka.generated.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from polynya.wire.kafka.messages import APIS
from polynya.wire.kafka.primitives import Bytes

UNKNOWN_OPERATIONS = -(2**31)
_NUMBER = Struct(">hi")  # the error and the number of a partition, before its brokers
_FRAMES_MAX = 4  # kept: 100,000 partitions have about 3 MB in each
_PART = 100  # topics that are encoded before others get the loop


def response_of(brokers: Brokers, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    """Return a response with these topics."""
    listed = [
        MetadataResponseBroker(each.id, each.host, each.port, each.rack) for each in brokers.all()
    ]
    return MetadataResponse(
        brokers=listed,
        cluster_id=brokers.cluster_id,
        controller_id=brokers.own,
        topics=topics,
        cluster_authorized_operations=UNKNOWN_OPERATIONS,
    )


def topic_of(brokers: Brokers, topic: Topic, groups: int, zone: str) -> MetadataResponseTopic:
    """Describe a topic to a client of a zone."""
    described, diskless = named(topic), is_diskless(topic)
    for number, group in enumerate(topic.groups(groups)):
        if diskless:
            partition_brokers = brokers_of_diskless(brokers, topic.stream(number), group, zone)
        else:
            partition_brokers = brokers_of_group(brokers, group)
        described.partitions.append(partition_of(number, partition_brokers))
    return described


def named(topic: Topic) -> MetadataResponseTopic:
    """Describe a topic, without its partitions."""
    return MetadataResponseTopic(
        Error.NONE, topic.name, topic.id, topic_authorized_operations=UNKNOWN_OPERATIONS
    )


def partition_of(number: int, partition_brokers: PartitionBrokers) -> MetadataResponsePartition:
    """Describe a partition."""
    return MetadataResponsePartition(
        Error.NONE,
        number,
        partition_brokers.leader,
        partition_brokers.epoch,
        partition_brokers.replicas,
        partition_brokers.in_sync,
    )


class TopicFrames:
    """The bodies of Metadata responses for all topics."""

    def __init__(self, brokers: Brokers, topics: TopicCatalog, groups: int) -> None:
        self.brokers, self.topics, self.groups = brokers, topics, groups
        self._frames: dict[tuple[int, str], _Frame] = {}

    async def body(self, version: int, zone: str) -> bytes:
        """Return the body of a response of this version, to a client of a zone."""
        key = (version, zone)
        frame = self._frames.pop(key, None) or _Frame(self, version, zone)
        if len(self._frames) >= _FRAMES_MAX:
            del self._frames[next(iter(self._frames))]
        self._frames[key] = frame  # the last used one is the last
        return await frame.body()


class _Frame:
    """The body of one version for the clients of a zone, and the topics in it."""

    def __init__(self, frames: TopicFrames, version: int, zone: str) -> None:
        self._brokers, self._topics, self._groups = frames.brokers, frames.topics, frames.groups
        self._version, self._zone = version, zone
        self._lock = asyncio.Lock()
        self._known: (
            tuple[int, tuple[Broker, ...], list[PartitionBrokers], tuple[int, ...]] | None
        ) = None
        self._body = b""
        self._encoded: dict[str, tuple[int, bytes]] = {}  # name -> its revision, encoded

    async def body(self) -> bytes:
        async with self._lock:
            group_brokers = [
                brokers_of_group(self._brokers, group) for group in range(1, self._groups + 1)
            ]
            owners = self._brokers.owners(self._zone) + self._brokers.owners("")
            now = (self._topics.version, tuple(self._brokers.all()), group_brokers, owners)
            if self._known != now:
                if self._known is None or self._known[1:] != now[1:]:
                    self._encoded = {}
                self._body = await self._encode(group_brokers)
                self._known = now
            return self._body

    async def _encode(self, group_brokers: list[PartitionBrokers]) -> bytes:
        before, self._encoded, encoded = self._encoded, {}, 0
        brokers = [
            _brokers_of(partition_brokers, self._version) for partition_brokers in group_brokers
        ]
        for topic in tuple(self._topics.names.values()):
            if topic.state == TopicState.DROPPED:
                continue
            entry = before.get(topic.name)
            if entry is None or entry[0] != topic.revision:
                entry = (topic.revision, self._topic(topic, brokers))
                encoded += 1
                if encoded % _PART == 0:
                    await asyncio.sleep(0)
            self._encoded[topic.name] = entry
        return self._around([each for _, each in self._encoded.values()])

    def _topic(self, topic: Topic, brokers: list[bytes]) -> bytes:
        """Encode a topic. `brokers`: of the partitions of groups 1, 2, …, encoded."""
        pieces: list[Bytes] = []
        if is_diskless(topic):
            it = topic_of(self._brokers, topic, self._groups, self._zone)
            message.write_metadata_response_topic(pieces.append, it, self._version)
            return b"".join(pieces)
        parts = [
            _NUMBER.pack(Error.NONE, number) + brokers[group - 1]
            for number, group in enumerate(topic.groups(self._groups))
        ]
        message.write_metadata_response_topic(pieces.append, named(topic), self._version)
        behind = 4 if self._version >= 8 else 0
        return self._filled(b"".join(pieces), parts, behind)

    def _around(self, topics: list[bytes]) -> bytes:
        """Return the body with these topics."""
        version, pieces = self._version, list[Bytes]()
        message.write_metadata_response(pieces.append, response_of(self._brokers, []), version)
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


def _brokers_of(partition_brokers: PartitionBrokers, version: int) -> bytes:
    """Encode the brokers of a partition, the fields after its number."""
    pieces: list[Bytes] = []
    it = partition_of(0, partition_brokers)
    message.write_metadata_response_partition(pieces.append, it, version)
    return b"".join(pieces)[_NUMBER.size :]
