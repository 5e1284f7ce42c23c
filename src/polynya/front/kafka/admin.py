"""CreateTopics and DeleteTopics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.base.limits import CONTENT_TYPE_BYTES_MAX, PARTITIONS_MAX
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.front.kafka.topics import CONTENT_TYPE, is_topic_name
from polynya.stream.replies import Code
from polynya.stream.rules.topics import Topic
from polynya.wire.kafka.generated.create_topics import (
    CreatableTopic,
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

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call
    from polynya.front.kafka.server import KafkaFront

PARTITIONS_DEFAULT = 1
_TYPE_BYTES_MAX = CONTENT_TYPE_BYTES_MAX - 64  # the stored one names it inside Kafka's own
_TYPE = re.compile(r"[!#$&^_.+\w-]+/[!#$&^_.+\w-]+(; ?[\w-]+=[\w.+-]+)*", re.ASCII)
_BY_ID_SINCE = 6  # the first version of DeleteTopics that names topics by id


async def create_topics(call: Call, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics. Configs are recorded; `content.type` alone has an effect."""
    front = call.front
    await front.topics.refresh()
    results = [await _create(call, asked, dry=request.validate_only) for asked in request.topics]
    return CreateTopicsResponse(topics=results)


async def _create(call: Call, asked: CreatableTopic, *, dry: bool) -> CreatableTopicResult:
    front = call.front
    if not call.caller.may(Verb.CREATE, asked.name):
        why = f"the token does not allow 'create' on topic '{asked.name}'"
        return CreatableTopicResult(asked.name, NO_UUID, Error.TOPIC_AUTHORIZATION_FAILED, why)
    partitions = len(asked.assignments) or asked.num_partitions
    partitions = PARTITIONS_DEFAULT if partitions == -1 else partitions
    refused = _refusal(front, asked, partitions)
    if refused is not None:
        return CreatableTopicResult(asked.name, NO_UUID, *refused)
    if not await call.caller.has_room(asked.name, partitions):
        why = f"the token may not have {partitions} more streams; delete some"
        return CreatableTopicResult(asked.name, NO_UUID, Error.POLICY_VIOLATION, why)
    if not dry:
        configs = [(each.name, each.value or "") for each in asked.configs]
        try:
            code = await front.topics.create(asked.name, partitions, configs)
        except PolynyaError as fault:
            return CreatableTopicResult(asked.name, NO_UUID, error_of_fault(fault), str(fault))
        if code == Code.EXISTS:
            return CreatableTopicResult(asked.name, NO_UUID, *_exists(asked.name))
        if code != Code.CREATED or front.topics.known(asked.name) is None:
            why = (
                f"streams under kafka/{asked.name}/ exist and are no partitions, or a limit is "
                "reached"
            )
            return CreatableTopicResult(asked.name, NO_UUID, Error.POLICY_VIOLATION, why)
    topic = front.topics.known(asked.name)
    group = front.service.group_of(f"kafka/{asked.name}/0")
    return CreatableTopicResult(
        asked.name,
        NO_UUID if topic is None else topic.id,
        num_partitions=partitions,
        replication_factor=len(front.brokers.replicas_of(group)[0]),
    )


def _refusal(front: KafkaFront, asked: CreatableTopic, partitions: int) -> tuple[Error, str] | None:
    if not is_topic_name(asked.name):
        return Error.INVALID_TOPIC, "a topic's name has 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
    if not 1 <= partitions <= PARTITIONS_MAX:
        return Error.INVALID_PARTITIONS, f"a topic has 1 to {PARTITIONS_MAX} partitions"
    if asked.name in front.topics.names:
        return _exists(asked.name)
    if any(each.name == CONTENT_TYPE and not _is_type(each.value or "") for each in asked.configs):
        why = (
            f"{CONTENT_TYPE} is a media type of at most {_TYPE_BYTES_MAX} characters without quotes"
        )
        return Error.INVALID_CONFIG, f"{why}, such as application/json"
    return None


def _is_type(value: str) -> bool:
    return not value or (len(value) <= _TYPE_BYTES_MAX and _TYPE.fullmatch(value) is not None)


def _exists(name: str) -> tuple[Error, str]:
    return Error.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists, or is being deleted"


async def delete_topics(call: Call, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics by name or, since version 6, by id."""
    asked = request.topics
    if call.version < _BY_ID_SINCE:
        asked = [DeleteTopicState(name) for name in request.topic_names]
    await call.front.topics.refresh()
    return DeleteTopicsResponse(responses=[await _delete(call, each) for each in asked])


async def _delete(call: Call, asked: DeleteTopicState) -> DeletableTopicResult:
    topic: Topic | None
    front, caller = call.front, call.caller
    if asked.name is None:
        topic, missing = front.topics.ids.get(asked.topic_id), Error.UNKNOWN_TOPIC_ID
    else:
        topic, missing = front.topics.names.get(asked.name), Error.UNKNOWN_TOPIC_OR_PARTITION
    name = asked.name if topic is None else topic.name
    if name is not None and not caller.may(Verb.DELETE, name):
        missing = Error.TOPIC_AUTHORIZATION_FAILED
        why = "the token does not allow 'delete' on it"
        return DeletableTopicResult(asked.name, asked.topic_id, missing, why)
    if topic is None:
        return DeletableTopicResult(asked.name, asked.topic_id, missing)
    try:
        await front.topics.drop(topic)
    except PolynyaError as fault:
        return DeletableTopicResult(topic.name, topic.id, error_of_fault(fault), str(fault))
    return DeletableTopicResult(topic.name, topic.id)
