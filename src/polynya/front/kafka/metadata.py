"""Metadata: the brokers, the topics, and which broker to ask for each partition."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.names import KAFKA_BUCKET
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.owners import is_diskless, zone_of
from polynya.front.kafka.topics.catalog import is_topic_name
from polynya.front.kafka.turns import count, in_turns
from polynya.stream.rules.topics import Topic, TopicState
from polynya.wire.kafka.generated.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from polynya.wire.kafka.messages import frame_of
from polynya.wire.kafka.primitives import NO_UUID, Bytes

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call
    from polynya.front.kafka.server import KafkaFront

UNKNOWN_OPERATIONS = -(2**31)


async def metadata(call: Call, request: MetadataRequest) -> MetadataResponse | list[Bytes]:
    """Answer for the named topics, or for all of them from cached bytes."""
    front = call.front
    asks_all = request.topics is None or (call.version == 0 and not request.topics)
    if asks_all:
        await front.topics.read_all()
        if not call.caller.may_describe_all():
            return await _described(call)
        body = await front.topic_frames.body(front, call.version, zone_of(call))
        assert call.api is not None
        return frame_of(call.api, call.version, call.header.correlation, [body])
    assert request.topics is not None
    found = []
    asked_once = {(each.name, each.topic_id): None for each in request.topics}
    async for name, id_ in in_turns(call, asked_once):
        if name is None:
            topic = await _by_id(call, id_)
        else:
            topic = await _by_name(call, name, create=request.allow_auto_topic_creation)
        found.append(topic)
        if count(call, len(topic.partitions)):
            await asyncio.sleep(0)
    return response_of(front, found)


async def _described(call: Call) -> MetadataResponse:
    """Return the topics that the caller may know of."""
    topics = [
        topic
        for topic in call.front.topics.names.values()
        if topic.state != TopicState.DROPPED and call.caller.may_describe(topic.name)
    ]
    zone, found = zone_of(call), []
    async for topic in in_turns(call, topics):
        found.append(topic_of(call.front, topic, zone))
        if count(call, topic.partitions):
            await asyncio.sleep(0)
    return response_of(call.front, found)


def response_of(front: KafkaFront, topics: list[MetadataResponseTopic]) -> MetadataResponse:
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
            if front.topics.refusal_of(name):
                return _missing(Error.INVALID_TOPIC, name)
            if not call.caller.may(Verb.CREATE, name):
                return _missing(Error.TOPIC_AUTHORIZATION_FAILED, name)
            if not await call.caller.has_room(name, front.defaults.partitions):
                return _missing(Error.POLICY_VIOLATION, name)
            of_bucket = await front.service.bucket_profiles.current(KAFKA_BUCKET)
            configs = list(front.defaults.profiles.completed({}, of_bucket).items())
            await front.topics.create(name, front.defaults.partitions, configs)
            topic = await front.topics.find(name)
    except PolynyaError as fault:
        return _missing(error_of_fault(fault), name)
    return (
        _missing(Error.UNKNOWN_TOPIC_OR_PARTITION, name)
        if topic is None
        else topic_of(front, topic, zone_of(call))
    )


async def _by_id(call: Call, id_: bytes) -> MetadataResponseTopic:
    front = call.front
    topic = await front.topics.find_id(id_)
    if topic is None or not call.caller.may_describe(topic.name):
        return MetadataResponseTopic(Error.UNKNOWN_TOPIC_ID, None, id_)
    return topic_of(front, topic, zone_of(call))


def _missing(error: Error, name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error, name, NO_UUID, topic_authorized_operations=UNKNOWN_OPERATIONS
    )


def topic_of(front: KafkaFront, topic: Topic, zone: str) -> MetadataResponseTopic:
    """Describe a topic to a client of a zone."""
    described, diskless = named(topic), is_diskless(topic)
    for number, group in enumerate(topic.groups(front.service.groups)):
        if diskless:
            place = place_of_owner(front, topic.stream(number), group, zone)
        else:
            place = place_of_group(front, group)
        described.partitions.append(partition_of(number, place))
    return described


def named(topic: Topic) -> MetadataResponseTopic:
    """Describe a topic, without its partitions."""
    return MetadataResponseTopic(
        Error.NONE, topic.name, topic.id, topic_authorized_operations=UNKNOWN_OPERATIONS
    )


def partition_of(number: int, place: Place) -> MetadataResponsePartition:
    """Describe a partition."""
    return MetadataResponsePartition(
        Error.NONE, number, place.leader, place.epoch, place.replicas, place.in_sync
    )


class Place(msgspec.Struct, frozen=True, gc=False):
    """The brokers of a partition."""

    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]


def place_of(front: KafkaFront, stream: str) -> Place:
    """Return the brokers of the partition that this stream is."""
    return place_of_group(front, front.service.group_of(stream))


def place_in_zone(front: KafkaFront, topic: Topic, number: int, zone: str) -> Place:
    """Return the brokers of a partition, for clients of a zone."""
    stream = topic.stream(number)
    group = front.service.group_of(stream)
    if is_diskless(topic):
        return place_of_owner(front, stream, group, zone)
    return place_of_group(front, group)


def place_of_owner(front: KafkaFront, stream: str, group: int, zone: str) -> Place:
    """Return the brokers of a diskless partition, for clients of a zone: the owners in all zones.
    A Java consumer fetches from its preferred replica only if Metadata names that as a replica.

    The epoch is the group's: a client ignores a lower one, also when the profile of the topic
    changes."""
    owners = front.brokers.owners_of(stream, group, zone)
    return Place(owners[0], front.brokers.epoch_of(group), owners, owners)


def place_of_group(front: KafkaFront, group: int) -> Place:
    """Return the brokers of the partitions in a group."""
    replicas, in_sync = front.brokers.replicas_of(group)
    brokers = front.brokers
    return Place(brokers.leader_of(group), brokers.epoch_of(group), replicas, in_sync)
