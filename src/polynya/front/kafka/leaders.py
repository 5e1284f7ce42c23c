"""Leaders as clients know them: the check of their leader epochs, the limit of forwarding, and the
leader in the answer to a client that asks the wrong broker (KIP-320, KIP-951)."""

from __future__ import annotations

from typing import Any

from polynya.front.kafka.brokers import Brokers, is_diskless, owner_in_zone, zone_of
from polynya.front.kafka.call import Call
from polynya.front.kafka.context import Context
from polynya.front.kafka.errors import Error
from polynya.routing.handle import StreamHandle
from polynya.stream.features.topics.state import Topic
from polynya.wire.kafka.generated import fetch as fetch_message
from polynya.wire.kafka.generated import produce as produce_message

_TOLD = (Error.NOT_LEADER, Error.FENCED_LEADER_EPOCH)
_FETCH_BY_ID_SINCE = _PRODUCE_BY_ID_SINCE = 13


def epoch_error(given: int, epoch: int) -> Error:
    """Compare the leader epoch that a client knows with the current one; -1: unknown."""
    if given < 0 or epoch < 0 or given == epoch:
        return Error.NONE
    return Error.FENCED_LEADER_EPOCH if given < epoch else Error.UNKNOWN_LEADER_EPOCH


def epoch_error_of(brokers: Brokers, group: int, given: int) -> Error:
    """Compare the leader epoch that a client knows of a partition in a group with the current
    one."""
    return Error.NONE if given < 0 else epoch_error(given, brokers.epoch_of(group))


def racks_of(brokers: Brokers, rack: str) -> dict[int, str]:
    """Return the racks of the brokers for a consumer of this rack that may be sent to a follower;
    empty: this broker is in it."""
    racks = {each.id: each.rack or "" for each in brokers.all()}
    return {} if racks.get(brokers.own) == rack else racks


def follower_of(
    brokers: Brokers, topic: Topic, stream: StreamHandle, rack: str, racks: dict[int, str]
) -> int:
    """Return an in-sync follower of a partition in the consumer's rack (KIP-392), or the owner of a
    diskless one there; -1: none, or another broker is the leader, which decides."""
    if is_diskless(topic):
        return owner_in_zone(brokers, stream, rack)
    if is_elsewhere_led(brokers, stream.group):
        return -1
    _, in_sync = brokers.replicas_of(stream.group)
    return next((broker for broker in in_sync if racks.get(broker) == rack), -1)


def is_elsewhere_led(brokers: Brokers, group: int) -> bool:
    """Report whether clients are to send requests for a group to another broker."""
    return brokers.leader_of(group) != brokers.own


def add_leaders_to_produce(call: Call, response: produce_message.ProduceResponse) -> None:
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


def add_leaders_to_fetch(call: Call, response: fetch_message.FetchResponse) -> None:
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


def _leader_of(call: Call, topic: str, number: int) -> tuple[int, int]:
    """Return the leader of a partition and its epoch, (-1, -1) if the leader is not known."""
    brokers, known = call.context.brokers, call.context.topics.ready(topic)
    partition = None if known is None else known.partition(number)
    if known is None or partition is None:
        return -1, -1
    group, epoch = partition.group, brokers.epoch_of(partition.group)
    if is_diskless(known.topic):
        zone = zone_of(brokers, call.header.client_id)
        return brokers.owner_of(partition.name, group, zone), epoch
    return brokers.leader_of(group), epoch


def _endpoints(context: Context, leaders: set[int], kind: Any) -> list[Any]:
    if not leaders:
        return []
    return [
        kind(each.id, each.host, each.port, each.rack)
        for each in context.brokers.all()
        if each.id in leaders
    ]
