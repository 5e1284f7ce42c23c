"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from polynya.access.grants import Verb
from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.base.limits import PARTITIONS_MAX
from polynya.base.names import KAFKA_BUCKET
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.configs import CONFIGS, InvalidConfig, check_replicas, checked
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.topics.catalog import acks_of
from polynya.front.kafka.topics.steps import TopicRefused
from polynya.stream.features.topics.state import Topic
from polynya.stream.replies import Code
from polynya.wire.kafka.generated.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from polynya.wire.kafka.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from polynya.wire.kafka.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from polynya.wire.kafka.primitives import NO_UUID

_BY_ID_SINCE = 6  # the first version of DeleteTopics that names topics by id
_DEFAULT_FACTOR = -1
_TWICE = "the request names the topic twice; name it once"
_T = TypeVar("_T")
TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5  # sources of a value


async def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics with their configs."""
    context = call.context
    await context.topics.refresh()
    once, twice = _split(request.topics, lambda asked: asked.name)
    results = [
        CreatableTopicResult(asked.name, NO_UUID, Error.INVALID_REQUEST, _TWICE) for asked in twice
    ]
    results += [
        await _create(call, asked, dry=request.validate_only)
        async for asked in in_turns(call, once)
    ]
    return CreateTopicsResponse(topics=results)


def _split(asked: list[_T], key: Callable[[_T], object]) -> tuple[list[_T], list[_T]]:
    """Return the elements of a request that it names once, and one for each that it names more
    often: Kafka refuses those, because it could not say which one is meant."""
    counts = Counter(map(key, asked))
    if len(counts) == len(asked):
        return asked, []
    twice = {key(each): each for each in asked if counts[key(each)] > 1}
    return [each for each in asked if counts[key(each)] == 1], list(twice.values())


async def _create(call: Call, asked: CreatableTopic, *, dry: bool) -> CreatableTopicResult:
    context = call.context
    if not call.caller.may(Verb.CREATE, asked.name):
        why = f"the token does not allow 'create' on topic '{asked.name}'"
        return CreatableTopicResult(asked.name, NO_UUID, Error.TOPIC_AUTHORIZATION_FAILED, why)
    partitions = len(asked.assignments) or asked.num_partitions
    partitions = context.defaults.partitions if partitions == -1 else partitions
    refused = _refusal(context, asked, partitions)
    if refused is not None:
        return CreatableTopicResult(asked.name, NO_UUID, *refused)
    if not await call.caller.has_room(asked.name, partitions):
        why = f"the token may not have {partitions} more streams; delete some"
        return CreatableTopicResult(asked.name, NO_UUID, Error.POLICY_VIOLATION, why)
    try:
        configs = context.defaults.profiles.completed(
            checked((each.name, each.value) for each in asked.configs),
            await context.service.bucket_profiles.current(KAFKA_BUCKET),
        )
        check_replicas({}, configs, acks_of(context.service, asked.name))
        if not dry and (refused := await _make(context, asked.name, partitions, configs)):
            return CreatableTopicResult(asked.name, NO_UUID, *refused)
    except InvalidConfig as invalid:
        return CreatableTopicResult(asked.name, NO_UUID, Error.INVALID_CONFIG, str(invalid))
    except PolynyaError as fault:
        return CreatableTopicResult(asked.name, NO_UUID, error_of_fault(fault), str(fault))
    topic = context.topics.known(asked.name)
    group = context.service.group_of(f"kafka/{asked.name}/0")
    return CreatableTopicResult(
        asked.name,
        NO_UUID if topic is None else topic.id,
        error_message=None,
        num_partitions=partitions,
        replication_factor=len(context.brokers.replicas_of(group)[0]),
        configs=_created_configs(configs),
    )


async def _make(
    context: Context, name: str, partitions: int, configs: dict[str, str]
) -> tuple[Error, str] | None:
    """Create one topic. Return why it does not exist afterwards."""
    code = await context.topics.create(name, partitions, list(configs.items()))
    if code == Code.EXISTS:
        return _exists(name)
    if code != Code.CREATED or context.topics.known(name) is None:
        why = f"streams under kafka/{name}/ exist and are no partitions, or a limit is reached"
        return Error.POLICY_VIOLATION, why
    return None


def _created_configs(configs: dict[str, str]) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(
            name,
            configs.get(name, config.default),
            config_source=TOPIC_CONFIG if name in configs else DEFAULT_CONFIG,
        )
        for name, config in CONFIGS.items()
    ]


def _refusal(context: Context, asked: CreatableTopic, partitions: int) -> tuple[Error, str] | None:
    if asked.name in context.topics.names:
        return _exists(asked.name)
    if why := context.topics.refusal_of(asked.name):
        return Error.INVALID_TOPIC, why
    if asked.replication_factor < _DEFAULT_FACTOR or asked.replication_factor == 0:
        why = (
            f"a replication factor of {asked.replication_factor}; expected 1 or more, or -1 for the "
            "default"
        )
        return Error.INVALID_REPLICATION_FACTOR, why
    if not 1 <= partitions <= PARTITIONS_MAX:
        return Error.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions"
    return None


def _exists(name: str) -> tuple[Error, str]:
    return Error.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists, or is being deleted"


async def delete_topics(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics by name or, since version 6, by id."""
    asked = request.topics
    if call.version < _BY_ID_SINCE:
        asked = [DeleteTopicState(name) for name in request.topic_names]
    await call.context.topics.refresh()
    known = call.context.topics.names
    once, twice = _split(asked, partial(_id_of, known))
    responses = [
        DeletableTopicResult(each.name, each.topic_id, Error.INVALID_REQUEST, _TWICE)
        for each in twice
    ]
    responses += [await _delete(call, each) async for each in in_turns(call, once)]
    return DeleteTopicsResponse(responses=responses)


def _id_of(known: Mapping[str, Topic], asked: DeleteTopicState) -> bytes | str:
    """Return the id of a topic to delete, or the name of an unknown one."""
    if asked.name is None:
        return asked.topic_id
    topic = known.get(asked.name)
    return asked.name if topic is None else topic.id


async def _delete(call: Call, asked: DeleteTopicState) -> DeletableTopicResult:
    topic: Topic | None
    context = call.context
    if asked.name is None:
        topic, missing = context.topics.ids.get(asked.topic_id), Error.UNKNOWN_TOPIC_ID
    else:
        topic, missing = context.topics.names.get(asked.name), Error.UNKNOWN_TOPIC_OR_PARTITION
    name = asked.name if topic is None else topic.name
    if name is not None and not call.caller.may(Verb.DELETE, name):
        missing = Error.TOPIC_AUTHORIZATION_FAILED
        why = "the token does not allow 'delete' on it"
        return DeletableTopicResult(asked.name, asked.topic_id, missing, why)
    if topic is None:
        return DeletableTopicResult(asked.name, asked.topic_id, missing)
    try:
        await context.topics.drop(topic)
    except PolynyaError as fault:
        return DeletableTopicResult(topic.name, topic.id, error_of_fault(fault), str(fault))
    return DeletableTopicResult(topic.name, topic.id)


async def create_partitions(
    call: Call, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions to topics. Where a client asks for replicas, the cluster places them."""
    await call.context.topics.refresh()
    once, twice = _split(request.topics, lambda asked: asked.name)
    results = [
        CreatePartitionsTopicResult(asked.name, Error.INVALID_REQUEST, _TWICE) for asked in twice
    ]
    async for asked in in_turns(call, once):
        found = await _grow(call, asked, dry=request.validate_only)
        results.append(CreatePartitionsTopicResult(asked.name, *found))
    return CreatePartitionsResponse(results=results)


async def _grow(call: Call, asked: CreatePartitionsTopic, *, dry: bool) -> tuple[Error, str | None]:
    context = call.context
    if not call.caller.may(Verb.CREATE, asked.name, Operation.ALTER):
        why = f"the token does not allow 'create' on topic '{asked.name}'"
        return Error.TOPIC_AUTHORIZATION_FAILED, why
    topic = context.topics.known(asked.name)
    if topic is None:
        return Error.UNKNOWN_TOPIC_OR_PARTITION, f"topic '{asked.name}' does not exist"
    if not topic.partitions < asked.count <= PARTITIONS_MAX:
        why = (
            f"topic '{asked.name}' has {topic.partitions} partitions; {asked.count} were "
            f"requested, and it may have {topic.partitions + 1} to {PARTITIONS_MAX}"
        )
        return Error.INVALID_PARTITIONS, why
    more = asked.count - topic.partitions
    if not await call.caller.has_room(asked.name, more):
        return Error.POLICY_VIOLATION, f"the token may not have {more} more streams; delete some"
    if dry:
        return Error.NONE, None
    try:
        await context.topics.grow(asked.name, asked.count)
    except TopicRefused as refused:
        return Error.INVALID_PARTITIONS, str(refused)
    except PolynyaError as fault:
        return error_of_fault(fault), str(fault)
    return Error.NONE, None
