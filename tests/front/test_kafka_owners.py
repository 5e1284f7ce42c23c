"""Brokers of diskless topics: the owner in the client's zone, and producers in the wrong zone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    OneBroker,
    batch,
    fetch_fields,
    plain_fields,
    play,
    produce_fields,
)

from polynya.base.names import DISKLESS
from polynya.front.kafka.brokers import Broker, zone_tag
from polynya.front.kafka.configs import PROFILE
from polynya.front.kafka.errors import Error


class TwoZones(OneBroker):
    """This broker in the north, and one in the south, which leads all groups."""

    zone = "north"
    south_is_up = True

    def all(self) -> Sequence[Broker]:
        return Broker(0, "one.example", 9092, "north"), Broker(513, "two.example", 9092, "south")

    def leader_of(self, group: int) -> int:
        return 513

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [0, 513], [0, 513]

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        return {"north": (0,), "south": (2,) if self.south_is_up else ()}.get(zone, ())

    def owners(self, zone: str) -> tuple[int, ...]:
        return self.nodes_in(zone) or ((0, 2) if self.south_is_up else (0,))

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        return 513 if zone == "south" and self.south_is_up else 0

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        owners = (self.owner_of(stream, group, each) for each in (zone, "north", "south"))
        return list(dict.fromkeys(owners))


async def diskless_topic(world: KafkaWorld) -> TwoZones:
    """Create a diskless topic "d" and a replicated one "r". This core has no object store. It
    redirects no client, but may reject records of "d"."""
    await world.front.context.topics.create("d", 1, [(PROFILE, DISKLESS)])
    await world.topic("r")
    brokers = world.use(TwoZones())
    return brokers


async def leaders(wire: KafkaWire, *names: str) -> dict[str, tuple[int, int]]:
    """Return the leader and the number of replicas of the topics; all topics without names."""
    fields: dict[str, Any] = {
        "topics": [{"name": name} for name in names] if names else None,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    answer = await wire.ask("Metadata", 9, **plain_fields("Metadata", 9, fields))
    return {
        topic.name: (part.leader_id, len(part.replica_nodes))
        for topic in answer.topics
        for part in topic.partitions
    }


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("zone_id=a", "a"),
        ("app,zone=us-east-1a,more", "us-east-1a"),
        ("app-diskless_az=use1-az2", "use1-az2"),
        ("app,ws_az= b ,x=y", "b"),
        ("timezone=x", ""),
        ("my_zone=x", ""),
        ("zone=", ""),
        ("", ""),
    ],
)
def test_a_client_names_its_zone_in_its_id(client_id: str, zone: str) -> None:
    assert zone_tag(client_id) == zone


def test_metadata_names_the_owner_in_the_zone_of_the_client() -> None:
    async def tell(world: KafkaWorld) -> None:
        brokers = await diskless_topic(world)
        wire = await world.wire()
        for client_id, owner in (
            ("test", 0),  # the zone of the broker
            ("app,zone_id=south", 513),
            ("zone=north", 0),
            ("zone=west", 0),  # no node there: any
        ):
            wire.client_id = client_id
            assert await leaders(wire, "d", "r") == {"d": (owner, 2), "r": (513, 2)}, client_id
            assert await leaders(wire) == {"d": (owner, 2), "r": (513, 2)}, client_id
        wire.client_id = "zone_id=south"
        brokers.south_is_up = False
        assert (await leaders(wire))["d"] == (0, 1), "the cached answer has the owners that are up"

    play(tell)


def test_a_producer_of_another_zone_is_sent_to_the_owner_there() -> None:
    async def tell(world: KafkaWorld) -> None:
        brokers = await diskless_topic(world)
        wire = await world.wire()

        async def produced(topic: str, client_id: str) -> tuple[int, int, int]:
            wire.client_id = client_id
            fields = produce_fields(topic, batch(b"a"))
            answer = await wire.ask("Produce", 10, **fields)
            (part,) = answer.responses[0].partition_responses
            leader = part.current_leader
            return (
                part.error_code.value,
                -1 if leader is None else leader.leader_id,
                len(answer.node_endpoints),
            )

        assert await produced("d", "zone=south") == (Error.NOT_LEADER, 513, 1)
        for client_id in ("test", "zone=north", "zone=west"):
            assert (await produced("d", client_id))[0] != Error.NOT_LEADER, client_id
        assert (await produced("r", "zone=south"))[0] == Error.NONE, "a replicated topic: forwarded"
        brokers.south_is_up = False
        assert (await produced("d", "zone=south"))[0] != Error.NOT_LEADER, "no owner there"

    play(tell)


def test_a_consumer_is_sent_to_the_owner_in_its_rack() -> None:
    async def tell(world: KafkaWorld) -> None:
        brokers = await diskless_topic(world)
        wire = await world.wire()

        async def preferred(rack: str) -> int:
            fields = fetch_fields("d", 0) | {"rack_id": rack}
            (part,) = (await wire.ask("Fetch", 11, **fields)).responses[0].partitions
            assert part.error_code.value == 0
            replica: int = part.preferred_read_replica
            return replica

        assert [await preferred(rack) for rack in ("south", "", "north", "west")] == [
            513,
            -1,
            -1,
            -1,
        ]
        brokers.south_is_up = False
        assert await preferred("south") == -1

    play(tell)


def test_payload_of_clients_that_name_a_zone_is_counted() -> None:
    async def tell(world: KafkaWorld) -> None:
        await world.topic("r")
        wire, data = await world.wire(), batch(b"a" * 100)
        for client_id in ("test", "zone=south", "zone=south", "zone=north"):
            wire.client_id = client_id
            await wire.ask("Produce", 9, **produce_fields("r", data))
        clients = world.front.context.clients
        assert clients.came == {"south": 2 * len(data), "north": len(data)}
        wire.client_id = "test"
        for rack in ("", "south"):
            await wire.ask("Fetch", 11, **(fetch_fields("r", 0) | {"rack_id": rack}))
        assert clients.went == {"south": 4 * len(data)}

    play(tell)
