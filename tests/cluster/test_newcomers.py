"""A node that was down while others joined: an unknown node may be all that is left to form a
majority with it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from polling import wait_for
from worlds.two_nodes import Node

from polynya.cluster.map_cache import ClusterMapCache
from polynya.config.cluster_settings import ClusterConfig, ClusterNode
from polynya.config.node_identity import NodeIdentity
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord
from polynya.transport import Hello, address


def map_of(epoch: int, ports: dict[int, int]) -> ClusterMap:
    return ClusterMap(
        epoch,
        3,
        {
            number: NodeRecord(number, f"127.0.0.1:{port}", f"http://n{number}")
            for number, port in ports.items()
        },
        {},
    )


def maps_of(node: Node, known: ClusterMap) -> ClusterMapCache:
    """Build the map cache of a core: it connects to the nodes that a map names."""
    (transport,) = node.transports
    identity = NodeIdentity(
        cluster_id="c",
        node=node.number,
        nodes=(),
        zones=(),
        replicas=3,
        groups=4,
        cores=1,
        created_ms=0,
    )
    config = ClusterConfig(
        id="0" * 32,
        node=node.number,
        nodes=(ClusterNode(node.number, f"127.0.0.1:{node.port}", "http://n"),),
    )
    maps = ClusterMapCache(identity, config, transport, core=0)

    def meet(now: ClusterMap) -> None:
        node.links.know(now.epoch)
        for number in now.members:
            if number != node.number:
                node.links.add_node(
                    number, ("127.0.0.1", int(now.nodes[number].peer.rpartition(":")[2]))
                )

    maps.on_map.append(meet)
    maps.take(known)
    return maps


@asynccontextmanager
async def world(folder: Path, old: int, new: int) -> Any:
    """Node 3 knows of nodes 1 and 2, which are gone, by a map of epoch `old`; node 5 knows of it,
    by a map of epoch `new`."""
    three, five = Node(folder, 3), Node(folder, 5)
    await three.start({1: 1, 2: 1})
    await five.start({3: three.port})
    before, now = (
        map_of(old, {1: 1, 2: 1, 3: three.port}),
        map_of(new, {3: three.port, 4: 1, 5: five.port}),
    )
    try:
        yield three, five, maps_of(three, before), maps_of(five, now)
    finally:
        for node in (three, five):
            await node.stop()
            node.held.close()


def test_a_newcomer_that_knows_more_is_let_in_and_tells_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, old=7, new=9) as (three, five, known, _):
            await wait_for(lambda: three.raft.is_up(5) and five.raft.is_up(3))
            assert known.now.epoch == 9 and known.now.members == (3, 4, 5)
            three.raft.send(5, [b"vote"])
            await wait_for(lambda: five.heard == [(0, 3, [b"vote"])])

    asyncio.run(story())


@pytest.mark.parametrize("new", [0, 6, 7])
def test_a_stranger_that_knows_no_more_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, new: int
) -> None:
    async def story() -> None:
        async with world(tmp_path, old=7, new=new) as (_, five, known, _):
            said = "node 5 is not a known member of the cluster"
            await wait_for(
                lambda: any(said in str(getattr(each, "reason", "")) for each in caplog.records)
            )
            assert not five.raft.is_up(3) and known.now.epoch == 7

    asyncio.run(story())


def test_a_map_that_did_not_arrive_is_told_again(tmp_path: Path) -> None:
    sent: list[bytes] = []

    class Broken:
        others: tuple[int, ...] = ()
        node_links = SimpleNamespace()

        def on(self, kind: int, handler: Any) -> None: ...

        def call_nowait(self, core: int, kind: int, body: bytes, done: Any) -> None:
            assert core == address(3, 0)
            sent.append(body)
            done(OSError("lost") if len(sent) == 1 else b"")

        async def call(self, core: int, kind: int, body: bytes) -> bytes:
            return b""

    async def story() -> None:
        transport: Any = Broken()
        identity = NodeIdentity(
            cluster_id="c", node=5, nodes=(), zones=(), replicas=3, groups=4, cores=1, created_ms=0
        )
        maps = ClusterMapCache(identity, ClusterConfig(id="0" * 32, node=5), transport, core=0)
        maps.take(map_of(9, {3: 1, 5: 2}))
        about = Hello(4, 4, "c", 1, 4, 3, 0, 1, "life", epoch=9)
        transport.node_links.on_met(about)
        assert sent == [], "it knows as much"
        transport.node_links.on_met(Hello(4, 4, "c", 1, 4, 3, 0, 1, "life", epoch=7))
        for _ in range(3):
            await maps.ask_another()
        assert len(sent) == 2

    asyncio.run(story())
