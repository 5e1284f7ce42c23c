"""The brokers that Kafka clients see: cores with ports of their own, or whole nodes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.core_start import KAFKA, Address, CoreStart
from polynya.config.model import Config
from polynya.front.kafka.brokers import Broker
from polynya.node.kafka import BROKERS_SECONDS, NodeBrokers, brokers_check
from polynya.routing.directory import Leaders
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, NodeState

PLACE = "one.example:9092"


class Groups:
    """The leaders and the voters of groups."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.voters: dict[int, bool] = {}
        self.down: set[int] = set()

    def seems_up(self, node: int) -> bool:
        return node not in self.down

    def leader(self, group: int) -> int:
        return self.leaders.get(group, 0)

    def voters_of(self, group: int) -> dict[int, bool]:
        return self.voters

    def epoch_of(self, group: int) -> int:
        return 4


async def _nothing() -> None: ...


def brokers_of(
    groups: Groups, *ports: int, node: int = 1, core: int = 0, nodes: tuple[NodeRecord, ...] = ()
) -> NodeBrokers:
    config = Config(data="/nonexistent")
    start = SimpleNamespace(
        identity=SimpleNamespace(cluster_id="c", node=node),
        kafka_direct=tuple(Address("127.0.0.1", port) for port in ports),
        kafka_advertised=PLACE,
        config=config,
        core=core,
    )
    maps: Any = None
    if nodes:
        maps = SimpleNamespace(now=ClusterMap(3, 3, {each.id: each for each in nodes}, {}))
    return NodeBrokers(
        cast(CoreStart, start), cast(Leaders, groups), cast(ClusterMapCache | None, maps), _nothing
    )


def test_a_broker_is_a_core_with_a_port_of_its_own() -> None:
    groups = Groups()
    brokers = brokers_of(groups, 10_092, 10_093, node=0, core=1)
    assert brokers.own == 1
    assert list(brokers.all()) == [
        Broker(0, "one.example", 10_092),
        Broker(1, "one.example", 10_093),
    ]
    assert [brokers.leader_of(group) for group in (1, 2, 3)] == [1, 0, 1]
    assert brokers.replicas_of(2) == ([0], [0])


def test_a_node_without_such_ports_is_one_broker_whichever_core_answers() -> None:
    brokers = brokers_of(Groups(), node=0, core=1)
    assert (brokers.own, list(brokers.all())) == (0, [Broker(0, "one.example", 9092)])
    assert [brokers.leader_of(group) for group in (1, 2)] == [0, 0]


def test_the_brokers_of_a_cluster_are_those_of_its_map() -> None:
    groups = Groups()
    groups.leaders = {1: 2, 2: 3, 3: 4, 4: 1, 5: 9}
    groups.voters = {1: True, 2: True, 3: False}
    nodes = (
        NodeRecord(1, "", "", "north", 2, kafka="old.example:1", kafka_ports=(2, 3)),
        NodeRecord(2, "", "", "south", 4, kafka="two:9092", kafka_ports=(5, 6, 7, 8)),
        NodeRecord(3, "", "", "", 4, kafka="three:9092"),
        NodeRecord(4, "", "", "", 1),
        NodeRecord(5, "", "", "", 1, NodeState.REMOVED, kafka="five:9092"),
    )
    brokers = brokers_of(groups, 10_092, 10_093, nodes=nodes)
    assert list(brokers.all()) == [
        Broker(256, "one.example", 10_092, "north"),
        Broker(257, "one.example", 10_093, "north"),
        *(Broker(512 + core, "two", 5 + core, "south") for core in range(4)),
        Broker(768, "three", 9092),
    ]
    assert brokers.own == 256
    assert brokers.leader_of(1) == 513, "core 1 of node 2"
    assert brokers.leader_of(2) == 768, "node 3 is one broker"
    assert brokers.leader_of(3) == brokers.own, "node 4 serves no Kafka: this core forwards"
    assert brokers.leader_of(4) == 256
    assert brokers.leader_of(5) == brokers.own, "a node that the map does not know yet"
    assert brokers.replicas_of(1) == ([257, 513, 768], [257, 513])


def test_owners_are_active_nodes_of_the_zone_that_are_up_and_serve_kafka() -> None:
    groups = Groups()
    nodes = (
        NodeRecord(1, "", "", "north", 2, kafka="one:1", kafka_ports=(2, 3)),
        NodeRecord(2, "", "", "south", 2, kafka="two:1", kafka_ports=(2, 3)),
        NodeRecord(3, "", "", "south", 2, kafka="three:1"),
        NodeRecord(4, "", "", "south", 2),
        NodeRecord(5, "", "", "south", 2, NodeState.DRAINING, kafka="five:1"),
        NodeRecord(6, "", "", "south", 2, kafka="six:1", reader=True),
    )
    brokers = brokers_of(groups, 10_092, 10_093, nodes=nodes)
    assert brokers.zone == "north"
    assert [brokers.nodes_in(zone) for zone in ("north", "south", "west")] == [(1,), (2, 3), ()]
    assert [brokers.owners(zone) for zone in ("north", "south", "west", "")] == [
        (1,),
        (2, 3),
        (1, 2, 3),
        (1, 2, 3),
    ]
    names = [f"kafka/t/{number}" for number in range(20)]
    south = {brokers.owner_of(name, 5, "south") for name in names}
    assert south == {2 * 256 + 1, 3 * 256}, "core 1 of node 2, and node 3, which is one broker"
    for name in names:
        own, other = (brokers.owner_of(name, 5, zone) for zone in ("north", "south"))
        assert brokers.owners_of(name, 5, "north") == [own, other]
        assert brokers.owners_of(name, 5, "south") == [other, own]
    groups.down = {2, 3}
    assert brokers.owners("south") == (1,)
    assert brokers.owners_of(names[0], 5, "south") == [1 * 256 + 1]
    groups.down = {1, 2, 3}
    assert brokers.owners("south") == (1,), "without an active node this one answers for all"


def test_a_standalone_node_owns_everything() -> None:
    brokers = brokers_of(Groups(), 10_092, 10_093, node=0)
    assert brokers.zone == "" and brokers.owners("south") == (0,)
    assert [brokers.owner_of("kafka/t/0", group, "") for group in (1, 2)] == [1, 0]


def test_a_node_of_a_new_cluster_is_not_ready_before_it_knows_all_brokers() -> None:
    known = [NodeRecord(number, "", "") for number in (1, 2, 3)]
    maps = SimpleNamespace(now=ClusterMap(0, 3, {each.id: each for each in known}, {}))
    now = [1000.0]

    def check_of(birth_ms: int, *listeners: str) -> Callable[[], str | None]:
        identity = SimpleNamespace(created_ms=birth_ms, nodes=(1, 2, 3), readers=(4,))
        start = SimpleNamespace(identity=identity, listeners=dict.fromkeys(listeners))
        return brokers_check(cast(CoreStart, start), cast(ClusterMapCache, maps), lambda: now[0])

    check, late, other = check_of(1000, KAFKA), check_of(1000, KAFKA), check_of(1000, "text")
    assert str(check()).endswith("not known yet: 1, 2, 3, 4")
    assert other() is None, "it serves no Kafka"
    brokers = [NodeRecord(number, "", "", kafka=f"n:{number}") for number in (1, 2, 4)]
    maps.now = ClusterMap(2, 3, {each.id: each for each in (*brokers, known[2])}, {})
    assert str(check()).endswith("not known yet: 3") and late() is not None
    third = NodeRecord(3, "", "", kafka="n:3")
    maps.now = ClusterMap(3, 3, {each.id: each for each in (*brokers, third)}, {})
    assert check() is None
    maps.now = ClusterMap(2, 3, {each.id: each for each in (*brokers, known[2])}, {})
    assert check() is None and late() is not None, "it is said once"
    now[0] += BROKERS_SECONDS * 1000
    assert late() is None, "node 3 may serve no Kafka, or be down"
    assert check_of(999, KAFKA)() is None, "the cluster is not new"
    assert check_of(20_000, KAFKA)() is None, "the clock was set back"
