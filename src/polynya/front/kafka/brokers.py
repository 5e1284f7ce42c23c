"""The brokers that clients see, and those of a partition.

Of a diskless topic each zone has an owner for each partition, which its clients use.
Any broker takes every request. A broker sends a producer away only if the producer names another
zone, and a node of that zone is up: that node accepts, so no client is sent to and fro.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

import msgspec

from polynya.base.names import DISKLESS
from polynya.front.kafka.configs import PROFILE
from polynya.routing.handle import StreamHandle
from polynya.stream.features.topics.state import Topic

# in `client.id`: of LIP-163, Bufstream, Inkless and WarpStream
_TAG = re.compile(r"(?<![A-Za-z0-9_])(?:zone_id|zone|diskless_az|ws_az)=([^,]*)")


class Broker(msgspec.Struct, frozen=True, gc=False):
    """A broker as clients see it: a core, or a node with one port for its cores."""

    id: int
    host: str
    port: int
    rack: str | None = None


class Brokers(Protocol):
    """The brokers of the cluster, and the places of groups on them."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def own(self) -> int:
        """The broker of this core."""
        ...

    def all(self) -> Sequence[Broker]: ...

    def leader_of(self, group: int) -> int:
        """Return the broker that a client is to send requests for the group to."""
        ...

    def epoch_of(self, group: int) -> int:
        """Return the epoch of the group's leader, which grows with each change; -1: unknown."""
        ...

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        """Return the brokers with a replica of the group, and those of them that are in sync."""
        ...

    @property
    def zone(self) -> str:
        """The zone of this node; "" without one."""
        ...

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        """Return the active nodes of a zone that are up and serve Kafka."""
        ...

    def owners(self, zone: str) -> tuple[int, ...]:
        """Return the nodes that own the diskless streams for clients of a zone: its own, or all
        active ones."""
        ...

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        """Return the broker that owns a diskless stream for clients of a zone."""
        ...

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        """Return the brokers that own a diskless stream: for clients of this zone, and then of the
        other zones."""
        ...

    async def follow(self) -> None:
        """Keep the known leaders current. Run until cancelled."""
        ...


def is_diskless(topic: Topic) -> bool:
    """Report whether the records of a topic are stored in the object store first."""
    return (PROFILE, DISKLESS) in topic.configs


@lru_cache(maxsize=256)
def zone_tag(client_id: str) -> str:
    """Return the zone that a client names in its `client.id`; "" without one."""
    found = _TAG.search(client_id)
    return found[1].strip() if found else ""


def zone_of(brokers: Brokers, client_id: str) -> str:
    """Return the zone whose owners serve this client: the one that it names, else this node's.
    "": of a zone without nodes, for which any owner will do."""
    tag = zone_tag(client_id)
    if not tag:
        return brokers.zone
    return tag if brokers.nodes_in(tag) else ""


def owner_in_zone(brokers: Brokers, stream: StreamHandle, zone: str) -> int:
    """Return the broker of another zone that owns a partition there and is up; -1: none, or the
    zone is this broker's."""
    if not zone or zone == brokers.zone or not brokers.nodes_in(zone):
        return -1
    return brokers.owner_of(stream.name, stream.group, zone)


def sent_away(brokers: Brokers, stream: StreamHandle, tag: str) -> bool:
    """Report whether the producer of a diskless partition, which names the zone `tag`, is to use
    the owner there."""
    return owner_in_zone(brokers, stream, tag) >= 0


class PartitionBrokers(msgspec.Struct, frozen=True, gc=False):
    """The brokers of a partition."""

    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]


def brokers_in_zone(
    brokers: Brokers, topic: Topic, number: int, group: int, zone: str
) -> PartitionBrokers:
    """Return the brokers of a partition, for clients of a zone."""
    if is_diskless(topic):
        return brokers_of_diskless(brokers, topic.stream(number), group, zone)
    return brokers_of_group(brokers, group)


def brokers_of_diskless(brokers: Brokers, stream: str, group: int, zone: str) -> PartitionBrokers:
    """Return the brokers of a diskless partition, for clients of a zone: the owners in all zones.
    A Java consumer fetches from its preferred replica only if Metadata names that as a replica.

    The epoch is the group's: a client ignores a lower one, also when the profile of the topic
    changes."""
    owners = brokers.owners_of(stream, group, zone)
    return PartitionBrokers(owners[0], brokers.epoch_of(group), owners, owners)


def brokers_of_group(brokers: Brokers, group: int) -> PartitionBrokers:
    """Return the brokers of the partitions in a group."""
    replicas, in_sync = brokers.replicas_of(group)
    return PartitionBrokers(brokers.leader_of(group), brokers.epoch_of(group), replicas, in_sync)
