"""DescribeTopicPartitions, DeleteRecords and OffsetForLeaderEpoch."""

from __future__ import annotations

from bisect import bisect_left

from polynya.access.grants import Verb
from polynya.base.errors import PolynyaError
from polynya.front.kafka.brokers import brokers_in_zone, zone_of
from polynya.front.kafka.call import Call, count, in_turns
from polynya.front.kafka.configs import CLEANUP_POLICY, CONFIGS, list_of
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error, error_of, error_of_fault
from polynya.front.kafka.leaders import epoch_error_of
from polynya.front.kafka.topics.catalog import is_topic_name
from polynya.local.api import Refusal, TrimQuery
from polynya.stream.features.topics.state import Topic
from polynya.wire.kafka.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from polynya.wire.kafka.generated.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from polynya.wire.kafka.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

PARTITIONS_SHOWN_MAX = 2000  # as Kafka's max.request.partition.size.limit: the rest by a cursor
HIGH_WATERMARK = -1  # in place of an offset
_BEGIN = Cursor("", 0)


async def describe_topic_partitions(
    call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, up to a number of partitions; a cursor says
    where the next response begins."""
    context = call.context
    await context.topics.refresh()
    known = context.topics.names
    asked = {each.name for each in request.topics}
    cursor = request.cursor or _BEGIN
    if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked | {""}):
        count(call, len(request.topics))
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(Error.INVALID_REQUEST, each.name)
                for each in request.topics
            ]
        )
    names = sorted(asked or filter(call.caller.may_describe, known))
    left = min(max(request.response_partition_limit, 1), PARTITIONS_SHOWN_MAX)
    response = DescribeTopicPartitionsResponse()
    for name in names[bisect_left(names, cursor.topic_name) :]:
        if not call.caller.may_describe(name):
            refused = Error.TOPIC_AUTHORIZATION_FAILED
            response.topics.append(DescribeTopicPartitionsResponseTopic(refused, name))
            continue
        if not left:
            response.next_cursor = Cursor(name, 0)
            break
        topic = context.topics.known(name)
        if topic is None:
            if asked:
                unknown = Error.UNKNOWN_TOPIC_OR_PARTITION
                missing = unknown if is_topic_name(name) else Error.INVALID_TOPIC
                response.topics.append(DescribeTopicPartitionsResponseTopic(missing, name))
            continue
        first = cursor.partition_index if name == cursor.topic_name else 0
        end = min(topic.partitions, first + left)
        response.topics.append(_described(call, topic, range(first, end)))
        left -= max(0, end - first)
        if end < topic.partitions:
            response.next_cursor = Cursor(name, end)
            break
    return response


def _described(call: Call, topic: Topic, numbers: range) -> DescribeTopicPartitionsResponseTopic:
    partitions, zone = [], zone_of(call.context.brokers, call.header.client_id)
    context = call.context
    for number in numbers:
        group = context.service.group_of(topic.stream(number))
        partition_brokers = brokers_in_zone(context.brokers, topic, number, group, zone)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                Error.NONE,
                number,
                partition_brokers.leader,
                partition_brokers.epoch,
                partition_brokers.replicas,
                partition_brokers.in_sync,
                eligible_leader_replicas=[],  # null is allowed, and ends Kafka's own client
                last_known_elr=[],
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        Error.NONE, topic.name, topic.id, partitions=partitions
    )


async def delete_records(call: Call, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """Delete the records before an offset, also where a batch holds the offset."""
    response = DeleteRecordsResponse()
    for asked in request.topics:
        result = DeleteRecordsTopicResult(asked.name)
        response.topics.append(result)
        topic = None
        missing = Error.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if call.caller.may(Verb.DELETE, asked.name):
                topic = await call.context.topics.find(asked.name)
            else:
                missing = Error.TOPIC_AUTHORIZATION_FAILED
        except PolynyaError as fault:
            missing = error_of_fault(fault)
        async for partition in in_turns(call, asked.partitions):
            answer = DeleteRecordsPartitionResult(partition.partition_index, -1)
            result.partitions.append(answer)
            if topic is None or not 0 <= partition.partition_index < topic.partitions:
                answer.error_code = missing
                continue
            try:
                answer.error_code = await _delete(call.context, topic, partition, answer)
            except PolynyaError as fault:
                answer.error_code = error_of_fault(fault)
    return response


async def _delete(
    context: Context,
    topic: Topic,
    asked: DeleteRecordsPartition,
    answer: DeleteRecordsPartitionResult,
) -> Error:
    policy = dict(topic.configs).get(CLEANUP_POLICY, CONFIGS[CLEANUP_POLICY].default)
    if "delete" not in list_of(policy):
        return Error.POLICY_VIOLATION
    name = topic.stream(asked.partition_index)
    info = await context.service.open(name).info()
    if isinstance(info, Refusal):
        return error_of(info.code)
    offset = info.record if asked.offset == HIGH_WATERMARK else asked.offset
    if not 0 <= offset <= info.record:
        return Error.OFFSET_OUT_OF_RANGE
    answer.low_watermark = info.first_record
    if offset > info.first_record:
        query = TrimQuery(name, offset, incarnation=info.uid, inside=True)
        trimmed = await context.service.trim(query)
        if isinstance(trimmed, Refusal):
            return error_of(trimmed.code)
        answer.low_watermark = trimmed.record
    return Error.NONE


async def offset_for_leader_epoch(
    call: Call, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Answer where the records of a leader epoch end: at the high watermark, or for an epoch of
    before a restore where the restored copy ended. Clients see committed records alone, which no
    election removes."""
    response = OffsetForLeaderEpochResponse()
    for asked in request.topics:
        result = OffsetForLeaderTopicResult(asked.topic)
        response.topics.append(result)
        async for partition in in_turns(call, asked.partitions):
            answer = EpochEndOffset(partition=partition.partition)
            result.partitions.append(answer)
            try:
                answer.error_code = await _epoch_end(call, asked.topic, partition, answer)
            except PolynyaError as fault:
                answer.error_code = error_of_fault(fault)
    return response


async def _epoch_end(
    call: Call, name: str, asked: OffsetForLeaderPartition, answer: EpochEndOffset
) -> Error:
    context = call.context
    if not call.caller.may_describe(name):
        return Error.TOPIC_AUTHORIZATION_FAILED
    topic = await context.topics.open(name)
    stream = None if topic is None else topic.partition(asked.partition)
    if stream is None:
        return Error.UNKNOWN_TOPIC_OR_PARTITION
    error = epoch_error_of(context.brokers, stream.group, asked.current_leader_epoch)
    if error != Error.NONE or asked.leader_epoch < 0:
        return error
    end = await context.service.epoch_end(stream.name, asked.leader_epoch)
    if isinstance(end, Refusal):
        return error_of(end.code)
    if end >= 0:
        answer.leader_epoch, answer.end_offset = asked.leader_epoch, end
    return Error.NONE
