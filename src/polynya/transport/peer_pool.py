"""The connections of one core for its own requests, to the cores of this node and of other
nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from polynya.base.errors import Unavailable
from polynya.transport.backoff import Connect
from polynya.transport.handshake import node_of
from polynya.transport.keepalive import Keepalive
from polynya.transport.peer import Peer

Connector = Callable[[int], Connect]


class PeerPool:
    """The peers of one core by address. `local` has the connectors to the other cores of this node.
    `connector(core_id)` returns that to a core of another node, or raises Unavailable. A core of
    another node gets its connection with the first request."""

    def __init__(
        self, local: Mapping[int, Connect], connector: Connector, *, call_seconds: float
    ) -> None:
        self.by_core = {
            core: Peer(f"core {core}", connect, call_seconds=call_seconds)
            for core, connect in local.items()
        }
        self._connector = connector
        self._call_seconds = call_seconds
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopped = False

    def of(self, core_id: int) -> Peer:
        """Return the peer at an address. Raise Unavailable for an unknown node."""
        peer = self.by_core.get(core_id)
        return self._add(core_id) if peer is None else peer

    def start(self) -> None:
        """Connect in the background."""
        for core_id, peer in self.by_core.items():
            self._keep(core_id, peer)

    def stop(self) -> None:
        """Refuse requests to further cores of other nodes."""
        self._stopped = True

    async def close(self) -> None:
        """Close all connections; open calls and subscriptions fail."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for peer in self.by_core.values():  # a task that never started does not close its peer
            peer.close()

    def detach(self, node: int) -> tuple[list[Peer], list[asyncio.Task[None]]]:
        """Remove the peers of a node. Return them, to close when their tasks, which are
        cancelled here, have ended."""
        core_ids = [core_id for core_id in self.by_core if node_of(core_id) == node]
        tasks = [self._tasks.pop(core_id) for core_id in core_ids]
        for task in tasks:
            task.cancel()
        return [self.by_core.pop(core_id) for core_id in core_ids], tasks

    def trim(self, node: int, cores: int) -> None:
        """Close the connections to cores that a node does not have any more."""
        gone = [
            core_id
            for core_id in self.by_core
            if node_of(core_id) == node and core_id & 0xFF >= cores
        ]
        for core_id in gone:
            self._tasks.pop(core_id).cancel()
            self.by_core.pop(core_id).close()

    def hurry(self, node: int) -> None:
        """Reconnect to the cores of another node at once, because it is up."""
        for core_id, peer in self.by_core.items():
            if node_of(core_id) == node:
                peer.hurry()

    def tick(self, now: float) -> None:
        """Fail requests that timed out; called a few times a second."""
        for peer in list(self.by_core.values()):
            peer.tick(now)

    def counters(self) -> dict[str, int]:
        """Return counters for metrics: connected peers, unanswered calls, and the totals of refused
        and failed calls."""
        peers = self.by_core.values()
        return {
            "connected": sum(peer.connected for peer in peers),
            "outstanding": sum(peer.outstanding for peer in peers),
            "refused": sum(peer.refused for peer in peers),
            "failed": sum(peer.failed for peer in peers),
        }

    def _add(self, core_id: int) -> Peer:
        """Return a new peer for the first request to a core of another node."""
        if self._stopped:
            raise Unavailable("this core is stopping")
        peer = Peer(
            f"core {core_id & 0xFF} of node {node_of(core_id)}",
            self._connector(core_id),
            call_seconds=self._call_seconds,
            keepalive=Keepalive(),
        )
        peer.tick(asyncio.get_running_loop().time())
        self.by_core[core_id] = peer
        self._keep(core_id, peer)
        return peer

    def _keep(self, core_id: int, peer: Peer) -> None:
        self._tasks[core_id] = asyncio.get_running_loop().create_task(
            peer.keep(), name=f"transport to {peer.name}"
        )
