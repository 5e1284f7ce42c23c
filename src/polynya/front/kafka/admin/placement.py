"""AlterReplicaLogDirs and AlterPartitionReassignments.

The cluster places the replicas, and a node has one directory. So a request succeeds where it asks for
what is there already, and is refused elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from polynya.front.kafka.admin.cluster import LOG_DIR
from polynya.front.kafka.brokers import brokers_in_zone, zone_of
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from polynya.wire.kafka.generated.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


async def alter_log_dirs(
    call: Call, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Refuse each other directory, as a broker with one does."""
    await call.context.topics.refresh()
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for asked in request.dirs:
        for topic in asked.topics:
            result = results.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
            async for number in in_turns(call, topic.partitions):
                error = Error.NONE
                if asked.path != LOG_DIR:
                    error = Error.LOG_DIR_NOT_FOUND
                elif call.context.brokers.own not in _replicas(call, topic.name, number):
                    error = Error.REPLICA_NOT_AVAILABLE
                result.partitions.append(AlterReplicaLogDirPartitionResult(number, error))
    return AlterReplicaLogDirsResponse(results=list(results.values()))


async def alter_reassignments(
    call: Call, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Refuse other replicas than a partition has. No reassignment is in progress that could end."""
    await call.context.topics.refresh()
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change, error_message=None
    )
    for asked in request.topics:
        result = ReassignableTopicResponse(asked.name)
        response.responses.append(result)
        async for partition in in_turns(call, asked.partitions):
            number = partition.partition_index
            error, why = _refusal(_replicas(call, asked.name, number), partition.replicas)
            result.partitions.append(ReassignablePartitionResponse(number, error, why))
    return response


def _replicas(call: Call, name: str, number: int) -> list[int]:
    """Return the brokers of a partition; none: it does not exist."""
    context = call.context
    topic = context.topics.known(name)
    if topic is None or not 0 <= number < topic.partitions:
        return []
    group = context.service.group_of(topic.stream(number))
    zone = zone_of(context.brokers, call.header.client_id)
    return brokers_in_zone(context.brokers, topic, number, group, zone).replicas


def _refusal(current: Sequence[int], wanted: Sequence[int] | None) -> tuple[Error, str | None]:
    if not current:
        return Error.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
    if wanted is None:
        return Error.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment of the partition is in progress"
    if sorted(wanted) == sorted(current):
        return Error.NONE, None
    listed = ", ".join(map(str, sorted(current)))
    why = f"the cluster places the replicas of a partition; this one's are on brokers {listed}"
    return Error.INVALID_REPLICA_ASSIGNMENT, why
