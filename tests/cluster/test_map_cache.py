"""Nodes that were away hear from others who belongs to the cluster now."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from polynya.base.errors import Unavailable
from polynya.cluster.map_cache import ClusterMapCache, NodeHosts
from polynya.config.cluster_settings import ClusterConfig, ClusterNode
from polynya.config.node_identity import NodeIdentity
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord
from polynya.transport import node_of

NODES = (1, 2, 3)


class Cables:
    """Calls between the cores 0 of nodes. `down`: nodes that do not answer."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.down: set[int] = set()
        self.asked: list[int] = []

    def of(self, node: int) -> Any:
        return Cable(self, node)


class Cable:
    others: tuple[int, ...] = ()
    node_links = None

    def __init__(self, cables: Cables, node: int) -> None:
        self._cables, self._node = cables, node

    def on(self, kind: int, handler: Any) -> None:
        self._cables.handlers[self._node] = handler

    async def call(self, core: int, kind: int, body: bytes) -> bytes:
        target = node_of(core)
        self._cables.asked.append(target)
        if target in self._cables.down:
            raise Unavailable("it is away")
        answers: list[bytes] = []
        self._cables.handlers[target](body, answers.append, core)
        return answers[0]


def nodes_of(cables: Cables) -> dict[int, ClusterMapCache]:
    listed = tuple(ClusterNode(number, f"n{number}:1", f"http://n{number}") for number in NODES)
    found = {}
    for number in NODES:
        identity = NodeIdentity(
            cluster_id="c",
            node=number,
            nodes=NODES,
            zones=("", "", ""),
            replicas=3,
            groups=2,
            cores=1,
            created_ms=0,
        )
        found[number] = ClusterMapCache(
            identity,
            ClusterConfig(id="0" * 32, node=number, nodes=listed),
            cables.of(number),
            core=0,
        )
    return found


def later(known: ClusterMap, epoch: int) -> ClusterMap:
    return msgspec.structs.replace(known, epoch=epoch)


@pytest.fixture
def cables() -> Cables:
    return Cables()


@pytest.fixture
def maps(cables: Cables) -> dict[int, ClusterMapCache]:
    return nodes_of(cables)


def test_who_was_away_takes_the_newest_map_that_anybody_has(
    cables: Cables, maps: dict[int, ClusterMapCache]
) -> None:
    seen: list[int] = []
    maps[3].on_map.append(lambda now: seen.append(now.epoch))
    maps[1].take(later(maps[1].now, 7))
    maps[2].take(later(maps[2].now, 5))
    for _ in NODES:
        asyncio.run(maps[3].ask_another())
    assert cables.asked == [1, 2, 1]  # one after the other
    assert seen == [7]


def test_who_does_not_answer_is_passed_over(
    cables: Cables, maps: dict[int, ClusterMapCache]
) -> None:
    cables.down = {1}
    maps[2].take(later(maps[2].now, 5))
    asyncio.run(maps[3].ask_another())
    assert maps[3].now.epoch == 0
    asyncio.run(maps[3].ask_another())
    assert maps[3].now.epoch == 5


def test_other_cores_ask_their_own_core_0(cables: Cables, maps: dict[int, ClusterMapCache]) -> None:
    identity = NodeIdentity(
        cluster_id="c",
        node=3,
        nodes=NODES,
        zones=("", "", ""),
        replicas=3,
        groups=2,
        cores=2,
        created_ms=0,
    )
    sibling = ClusterMapCache(
        identity, ClusterConfig(id="0" * 32, node=3, nodes=()), cables.of(4), core=1
    )
    asyncio.run(sibling.ask_another())
    assert cables.asked == []


@pytest.mark.parametrize(
    "answer", [b"\xc1", b"\xa3\xff\xff\xff", b"\x94\x01\x02\x80\x05", b"\x91" * 5000]
)
def test_a_map_that_makes_no_sense_is_not_taken_and_ends_nothing(
    cables: Cables, maps: dict[int, ClusterMapCache], answer: bytes
) -> None:
    cables.handlers[1] = lambda body, reply, sender: reply(answer)
    maps[2].take(later(maps[2].now, 5))
    asyncio.run(maps[3].ask_another())
    assert maps[3].now.epoch == 0
    asyncio.run(maps[3].ask_another())
    assert maps[3].now.epoch == 5


def test_the_hosts_of_the_nodes_are_those_of_the_settings_and_of_the_newest_map() -> None:
    listed = (
        ClusterNode(1, "N1.internal:4439", "http://n1.example:4437"),
        ClusterNode(2, "[FD00::2]:4439", "https://10.0.0.2"),
    )
    config = ClusterConfig(id="0" * 32, node=1, nodes=listed)
    identity = NodeIdentity(
        cluster_id="c",
        node=1,
        nodes=(1, 2),
        zones=("", ""),
        replicas=1,
        groups=2,
        cores=1,
        created_ms=0,
    )
    maps = ClusterMapCache(identity, config, None, core=0)
    hosts = NodeHosts(config, maps)
    born = {"n1.internal", "n1.example", "fd00::2", "10.0.0.2"}
    assert hosts() == born
    added = NodeRecord(3, "n3.internal:4439", "http://N3.example", "")
    maps.take(ClusterMap(1, 1, {**maps.now.nodes, 3: added}, maps.now.groups))
    assert hosts() == born | {"n3.internal", "n3.example"}
    assert NodeHosts(ClusterConfig(), None)() == frozenset()
