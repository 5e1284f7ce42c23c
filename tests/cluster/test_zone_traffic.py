"""Bytes between zones, from counters of nodes and of clients."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

from polynya.cluster.zone_traffic import ZoneTraffic
from polynya.front.common.client_traffic import ZONES_MAX, ClientTraffic
from polynya.stream.features.placement.commands import NodeRecord


class Node:
    """Node 1 of zone a. Node 2 is in zone b, node 3 in zone a, node 4 in none."""

    def __init__(self) -> None:
        zones = {1: "a", 2: "b", 3: "a", 4: ""}
        records = {node: NodeRecord(node, "", "", zone) for node, zone in zones.items()}
        self.maps: Any = SimpleNamespace(now=SimpleNamespace(nodes=records))
        self.sent, self.raft, self.calls = Counter[int](), Counter[int](), Counter[int]()
        payloads = (lambda: self.raft, lambda: self.calls)
        self.traffic = ZoneTraffic(1, self.maps, lambda: self.sent, payloads)

    def bytes(self) -> dict[tuple[str, ...], int]:
        return {key[1:]: count for key, count in self.traffic.counts().items()}


def test_what_is_not_payload_is_of_the_catalog() -> None:
    node = Node()
    assert node.bytes() == {}
    node.sent.update({2: 100, 3: 50, 4: 7})
    node.raft.update({2: 60})
    node.calls.update({2: 10, 3: 50})
    expected = {
        ("a", "b", "payload"): 70,
        ("a", "b", "catalog"): 30,
        ("a", "a", "payload"): 50,
        ("a", "", "catalog"): 7,
    }
    assert node.bytes() == expected
    assert node.bytes() == expected, "counts, not growth"
    assert node.traffic.samples() == {
        f'polynya_zone_bytes_total{{from="{source}",to="{target}",kind="{kind}"}}': count
        for (source, target, kind), count in expected.items()
    }


def test_a_node_that_changes_its_zone_takes_no_old_bytes_with_it() -> None:
    node = Node()
    node.sent[2] = 100
    node.bytes()
    node.maps.now.nodes[2] = NodeRecord(2, "", "", "c")
    node.sent[2] += 1
    assert node.bytes() == {("a", "b", "catalog"): 100, ("a", "c", "catalog"): 1}


def test_queued_payload_is_counted_when_it_leaves() -> None:
    node = Node()
    node.raft[2] = 100
    assert node.bytes() == {}
    node.sent[2] = 30
    assert node.bytes() == {("a", "b", "payload"): 30}
    node.sent[2] = 120
    assert node.bytes() == {("a", "b", "payload"): 100, ("a", "b", "catalog"): 20}


def test_clients_count_in_the_zones_of_the_cluster_only() -> None:
    node, front = Node(), ClientTraffic()
    node.traffic.clients.append(front)
    for zone in ("b", "a", "moon", ""):
        front.receive(zone, 10)
    front.send("b", 5)
    expected = {
        ("b", "a", "payload"): 10,
        ("a", "a", "payload"): 10,
        ("a", "b", "payload"): 5,
    }
    assert node.bytes() == expected
    front.receive("b", 1)
    assert node.bytes() == expected | {("b", "a", "payload"): 11}


def test_invented_zones_take_a_bounded_memory() -> None:
    front = ClientTraffic()
    for number in range(10 * ZONES_MAX):
        front.receive(f"z{number}", 1)
    front.receive("z0", 1)
    assert len(front.came) == ZONES_MAX and front.came["z0"] == 2
