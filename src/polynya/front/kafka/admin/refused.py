"""The keys that are only refused: what Kafka's tools request and a cluster here does alone, and the
keys of the cluster for tokens without `admin`.

Replicas and leaders are placed by the cluster: see docs/kafka.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polynya.front.kafka.admin.cluster import LOG_DIR
from polynya.front.kafka.call import Call
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.generated import (
    alter_client_quotas,
    create_acls,
    delete_acls,
    describe_acls,
    describe_client_quotas,
    describe_log_dirs,
    describe_quorum,
    elect_leaders,
    list_config_resources,
    list_partition_reassignments,
    write_txn_markers,
)
from polynya.wire.kafka.generated import alter_partition_reassignments as alter_reassignments
from polynya.wire.kafka.generated import alter_replica_log_dirs as alter_dirs
from polynya.wire.kafka.generated import alter_user_scram_credentials as alter_users
from polynya.wire.kafka.generated import describe_user_scram_credentials as describe_users

_DENIED = (Error.CLUSTER_AUTHORIZATION_FAILED, "the token does not allow 'admin'")
_Build = Callable[[Any, Error, str | None], Any]  # a response with an error and its message


def _elections(request: elect_leaders.ElectLeadersRequest, error: Error, why: str | None) -> Any:
    results = [
        elect_leaders.ReplicaElectionResult(
            asked.topic,
            [elect_leaders.PartitionResult(each, error, why) for each in asked.partitions],
        )
        for asked in request.topic_partitions or ()
    ]
    return elect_leaders.ElectLeadersResponse(
        error_code=Error.NONE if error == Error.ELECTION_NOT_NEEDED else error,
        replica_election_results=results,
    )


def _moves(request: alter_dirs.AlterReplicaLogDirsRequest, error: Error, _: str | None) -> Any:
    return alter_dirs.AlterReplicaLogDirsResponse(
        results=[
            alter_dirs.AlterReplicaLogDirTopicResult(
                topic.name,
                [
                    alter_dirs.AlterReplicaLogDirPartitionResult(at, error)
                    for at in topic.partitions
                ],
            )
            for asked in request.dirs
            for topic in asked.topics
        ]
    )


def _markers(request: write_txn_markers.WriteTxnMarkersRequest, error: Error, _: str | None) -> Any:
    return write_txn_markers.WriteTxnMarkersResponse(
        [
            write_txn_markers.WritableTxnMarkerResult(
                each.producer_id,
                [
                    write_txn_markers.WritableTxnMarkerTopicResult(
                        topic.name,
                        [
                            write_txn_markers.WritableTxnMarkerPartitionResult(number, error)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in request.markers
        ]
    )


_BUILDS: dict[int, _Build] = {
    write_txn_markers.KEY: _markers,
    alter_dirs.KEY: _moves,
    alter_reassignments.KEY: lambda _, error, why: (
        alter_reassignments.AlterPartitionReassignmentsResponse(error_code=error, error_message=why)
    ),
    list_config_resources.KEY: lambda _, error, why: (
        list_config_resources.ListConfigResourcesResponse(error_code=error)
    ),
    describe_acls.KEY: lambda _, error, why: describe_acls.DescribeAclsResponse(
        error_code=error, error_message=why
    ),
    create_acls.KEY: lambda request, error, why: create_acls.CreateAclsResponse(
        results=[create_acls.AclCreationResult(error, why)] * len(request.creations)
    ),
    delete_acls.KEY: lambda request, error, why: delete_acls.DeleteAclsResponse(
        filter_results=[delete_acls.DeleteAclsFilterResult(error, why)] * len(request.filters)
    ),
    describe_log_dirs.KEY: lambda _, error, why: describe_log_dirs.DescribeLogDirsResponse(
        error_code=error, results=[describe_log_dirs.DescribeLogDirsResult(error, LOG_DIR)]
    ),
    elect_leaders.KEY: _elections,
    list_partition_reassignments.KEY: lambda _, error, why: (
        list_partition_reassignments.ListPartitionReassignmentsResponse(
            error_code=error, error_message=why
        )
    ),
    describe_client_quotas.KEY: lambda _, error, why: (
        describe_client_quotas.DescribeClientQuotasResponse(
            error_code=error, error_message=why, entries=None
        )
    ),
    alter_client_quotas.KEY: lambda request, error, why: (
        alter_client_quotas.AlterClientQuotasResponse(
            entries=[
                alter_client_quotas.EntryDataResponse(error, why, each.entity)
                for each in request.entries
            ]
        )
    ),
    describe_quorum.KEY: lambda _, error, why: describe_quorum.DescribeQuorumResponse(
        error_code=error, error_message=why
    ),
    describe_users.KEY: lambda _, error, why: describe_users.DescribeUserScramCredentialsResponse(
        error_code=error, error_message=why
    ),
    alter_users.KEY: lambda request, error, why: alter_users.AlterUserScramCredentialsResponse(
        results=[
            alter_users.AlterUserScramCredentialsResult(name, error, why)
            for name in dict.fromkeys(
                each.name for each in (*request.deletions, *request.upsertions)
            )
        ]
    ),
}
REFUSED: dict[int, tuple[Error, str | None]] = {
    elect_leaders.KEY: (Error.ELECTION_NOT_NEEDED, None),  # the cluster places its leaders
    list_partition_reassignments.KEY: (Error.NONE, None),  # replicas move inside the cluster
}


async def refuse(call: Call, request: Any) -> Any:
    """Answer a request of a key that is only refused."""
    key = call.header.key
    return _BUILDS[key](request, *REFUSED[key])


def denied(key: int, request: Any) -> Any:
    """Return the answer to a request that needs `admin`, from a token without it."""
    return _BUILDS[key](request, *_DENIED)
