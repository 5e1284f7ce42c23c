"""Metadata: the brokers, the topics, and which broker to ask for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.topics import is_topic_name
from polynya.stream.rules.topics import Topic, TopicState
from polynya.wire.kafka.generated.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from polynya.wire.kafka.messages import encode_response
from polynya.wire.kafka.primitives import NO_UUID, Bytes

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call
    from polynya.front.kafka.server import KafkaFront

LEADER_EPOCH = 0  # leadership moves inside the cluster, and a client never has to care
UNKNOWN_OPERATIONS = -(2**31)
_CACHED_MAX = 32


async def metadata(call: Call, request: MetadataRequest) -> MetadataResponse | list[Bytes]:
    """Answer for the named topics, or for all of them from cached bytes."""
    front = call.front
    asks_all = request.topics is None or (call.version == 0 and not request.topics)
    if asks_all:
        await front.topics.refresh(local=True)
        return _all_topics(call) if call.caller.may_describe_all() else _described(call)
    assert request.topics is not None
    found = []
    for asked in request.topics:
        if asked.name is None:
            found.append(await _by_id(call, asked.topic_id))
        else:
            found.append(await _by_name(call, asked.name, create=request.allow_auto_topic_creation))
    return _response(front, found)


def _described(call: Call) -> MetadataResponse:
    """Return the topics that the caller may know of."""
    topics = [
        topic
        for topic in call.front.topics.names.values()
        if topic.state != TopicState.DROPPED and call.caller.may_describe(topic.name)
    ]
    return _response(call.front, [_topic(call.front, topic) for topic in topics])


def _all_topics(call: Call) -> list[Bytes]:
    """Return all topics. The frame is kept while no topic, broker or replica changes."""
    front = call.front
    brokers = front.brokers
    places = tuple(
        (brokers.leader_of(group), *map(tuple, brokers.replicas_of(group)))
        for group in range(1, front.service.groups + 1)
    )
    key = (call.version, front.topics.version, tuple(brokers.all()), places)
    frame = front.metadata_cache.get(key)
    if frame is None:
        topics = [
            topic for topic in front.topics.names.values() if topic.state != TopicState.DROPPED
        ]
        message = _response(front, [_topic(front, topic) for topic in topics])
        assert call.api is not None
        pieces = encode_response(call.api, call.version, 0, message)
        frame = [bytes(pieces[0][:4]), b"".join(pieces)[8:]]
        if len(front.metadata_cache) >= _CACHED_MAX:
            front.metadata_cache.clear()
        front.metadata_cache[key] = frame
    return [frame[0], call.header.correlation.to_bytes(4, signed=True), frame[1]]


def _response(front: KafkaFront, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    brokers = front.brokers
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


async def _by_name(call: Call, name: str, *, create: bool) -> MetadataResponseTopic:
    front = call.front
    if not is_topic_name(name):
        return _missing(Error.INVALID_TOPIC, name)
    if not call.caller.may_describe(name):
        return _missing(Error.TOPIC_AUTHORIZATION_FAILED, name)
    try:
        topic = await front.topics.find(name)
        if topic is None and create and front.defaults.auto_create:
            if not call.caller.may(Verb.CREATE, name):
                return _missing(Error.TOPIC_AUTHORIZATION_FAILED, name)
            if not await call.caller.has_room(name, front.defaults.partitions):
                return _missing(Error.POLICY_VIOLATION, name)
            await front.topics.create(name, front.defaults.partitions, [])
            topic = await front.topics.find(name)
    except PolynyaError as fault:
        return _missing(error_of_fault(fault), name)
    return (
        _missing(Error.UNKNOWN_TOPIC_OR_PARTITION, name) if topic is None else _topic(front, topic)
    )


async def _by_id(call: Call, id_: bytes) -> MetadataResponseTopic:
    front = call.front
    topic = await front.topics.find_id(id_)
    if topic is None or not call.caller.may_describe(topic.name):
        return MetadataResponseTopic(Error.UNKNOWN_TOPIC_ID, None, id_)
    return _topic(front, topic)


def _missing(error: Error, name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error, name, NO_UUID, topic_authorized_operations=UNKNOWN_OPERATIONS
    )


def _topic(front: KafkaFront, topic: Topic) -> MetadataResponseTopic:
    places: dict[int, Place] = {}
    partitions = []
    for number in range(topic.partitions):
        group = front.service.group_of(topic.stream(number))
        place = places.get(group)
        if place is None:
            place = places[group] = _place(front, group)
        partitions.append(
            MetadataResponsePartition(
                Error.NONE, number, place.leader, place.epoch, place.replicas, place.in_sync
            )
        )
    return MetadataResponseTopic(
        Error.NONE,
        topic.name,
        topic.id,
        partitions=partitions,
        topic_authorized_operations=UNKNOWN_OPERATIONS,
    )


class Place(msgspec.Struct, frozen=True, gc=False):
    """The brokers of a partition."""

    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]


def place_of(front: KafkaFront, stream: str) -> Place:
    """Return the brokers of the partition that this stream is."""
    return _place(front, front.service.group_of(stream))


def _place(front: KafkaFront, group: int) -> Place:
    replicas, in_sync = front.brokers.replicas_of(group)
    return Place(front.brokers.leader_of(group), LEADER_EPOCH, replicas, in_sync)
