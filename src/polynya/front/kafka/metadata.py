"""Metadata: the brokers, the topics, and which broker to ask for each partition."""

from __future__ import annotations

import asyncio

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.names import KAFKA_BUCKET
from polynya.front.kafka.brokers import zone_of
from polynya.front.kafka.call import Call, count, in_turns
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.topic_frames import UNKNOWN_OPERATIONS, response_of, topic_of
from polynya.front.kafka.topics.catalog import is_topic_name
from polynya.stream.features.topics.state import Topic, TopicState
from polynya.wire.kafka.generated.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)
from polynya.wire.kafka.messages import frame_of
from polynya.wire.kafka.primitives import NO_UUID, Bytes


async def metadata(call: Call, request: MetadataRequest) -> MetadataResponse | list[Bytes]:
    """Answer for the named topics, or for all of them from cached bytes."""
    context = call.context
    asks_all = request.topics is None or (call.version == 0 and not request.topics)
    if asks_all:
        await context.topics.read_all()
        if not call.caller.may_describe_all():
            return await _described(call)
        body = await context.topic_frames.body(call.version, _zone_of(call))
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
    return response_of(context.brokers, found)


async def _described(call: Call) -> MetadataResponse:
    """Return the topics that the caller may know of."""
    topics = [
        topic
        for topic in call.context.topics.names.values()
        if topic.state != TopicState.DROPPED and call.caller.may_describe(topic.name)
    ]
    zone, found = _zone_of(call), []
    async for topic in in_turns(call, topics):
        found.append(_topic_of(call, topic, zone))
        if count(call, topic.partitions):
            await asyncio.sleep(0)
    return response_of(call.context.brokers, found)


def _zone_of(call: Call) -> str:
    return zone_of(call.context.brokers, call.header.client_id)


def _topic_of(call: Call, topic: Topic, zone: str) -> MetadataResponseTopic:
    return topic_of(call.context.brokers, topic, call.context.service.groups, zone)


async def _by_name(call: Call, name: str, *, create: bool) -> MetadataResponseTopic:
    context = call.context
    if not is_topic_name(name):
        return _missing(Error.INVALID_TOPIC, name)
    if not call.caller.may_describe(name):
        return _missing(Error.TOPIC_AUTHORIZATION_FAILED, name)
    try:
        topic = await context.topics.find(name)
        if topic is None and create and context.defaults.auto_create:
            if context.topics.refusal_of(name):
                return _missing(Error.INVALID_TOPIC, name)
            if not call.caller.may(Verb.CREATE, name):
                return _missing(Error.TOPIC_AUTHORIZATION_FAILED, name)
            if not await call.caller.has_room(name, context.defaults.partitions):
                return _missing(Error.POLICY_VIOLATION, name)
            of_bucket = await context.service.bucket_profiles.current(KAFKA_BUCKET)
            configs = list(context.defaults.profiles.completed({}, of_bucket).items())
            await context.topics.create(name, context.defaults.partitions, configs)
            topic = await context.topics.find(name)
    except PolynyaError as fault:
        return _missing(error_of_fault(fault), name)
    return (
        _missing(Error.UNKNOWN_TOPIC_OR_PARTITION, name)
        if topic is None
        else _topic_of(call, topic, _zone_of(call))
    )


async def _by_id(call: Call, id_: bytes) -> MetadataResponseTopic:
    context = call.context
    topic = await context.topics.find_id(id_)
    if topic is None or not call.caller.may_describe(topic.name):
        return MetadataResponseTopic(Error.UNKNOWN_TOPIC_ID, None, id_)
    return _topic_of(call, topic, _zone_of(call))


def _missing(error: Error, name: str) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error, name, NO_UUID, topic_authorized_operations=UNKNOWN_OPERATIONS
    )
