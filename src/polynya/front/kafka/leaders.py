"""Leaders as clients know them: the check of their leader epochs, the limit of forwarding, and the
leader in the answer to a client that asks the wrong broker (KIP-320, KIP-951)."""

from __future__ import annotations

from typing import Any

from polynya.base.limits import KAFKA_FORWARD_BYTES_MAX
from polynya.front.kafka.brokers import is_diskless, owner_in_zone, zone_of
from polynya.front.kafka.call import Call
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error
from polynya.stream.rules.topics import Topic
from polynya.wire.kafka.generated import fetch as fetch_message
from polynya.wire.kafka.generated import produce as produce_message

_TOLD = (Error.NOT_LEADER, Error.FENCED_LEADER_EPOCH)
_FETCH_BY_ID_SINCE = _PRODUCE_BY_ID_SINCE = 13


def epoch_error(given: int, epoch: int) -> Error:
    """Compare the leader epoch that a client knows with the current one; -1: unknown."""
    if given < 0 or epoch < 0 or given == epoch:
        return Error.NONE
    return Error.FENCED_LEADER_EPOCH if given < epoch else Error.UNKNOWN_LEADER_EPOCH


def epoch_error_of(context: Context, stream: str, given: int) -> Error:
    """Compare the leader epoch that a client knows of a partition's stream with the current one."""
    if given < 0:
        return Error.NONE
    return epoch_error(given, context.brokers.epoch_of(context.service.group_of(stream)))


def racks_of(context: Context, rack: str) -> dict[int, str]:
    """Return the racks of the brokers for a consumer of this rack that may be sent to a follower;
    empty: the consumer names none, or this broker is in it."""
    if not rack:
        return {}
    racks = {each.id: each.rack or "" for each in context.brokers.all()}
    return {} if racks.get(context.brokers.own) == rack else racks


def follower_of(
    context: Context, topic: Topic, stream: str, rack: str, racks: dict[int, str]
) -> int:
    """Return an in-sync follower of a partition in the consumer's rack (KIP-392), or the owner of a
    diskless one there; -1: none, or another broker is the leader, which decides."""
    if not racks:
        return -1
    group = context.service.group_of(stream)
    if is_diskless(topic):
        return owner_in_zone(context.brokers, stream, group, rack)
    if context.brokers.leader_of(group) != context.brokers.own:
        return -1
    _, in_sync = context.brokers.replicas_of(group)
    return next((broker for broker in in_sync if racks.get(broker) == rack), -1)


def is_too_far(call: Call, stream: str) -> bool:
    """Report whether a request is too large to be forwarded to the broker of this partition."""
    if len(call.data) <= KAFKA_FORWARD_BYTES_MAX:
        return False
    brokers = call.context.brokers
    return brokers.leader_of(call.context.service.group_of(stream)) != brokers.own


def tell_of_produce(call: Call, response: produce_message.ProduceResponse) -> None:
    """Name the leaders of the partitions that another broker leads."""
    by_id, leaders = call.version >= _PRODUCE_BY_ID_SINCE, set[int]()
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code in _TOLD:
                name = _name_of(call.context, topic.topic_id if by_id else topic.name)
                leader = _leader_of(call, name, part.index)
                part.current_leader = produce_message.LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    response.node_endpoints = _endpoints(call.context, leaders, produce_message.NodeEndpoint)


def tell_of_fetch(call: Call, response: fetch_message.FetchResponse) -> None:
    """Name the leaders of the partitions that another broker leads."""
    by_id, leaders = call.version >= _FETCH_BY_ID_SINCE, set[int]()
    for topic in response.responses:
        for part in topic.partitions:
            if part.error_code in _TOLD:
                name = _name_of(call.context, topic.topic_id if by_id else topic.topic)
                leader = _leader_of(call, name, part.partition_index)
                part.current_leader = fetch_message.LeaderIdAndEpoch(*leader)
                leaders.add(leader[0])
    response.node_endpoints = _endpoints(call.context, leaders, fetch_message.NodeEndpoint)


def _name_of(context: Context, key: str | bytes) -> str:
    if isinstance(key, str):
        return key
    topic = context.topics.ids.get(key)
    return "" if topic is None else topic.name


def _leader_of(call: Call, topic: str, partition: int) -> tuple[int, int]:
    """Return the leader of a partition and its epoch, (-1, -1) if the leader is not known."""
    context = call.context
    known = context.topics.known(topic)
    if known is None or not 0 <= partition < known.partitions:
        return -1, -1
    stream = known.stream(partition)
    group = context.service.group_of(stream)
    if is_diskless(known):
        owner = context.brokers.owner_of(
            stream, group, zone_of(context.brokers, call.header.client_id)
        )
        return owner, context.brokers.epoch_of(group)
    return context.brokers.leader_of(group), context.brokers.epoch_of(group)


def _endpoints(context: Context, leaders: set[int], kind: Any) -> list[Any]:
    if not leaders:
        return []
    return [
        kind(each.id, each.host, each.port, each.rack)
        for each in context.brokers.all()
        if each.id in leaders
    ]
