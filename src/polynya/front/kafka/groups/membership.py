"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from polynya.base.limits import (
    GROUP_ID_BYTES_MAX,
    GROUP_PROTOCOLS_MAX,
    GROUP_REBALANCE_MS_MAX,
    GROUP_SESSION_MS_MAX,
    GROUP_SESSION_MS_MIN,
)
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.coordinators import ask
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import Joined, Outcomes, Synced
from polynya.wire.kafka.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from polynya.wire.kafka.generated.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from polynya.wire.kafka.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from polynya.wire.kafka.generated.sync_group import SyncGroupRequest, SyncGroupResponse

_REBALANCE_TIMEOUT_SINCE = 1
_MEMBER_ID_REQUIRED_SINCE = 4  # of JoinGroup
_NULL_PROTOCOL_SINCE = 7
_SKIPS_ASSIGNMENT_SINCE = 9
_LEAVES_BATCHED_SINCE = 3


async def join_group(call: Call, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join a group. The answer waits until the rebalance has gathered all members."""
    error = _join_error(request)
    if error:
        return _joined(call, Joined(error, request.member_id))
    by_session = call.version < _REBALANCE_TIMEOUT_SINCE
    timeout_ms = request.session_timeout_ms if by_session else request.rebalance_timeout_ms
    answer = await ask(
        call,
        calls.Join(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            call.header.client_id,
            f"/{call.connection.remote}",
            request.protocol_type,
            [(each.name, each.metadata) for each in request.protocols],
            request.session_timeout_ms,
            min(max(timeout_ms, 0), GROUP_REBALANCE_MS_MAX),
            call.version >= _MEMBER_ID_REQUIRED_SINCE,
            call.version >= _SKIPS_ASSIGNMENT_SINCE,
        ),
    )
    if isinstance(answer, Outcomes):
        answer = Joined(answer.errors[0], request.member_id)
    assert isinstance(answer, Joined)
    return _joined(call, answer)


def _join_error(request: JoinGroupRequest) -> Error:
    ids = (request.member_id, request.group_instance_id or "", request.protocol_type)
    names = [each.name for each in request.protocols]
    if any(len(each.encode()) > GROUP_ID_BYTES_MAX for each in (*ids, *names)):
        return Error.INVALID_REQUEST
    if len(names) > GROUP_PROTOCOLS_MAX or request.group_instance_id == "":
        return Error.INVALID_REQUEST
    if not GROUP_SESSION_MS_MIN <= request.session_timeout_ms <= GROUP_SESSION_MS_MAX:
        return Error.INVALID_SESSION_TIMEOUT
    return Error.NONE


def _joined(call: Call, answer: Joined) -> JoinGroupResponse:
    protocol = answer.protocol
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol if call.version >= _NULL_PROTOCOL_SINCE else protocol or "",
        leader=answer.leader,
        skip_assignment=answer.skips_assignment,
        member_id=answer.member,
        members=[JoinGroupResponseMember(*each) for each in answer.members],
    )


async def sync_group(call: Call, request: SyncGroupRequest) -> SyncGroupResponse:
    """Return the member's assignment, when the leader has brought it."""
    answer = await ask(
        call,
        calls.Sync(
            request.group_id,
            request.generation_id,
            request.member_id,
            request.group_instance_id,
            request.protocol_type,
            request.protocol_name,
            [(each.member_id, each.assignment) for each in request.assignments],
        ),
    )
    if isinstance(answer, Outcomes):
        return SyncGroupResponse(error_code=answer.errors[0])
    assert isinstance(answer, Synced)
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def heartbeat(call: Call, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep the membership."""
    answer = await ask(
        call,
        calls.Heartbeat(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        ),
    )
    assert isinstance(answer, Outcomes)
    return HeartbeatResponse(error_code=answer.errors[0])


async def leave_group(call: Call, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members, several since version 3."""
    batched = call.version >= _LEAVES_BATCHED_SINCE
    gone = request.members if batched else [MemberIdentity(request.member_id)]
    members = [(each.member_id, each.group_instance_id) for each in gone]
    answer = await ask(call, calls.Leave(request.group_id, members))
    assert isinstance(answer, Outcomes)
    errors = answer.errors
    if not batched:
        return LeaveGroupResponse(error_code=errors[0])
    if len(errors) != len(gone):  # of the group, not of its members
        return LeaveGroupResponse(error_code=errors[0])
    listed = [
        MemberResponse(each.member_id, each.group_instance_id, error)
        for each, error in zip(gone, errors, strict=True)
    ]
    if all(error in _OF_ALL for error in errors) and errors:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(members=listed)


_OF_ALL = (Error.NOT_COORDINATOR, Error.COORDINATOR_NOT_AVAILABLE, Error.INVALID_GROUP_ID)
