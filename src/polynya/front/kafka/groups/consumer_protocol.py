"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the consumer protocol (KIP-848)."""

from __future__ import annotations

import secrets

from polynya.access.grants import Verb
from polynya.base.levels import CONSUMER_PROTOCOL_LEVEL
from polynya.base.limits import GROUP_ID_BYTES_MAX, GROUP_REBALANCE_MS_MAX
from polynya.front.kafka.call import Call, count, in_turns
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.coordinators import ask
from polynya.front.kafka.topic_frames import UNKNOWN_OPERATIONS
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import (
    DescribedMember,
    Description,
    HeartbeatAnswer,
    Outcomes,
)
from polynya.stream.features.consumer_groups.modern_members import JOIN_EPOCH, LEFT_EPOCH
from polynya.stream.features.consumer_groups.state import CONSUMER
from polynya.wire.kafka.generated import consumer_group_describe as describe
from polynya.wire.kafka.generated import consumer_group_heartbeat as beat
from polynya.wire.kafka.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

_CLIENTS_NAME_THEMSELVES_SINCE = 1  # the member id
_OLDER = (
    "group.protocol=consumer needs an upgrade of all nodes; set group.protocol=classic until then"
)
_CONSUMER_MEMBER = 1  # a type of members
_Partitions = list[tuple[bytes, list[int]]]


async def heartbeat(
    call: Call, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Join a group, keep the membership, confirm partitions, or leave."""
    if call.context.service.level < CONSUMER_PROTOCOL_LEVEL:
        return ConsumerGroupHeartbeatResponse(
            error_code=Error.UNSUPPORTED_VERSION, error_message=_OLDER
        )
    fault = _fault(call, request)
    if fault:
        return ConsumerGroupHeartbeatResponse(error_code=Error.INVALID_REQUEST, error_message=fault)
    topics = request.subscribed_topic_names
    if call.caller.may_use_group(request.group_id):
        async for name in in_turns(call, topics or ()):
            if not call.caller.may(Verb.READ, name):
                return ConsumerGroupHeartbeatResponse(
                    error_code=Error.TOPIC_AUTHORIZATION_FAILED,
                    error_message=f"the token does not allow 'read' on topic '{name}'",
                )
    claim = request.topic_partitions
    answer = await ask(
        call,
        calls.ConsumerHeartbeat(
            request.group_id,
            request.member_id or secrets.token_urlsafe(16),
            request.member_epoch,
            request.instance_id,
            call.header.client_id,
            f"/{call.connection.remote}",
            request.rack_id,
            min(request.rebalance_timeout_ms, GROUP_REBALANCE_MS_MAX),
            topics,
            request.subscribed_topic_regex,
            call.caller.readable(),
            request.server_assignor,
            None if claim is None else [(each.topic_id, each.partitions) for each in claim],
        ),
    )
    if isinstance(answer, Outcomes):
        return ConsumerGroupHeartbeatResponse(error_code=answer.errors[0])
    assert isinstance(answer, HeartbeatAnswer)
    found = answer.assignment
    assignment = None
    if found is not None:
        count(call, len(found))
        assignment = beat.Assignment([beat.TopicPartitions(*each) for each in found])
    return ConsumerGroupHeartbeatResponse(
        0,
        answer.error,
        answer.message,
        answer.member,
        answer.epoch,
        answer.interval_ms,
        assignment,
    )


def _fault(call: Call, request: ConsumerGroupHeartbeatRequest) -> str:
    """Return why a request is invalid, as Kafka judges it; "" if it is valid."""
    epoch = request.member_epoch
    ids = (request.member_id, request.instance_id or "", request.rack_id or "")
    if any(len(each.encode()) > GROUP_ID_BYTES_MAX for each in ids):
        return (
            f"a member's id, its instance id and its rack have at most {GROUP_ID_BYTES_MAX} bytes"
        )
    if request.instance_id == "" or request.rack_id == "":
        return "InstanceId and RackId can't be empty: leave them null"
    may_be_new = epoch == JOIN_EPOCH and call.version < _CLIENTS_NAME_THEMSELVES_SINCE
    if not request.member_id and not may_be_new:
        return "MemberId can't be empty"
    if epoch < LEFT_EPOCH:
        return f"MemberEpoch is {epoch}; expected {LEFT_EPOCH} or more"
    if epoch == LEFT_EPOCH and request.instance_id is None:
        return "InstanceId can't be null with MemberEpoch -2"
    if epoch != JOIN_EPOCH:
        return ""
    if request.rebalance_timeout_ms < 0:
        return "RebalanceTimeoutMs must be provided in first request"
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining"
    return ""


# --- describe -------------------------------------------------------------------------------------


async def describe_groups(
    call: Call, request: describe.ConsumerGroupDescribeRequest
) -> describe.ConsumerGroupDescribeResponse:
    """Return the state and the members of groups of the consumer protocol."""
    asked = dict.fromkeys(request.group_ids)
    groups = [await _described(call, id_) async for id_ in in_turns(call, asked)]
    return describe.ConsumerGroupDescribeResponse(groups=groups)


async def _described(call: Call, id_: str) -> describe.DescribedGroup:
    answer = await ask(call, calls.Describe(id_))
    if isinstance(answer, Outcomes):
        return describe.DescribedGroup(answer.errors[0], None, id_)
    assert isinstance(answer, Description)
    if answer.kind != CONSUMER:
        why = f"group '{id_}' is not a consumer group"
        return describe.DescribedGroup(Error.GROUP_ID_NOT_FOUND, why, id_)
    names = await _names(call, answer.members)
    if not all(call.caller.may_describe(name) for name in names.values()):
        why = "the group reads topics that the token may not describe"
        return describe.DescribedGroup(Error.TOPIC_AUTHORIZATION_FAILED, why, id_)
    members = [_member(each, names) async for each in in_turns(call, answer.members)]
    return describe.DescribedGroup(
        Error.NONE,
        None,
        id_,
        answer.state,
        answer.epoch,
        answer.epoch,  # a group's targets are made together with its epoch
        answer.protocol,
        members,
        UNKNOWN_OPERATIONS,
    )


async def _names(call: Call, members: list[DescribedMember]) -> dict[bytes, str]:
    """Return the names of the topics that members have or shall have."""
    ids = {topic for each in members for topic, _ in (*each.owned, *each.target)}
    found = {}
    async for id_ in in_turns(call, ids):
        topic = await call.context.topics.find_id(id_)
        if topic is not None:
            found[id_] = topic.name
    return found


def _member(member: DescribedMember, names: dict[bytes, str]) -> describe.Member:
    return describe.Member(
        member.id,
        member.instance,
        member.rack,
        member.epoch,
        member.client_id,
        member.client_host,
        member.topics,
        member.regex,
        _assignment(member.owned, names),
        _assignment(member.target, names),
        _CONSUMER_MEMBER,
    )


def _assignment(partitions: _Partitions, names: dict[bytes, str]) -> describe.Assignment:
    return describe.Assignment(
        [
            describe.TopicPartitions(topic, names[topic], numbers)
            for topic, numbers in partitions
            if topic in names
        ]
    )
