"""DescribeQuorum: the meta group's quorum in the place of Kafka's controllers."""

from __future__ import annotations

from polynya.base.errors import PolynyaError
from polynya.front.kafka.admin.quorum_members import QuorumMember
from polynya.front.kafka.auth.user_admin import now_ms
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error, error_of_fault
from polynya.wire.kafka.generated import describe_quorum as wire

TOPIC = "__cluster_metadata"  # as Kafka names the log of its controllers
_UNKNOWN = -1  # a time
_LISTENER = "KAFKA"


async def describe_quorum(
    call: Call, request: wire.DescribeQuorumRequest
) -> wire.DescribeQuorumResponse:
    """Return leader, voters and the ends of their logs, for the one partition that has them."""
    asked = [
        (topic.topic_name, each.partition_index)
        for topic in request.topics
        for each in topic.partitions
    ]
    if asked != [(TOPIC, 0)]:
        return _refused(request, Error.UNKNOWN_TOPIC_OR_PARTITION, "only the metadata has a quorum")
    try:
        found = await call.context.quorum()
    except PolynyaError as fault:
        return _refused(request, error_of_fault(fault), str(fault))
    at = now_ms()
    end = max(each.end for each in found.voters)
    part = wire.PartitionDataResponse(
        0,
        Error.NONE,
        None,
        found.leader,
        found.epoch,
        found.committed,
        [_state(each, end, at) for each in found.voters],
        [_state(each, end, at) for each in found.observers],
    )
    members = {each.broker for each in (*found.voters, *found.observers)}
    nodes = [
        wire.Node(each.id, [wire.Listener(_LISTENER, each.host, each.port)])
        for each in call.context.brokers.all()
        if each.id in members
    ]
    return wire.DescribeQuorumResponse(
        Error.NONE, None, [wire.TopicDataResponse(TOPIC, [part])], nodes
    )


def _state(member: QuorumMember, end: int, at: int) -> wire.ReplicaState:
    """Return a member's state. The time at which one that lags was caught up is not kept."""
    seen = at if member.end >= end else _UNKNOWN
    return wire.ReplicaState(
        member.broker,
        log_end_offset=member.end,
        last_fetch_timestamp=seen,
        last_caught_up_timestamp=seen,
    )


def _refused(
    request: wire.DescribeQuorumRequest, error: Error, why: str
) -> wire.DescribeQuorumResponse:
    return wire.DescribeQuorumResponse(
        Error.NONE,
        None,
        [
            wire.TopicDataResponse(
                topic.topic_name,
                [
                    wire.PartitionDataResponse(each.partition_index, error, why, -1, -1, -1)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
