"""DescribeCluster and DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Iterable

from polynya.base.errors import PolynyaError
from polynya.front.kafka.call import Call, in_turns
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error
from polynya.local.api import StreamInfo
from polynya.wire.kafka.generated import (
    describe_cluster,
    describe_log_dirs,
)

LOG_DIR = "/polynya"  # a name: the data of a partition lies in several places
LOG_DIR_PARTITIONS_MAX = 10_000  # in one response; each costs a look at its stream
BROKERS = 1  # the kind of endpoints; 2 are controllers, which have none here
MISMATCHED_ENDPOINT_TYPE = 114


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
    stream = context.service.open(topic.stream(number))
    if context.brokers.leader_of(stream.group) != context.brokers.own:
        return None
    try:
        info = await stream.info(local=True)
    except PolynyaError:
        return None
    return info.byte - info.first_byte if isinstance(info, StreamInfo) else None
