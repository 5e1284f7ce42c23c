"""The messages of groups between nodes, core to same core; and who is there at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from polynya.transport.backoff import Connect
from polynya.transport.hello import Hello
from polynya.transport.lane import Lane, join_messages, messages_of

log = logging.getLogger("polynya.transport")


class RaftNet:
    """Of one core. Whoever replicates sets the callbacks; they are called on the loop. All nodes of a cluster have as many cores."""

    def __init__(self, connect: Mapping[int, Connect], bulk: Callable[[int, bytes], bool]) -> None:
        self._lanes = {node: self._lane(node, to) for node, to in connect.items()}
        self._bulk = bulk
        self._lives = dict.fromkeys(connect, "")  # start ids
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running = False
        self.on_messages: Callable[[int, list[bytes]], None] = lambda node, messages: None
        self.on_lost: Callable[[int], None] = lambda node: None
        self.on_found: Callable[[int], None] = lambda node: None
        self.on_gone: list[Callable[[int], None]] = []  # as on_lost, for the rooms of the network

    def send(self, node: int, messages: list[bytes]) -> None:
        """What a turn has to say to this core of `node`: one write. Never blocks: without a connection all is dropped, and over the bound
        the oldest."""
        lane = self._lanes.get(node)
        if lane is not None:  # else it belongs to the cluster no more
            lane.send(messages)

    def send_bulk(self, node: int, messages: list[bytes]) -> None:
        """Large ones that may take their time and do not hold up the others: on another connection. Dropped when that is full."""
        self._bulk(node, join_messages(messages))

    def is_there(self, node: int) -> bool:
        """Whether that core of the node was heard lately."""
        return node in self._lanes and self._lanes[node].connected

    @property
    def dropped(self) -> int:
        """Messages, so far."""
        return sum(lane.dropped for lane in self._lanes.values())

    @property
    def there(self) -> int:
        """How many nodes are."""
        return sum(lane.connected for lane in self._lanes.values())

    # --- for the transport -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to every node, and stay connected."""
        self._running = True
        for node in self._lanes:
            self._keep(node)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def add(self, node: int, connect: Connect) -> None:
        """One more."""
        self._lanes[node], self._lives[node] = self._lane(node, connect), ""
        if self._running:
            self._keep(node)

    async def remove(self, node: int) -> None:
        """One less; returns when its connection is gone."""
        lane, task = self._lanes.pop(node, None), self._tasks.pop(node, None)
        self._lives.pop(node, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if lane is not None:
            lane.drop()

    def _keep(self, node: int) -> None:
        self._tasks[node] = asyncio.get_running_loop().create_task(self._lanes[node].keep(), name=f"lane to node {node}")

    def tick(self, now: float) -> None:
        for lane in self._lanes.values():
            lane.tick(now)

    def greeted(self, hello: Hello) -> None:
        """A core of another node has said who it is, on either side's connection: connections to a life before this are dead."""
        if hello.node not in self._lanes:
            return
        before, self._lives[hello.node] = self._lives[hello.node], hello.start
        if before not in ("", hello.start):
            log.info("a node was started anew", extra={"node": hello.node, "release": hello.release})
            self._lanes[hello.node].drop()

    def arrived(self, sender: int, body: bytes) -> None:
        """A frame of messages from a core of another node. Raises ValueError when it is none."""
        self.on_messages(sender >> 8, messages_of(body))

    def _lane(self, node: int, connect: Connect) -> Lane:
        def lost() -> None:
            for hear in self.on_gone:
                hear(node)
            self.on_lost(node)

        return Lane(connect, lambda: self.on_found(node), lost)
