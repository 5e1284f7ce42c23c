"""DescribeCluster, DescribeLogDirs, and what Kafka's tools request and a cluster here does alone.

Replicas and leaders are placed by the cluster, and access is by tokens: see docs/kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error
from polynya.local.api import StreamInfo
from polynya.wire.kafka.generated import (
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_log_dirs,
    elect_leaders,
    list_partition_reassignments,
)

LOG_DIR = "/polynya"  # a name: the data of a partition lies in several places
LOG_DIR_PARTITIONS_MAX = 10_000  # in one response; each costs a look at its stream
BROKERS = 1  # the kind of endpoints; 2 are controllers, which have none here
MISMATCHED_ENDPOINT_TYPE = 114
_NO_ACLS = "ACLs are not served: access is by tokens and their scopes, see docs/kafka.md"


async def cluster(
    call: Call, request: describe_cluster.DescribeClusterRequest
) -> describe_cluster.DescribeClusterResponse:
    """Describe the brokers."""
    brokers = call.context.brokers
    response = describe_cluster.DescribeClusterResponse(
        endpoint_type=request.endpoint_type,
        cluster_id=brokers.cluster_id,
        controller_id=brokers.own,
    )
    if request.endpoint_type != BROKERS:
        response.error_code = MISMATCHED_ENDPOINT_TYPE
        response.error_message = "this is a broker; controllers have no listener of their own"
        return response
    response.brokers = [
        describe_cluster.DescribeClusterBroker(each.id, each.host, each.port, each.rack)
        for each in brokers.all()
    ]
    return response


async def log_dirs(
    call: Call, request: describe_log_dirs.DescribeLogDirsRequest
) -> describe_log_dirs.DescribeLogDirsResponse:
    """Report the bytes of the partitions that this broker leads, in one directory."""
    context = call.context
    await context.topics.refresh(local=True)
    every: Iterable[tuple[str, Iterable[int]]]
    if request.topics is None:
        every = [(each.name, range(each.partitions)) for each in context.topics.names.values()]
    else:
        every = [(each.topic, each.partitions) for each in request.topics]
    result = describe_log_dirs.DescribeLogDirsResult(Error.NONE, LOG_DIR)
    left = LOG_DIR_PARTITIONS_MAX
    for name, numbers in every:
        listed = []
        async for number in in_turns(call, numbers):
            if not left:
                continue
            size = await _size(context, name, number)
            if size is not None:
                left -= 1
                listed.append(describe_log_dirs.DescribeLogDirsPartition(number, size))
        if listed:
            result.topics.append(describe_log_dirs.DescribeLogDirsTopic(name, listed))
    return describe_log_dirs.DescribeLogDirsResponse(results=[result])


async def _size(context: Context, name: str, number: int) -> int | None:
    """Return the bytes of a partition if this broker leads it."""
    topic = context.topics.known(name)
    if topic is None or not 0 <= number < topic.partitions:
        return None
    stream = topic.stream(number)
    if context.brokers.leader_of(context.service.group_of(stream)) != context.brokers.own:
        return None
    try:
        info = await context.service.info(stream, local=True)
    except PolynyaError:
        return None
    return info.byte - info.first_byte if isinstance(info, StreamInfo) else None


async def acls(
    call: Call, request: describe_acls.DescribeAclsRequest
) -> describe_acls.DescribeAclsResponse:
    """Refuse, as a Kafka broker without an authorizer."""
    return describe_acls.DescribeAclsResponse(
        error_code=Error.SECURITY_DISABLED, error_message=_NO_ACLS
    )


async def new_acls(
    call: Call, request: create_acls.CreateAclsRequest
) -> create_acls.CreateAclsResponse:
    """Refuse, as a Kafka broker without an authorizer."""
    refused = create_acls.AclCreationResult(Error.SECURITY_DISABLED, _NO_ACLS)
    return create_acls.CreateAclsResponse(results=[refused] * len(request.creations))


async def no_acls(
    call: Call, request: delete_acls.DeleteAclsRequest
) -> delete_acls.DeleteAclsResponse:
    """Refuse, as a Kafka broker without an authorizer."""
    refused = delete_acls.DeleteAclsFilterResult(Error.SECURITY_DISABLED, _NO_ACLS)
    return delete_acls.DeleteAclsResponse(filter_results=[refused] * len(request.filters))


async def quotas(
    call: Call, request: describe_client_quotas.DescribeClientQuotasRequest
) -> describe_client_quotas.DescribeClientQuotasResponse:
    """Answer that there are none: tokens have the quotas."""
    return describe_client_quotas.DescribeClientQuotasResponse(error_message=None)


async def elections(
    call: Call, request: elect_leaders.ElectLeadersRequest
) -> elect_leaders.ElectLeadersResponse:
    """Answer that no election is needed: the cluster places its leaders."""
    response = elect_leaders.ElectLeadersResponse()
    for asked in request.topic_partitions or ():
        results = [
            elect_leaders.PartitionResult(number, Error.ELECTION_NOT_NEEDED, None)
            for number in asked.partitions
        ]
        response.replica_election_results.append(
            elect_leaders.ReplicaElectionResult(asked.topic, results)
        )
    return response


async def reassignments(
    call: Call, request: list_partition_reassignments.ListPartitionReassignmentsRequest
) -> list_partition_reassignments.ListPartitionReassignmentsResponse:
    """Answer that there are none: replicas move inside the cluster."""
    return list_partition_reassignments.ListPartitionReassignmentsResponse(error_message=None)


def denied(key: int, request: Any) -> Any:
    """Return the answer to a request that needs `admin`, from a token without it."""
    return _DENIED[key](request)


def _denied_log_dirs(_: Any) -> describe_log_dirs.DescribeLogDirsResponse:
    refused = describe_log_dirs.DescribeLogDirsResult(_UNAUTHORIZED, LOG_DIR)
    return describe_log_dirs.DescribeLogDirsResponse(error_code=_UNAUTHORIZED, results=[refused])


def _denied_elections(request: elect_leaders.ElectLeadersRequest) -> Any:
    results = [
        elect_leaders.ReplicaElectionResult(
            asked.topic,
            [elect_leaders.PartitionResult(each, _UNAUTHORIZED, _WHY) for each in asked.partitions],
        )
        for asked in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(
        error_code=_UNAUTHORIZED, replica_election_results=results
    )


_UNAUTHORIZED = Error.CLUSTER_AUTHORIZATION_FAILED
_WHY = "the token does not allow 'admin'"
_DENIED: dict[int, Callable[[Any], Any]] = {
    describe_acls.KEY: lambda _: describe_acls.DescribeAclsResponse(
        error_code=_UNAUTHORIZED, error_message=_WHY
    ),
    create_acls.KEY: lambda request: create_acls.CreateAclsResponse(
        results=[create_acls.AclCreationResult(_UNAUTHORIZED, _WHY)] * len(request.creations)
    ),
    delete_acls.KEY: lambda request: delete_acls.DeleteAclsResponse(
        filter_results=[delete_acls.DeleteAclsFilterResult(_UNAUTHORIZED, _WHY)]
        * len(request.filters)
    ),
    describe_log_dirs.KEY: _denied_log_dirs,
    elect_leaders.KEY: _denied_elections,
    list_partition_reassignments.KEY: lambda _: (
        list_partition_reassignments.ListPartitionReassignmentsResponse(
            error_code=_UNAUTHORIZED, error_message=_WHY
        )
    ),
    describe_client_quotas.KEY: lambda _: describe_client_quotas.DescribeClientQuotasResponse(
        error_code=_UNAUTHORIZED, error_message=_WHY, entries=None
    ),
}
