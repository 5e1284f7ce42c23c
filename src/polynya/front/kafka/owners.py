"""Brokers of diskless topics: each zone has an owner for each partition, which its clients use.

Any broker takes every request. A broker sends a producer away only if the producer names another
zone, and a node of that zone is up: that node accepts, so no client is sent to and fro.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from polynya.base.names import DISKLESS
from polynya.front.kafka.configs import PROFILE
from polynya.stream.features.topics.state import Topic

if TYPE_CHECKING:
    from polynya.front.kafka.dispatch import Call
    from polynya.front.kafka.server import KafkaFront

# in `client.id`: of LIP-163, Bufstream, Inkless and WarpStream
_TAG = re.compile(r"(?<![A-Za-z0-9_])(?:zone_id|zone|diskless_az|ws_az)=([^,]*)")


def is_diskless(topic: Topic) -> bool:
    """Report whether the records of a topic are stored in the object store first."""
    return (PROFILE, DISKLESS) in topic.configs


def zone_tag(client_id: str) -> str:
    """Return the zone that a client names in its `client.id`; "" without one."""
    found = _TAG.search(client_id)
    return found[1].strip() if found else ""


def zone_of(call: Call) -> str:
    """Return the zone whose owners serve this client: the one that it names, else this node's.
    "": of a zone without nodes, for which any owner will do."""
    brokers = call.front.brokers
    tag = zone_tag(call.header.client_id)
    if not tag:
        return brokers.zone
    return tag if brokers.nodes_in(tag) else ""


def owner_in_zone(front: KafkaFront, stream: str, zone: str) -> int:
    """Return the broker of another zone that owns a partition there and is up; -1: none, or the
    zone is this broker's."""
    brokers = front.brokers
    if not zone or zone == brokers.zone or not brokers.nodes_in(zone):
        return -1
    return brokers.owner_of(stream, front.service.group_of(stream), zone)


def sent_away(front: KafkaFront, stream: str, tag: str) -> bool:
    """Report whether the producer of a diskless partition, which names the zone `tag`, is to use
    the owner there."""
    return bool(tag) and owner_in_zone(front, stream, tag) >= 0
