"""ListGroups, DescribeGroups and DeleteGroups."""

from __future__ import annotations

from polynya.access.kafka_acls import Operation
from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.errors import Error
from polynya.front.kafka.groups.coordinators import ask
from polynya.front.kafka.topic_frames import UNKNOWN_OPERATIONS
from polynya.stream.features.consumer_groups import calls
from polynya.stream.features.consumer_groups.calls import Description, Outcomes
from polynya.stream.features.consumer_groups.state import CLASSIC, CONSUMER
from polynya.wire.kafka.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from polynya.wire.kafka.generated.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from polynya.wire.kafka.generated.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

_TYPES = {CLASSIC: "classic", CONSUMER: "consumer"}
_DEAD = "Dead"
_NOT_FOUND_SINCE = 6  # the first version of DescribeGroups with an error for an unknown group


async def list_groups(call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    """Return the groups that this broker coordinates; clients ask all brokers."""
    context = call.context
    own = [
        group
        for group in range(1, context.service.groups + 1)
        if context.brokers.leader_of(group) == context.brokers.own
    ]
    try:
        found = await context.groups.list_groups(own)
    except PolynyaError:
        return ListGroupsResponse(error_code=Error.COORDINATOR_NOT_AVAILABLE)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    sees_all = call.caller.may_list_groups()
    listed = [
        ListedGroup(each.group, each.protocol_type, each.state, _TYPES[each.kind])
        for each in found
        if (sees_all or call.caller.may_use_group(each.group, Operation.DESCRIBE))
        and (not states or each.state.lower() in states)
        and (not types or _TYPES[each.kind] in types)
    ]
    return ListGroupsResponse(groups=listed)


async def describe_groups(call: Call, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Return the state and the members of groups."""
    groups = [await _described(call, id_) async for id_ in in_turns(call, request.groups)]
    return DescribeGroupsResponse(groups=groups)


async def _described(call: Call, id_: str) -> DescribedGroup:
    answer = await ask(call, calls.Describe(id_))
    if isinstance(answer, Outcomes):
        return DescribedGroup(answer.errors[0], None, id_)
    assert isinstance(answer, Description)
    members = [
        DescribedGroupMember(
            each.id, each.instance, each.client_id, each.client_host, each.metadata, each.assignment
        )
        for each in answer.members
    ]
    error, why = Error.NONE, None
    if answer.kind != CLASSIC:  # as in Kafka
        answer, members = Description(id_, _DEAD), []
    if answer.state == _DEAD and call.version >= _NOT_FOUND_SINCE:
        error, why = Error.GROUP_ID_NOT_FOUND, f"group '{id_}' is not a classic group"
    return DescribedGroup(
        error,
        why,
        id_,
        answer.state,
        answer.protocol_type,
        answer.protocol,
        members,
        UNKNOWN_OPERATIONS,
    )


async def delete_groups(call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups without members, with their offsets."""
    results = []
    async for id_ in in_turns(call, dict.fromkeys(request.groups_names)):
        answer = await ask(call, calls.Drop(id_))
        assert isinstance(answer, Outcomes)
        results.append(DeletableGroupResult(id_, answer.errors[0]))
    return DeleteGroupsResponse(results=results)
