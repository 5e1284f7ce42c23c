"""The newest cluster map that a core knows. Core 0 reads it from its meta group replica and sends
it to the sibling cores."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import msgspec

from polynya.base.errors import PolynyaError
from polynya.base.msgpack import UNREADABLE
from polynya.config.cluster_settings import ClusterConfig, ClusterNode
from polynya.config.node_identity import NodeIdentity
from polynya.stream.features.placement.cluster_map import ClusterMap, born
from polynya.stream.features.placement.commands import ClusterBorn, NodeRecord
from polynya.transport import Hello, Reply, Transport, address, node_of
from polynya.wire.http.hosts import bare_host

KIND_MAP = 1007  # message kind between cores
ASK_SECONDS = 2.0  # timeout for one node
log = logging.getLogger("polynya.cluster")
_DECODER = msgspec.msgpack.Decoder(ClusterMap)
_ENCODER = msgspec.msgpack.Encoder()


class ClusterMapCache:
    """The newest cluster map of one core.

    `now` has epoch 0 until the meta group delivers a map: the birth map, or an empty map on a
    joining node. Only later epochs create or delete replicas.

    The loop calls `on_map` with each newer map; epochs only increase. A listener added later must
    read `now` itself.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        cluster: ClusterConfig,
        transport: Transport | None,
        *,
        core: int,
    ) -> None:
        self.now = initial_map(identity, cluster)
        self.on_map: list[Callable[[ClusterMap], None]] = []
        self._transport = transport
        self._core = core
        self._node = identity.node
        self._asked = 0  # the node asked last
        # nodes with an older map that have not acknowledged this one
        self._behind: set[int] = set()
        if transport is not None:
            transport.on(KIND_MAP, self._hear)
            if transport.node_links is not None:
                transport.node_links.on_met = self._met

    def take(self, found: ClusterMap | None) -> None:
        """Adopt a map from the meta group replica or core 0 if it is newer."""
        if found is None or found.epoch <= self.now.epoch:
            return
        self.now = found
        for look in self.on_map:
            look(found)
        if self._core == 0 and self._transport is not None:
            body = _ENCODER.encode(found)
            for core in self._transport.others:
                self._transport.send(core, KIND_MAP, body)

    async def ask(self) -> None:
        """Fetch a newer map from core 0; on core 0, do nothing. Covers a core that started late or
        missed a change."""
        if self._core == 0 or self._transport is None:
            return
        try:
            body = await self._transport.call(0, KIND_MAP, _ENCODER.encode(self.now.epoch))
        except PolynyaError:
            return  # retried soon
        if body:
            self.take(_DECODER.decode(body))

    async def ask_another(self) -> None:
        """Send the map to nodes behind it, then fetch a newer one from the next node in turn. Core
        0 only. A node that was down while members changed rejects the new ones. If one of them is
        the meta group leader, no log entries arrive here. Every map holds committed state only, so
        any node may answer."""
        self._behind.intersection_update(self.now.members)
        for node in sorted(self._behind):
            self._send_map(node)
        others = [number for number in self.now.members if number != self._node]
        if self._core or self._transport is None or not others:
            return
        self._asked = next((number for number in others if number > self._asked), others[0])
        try:
            async with asyncio.timeout(ASK_SECONDS):
                body = await self._transport.call(
                    address(self._asked, 0), KIND_MAP, _ENCODER.encode(self.now.epoch)
                )
            found = _DECODER.decode(body) if body else None
        except (PolynyaError, TimeoutError):
            return  # the next call asks the next node
        except UNREADABLE as error:
            log.warning(
                "cannot decode the cluster map of another node",
                extra={"node": self._asked, "reason": str(error)},
            )
            return
        self.take(found)

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        received = msgspec.msgpack.decode(body, type=int | ClusterMap)
        if isinstance(received, int):
            reply(_ENCODER.encode(self.now) if self.now.epoch > received else b"")
        elif sender == 0 or (self._core == 0 and node_of(sender)):
            self.take(received)
            reply(b"")

    def _met(self, hello: Hello) -> None:
        """Send the map to a peer whose handshake shows an older epoch. It may know no member of the
        current majority to ask."""
        if self._core == hello.core == 0 and hello.epoch < self.now.epoch:
            self._behind.add(hello.node)
            self._send_map(hello.node)

    def _send_map(self, node: int) -> None:
        def done(answer: bytes | BaseException) -> None:
            if not isinstance(answer, BaseException):
                self._behind.discard(node)

        assert self._transport is not None
        self._transport.call_nowait(address(node, 0), KIND_MAP, _ENCODER.encode(self.now), done)


class NodeHosts:
    """The bare hosts of the cluster's nodes, from the settings and the newest map. Computed once
    for each map."""

    def __init__(self, cluster: ClusterConfig, maps: ClusterMapCache | None) -> None:
        self._listed = cluster.nodes
        self._maps = maps
        self._map: ClusterMap | None = None
        self._hosts: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        if self._maps is not None and self._map is not self._maps.now:
            self._map = self._maps.now
            self._hosts = _hosts_of(
                (*self._listed, *(self._map.nodes[number] for number in self._map.members))
            )
        return self._hosts


def _hosts_of(nodes: Iterable[ClusterNode | NodeRecord]) -> frozenset[str]:
    return frozenset(
        bare_host(netloc) for node in nodes for netloc in (node.peer, urlsplit(node.http).netloc)
    ) - {""}


def cluster_born(identity: NodeIdentity, cluster: ClusterConfig) -> ClusterBorn:
    """Return the command with the first map. All birth nodes propose the same one, except for the
    addresses in their settings."""
    listed = {node.id: node for node in cluster.nodes}
    zones = dict(zip(identity.nodes, identity.zones, strict=False))
    records = [
        NodeRecord(
            number,
            listed[number].peer if number in listed else "",
            listed[number].http if number in listed else "",
            zones.get(number, ""),
        )
        for number in identity.nodes
    ]
    return born(
        records,
        identity.groups,
        identity.replicas or len(records),
        everywhere=not identity.replicas,
    )


def initial_map(identity: NodeIdentity, cluster: ClusterConfig) -> ClusterMap:
    """Return the map of epoch 0, empty for a node that joined later."""
    if not identity.nodes:
        return ClusterMap(0, cluster.replicas, {}, {})
    command = cluster_born(identity, cluster)
    return ClusterMap(
        0,
        command.replicas,
        {node.id: node for node in command.nodes},
        dict(enumerate(command.placements)),
    )
