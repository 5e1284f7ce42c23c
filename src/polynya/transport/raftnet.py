"""The messages of groups between nodes: to the core that owns the group there, and who is there at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from polynya.transport.hello import Hello
from polynya.transport.lane import Lane, messages_of
from polynya.transport.peer import Connect

log = logging.getLogger("polynya.transport")


class _Node:
    """Another node, as far as it has told."""

    def __init__(self) -> None:
        self.hello: Hello | None = None
        self.lanes: dict[int, Lane] = {}  # by its core
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.there = False


class RaftNet:
    """Of one core. The callbacks are the replicas'; they are called on the loop."""

    def __init__(
        self,
        node: int,
        others: Iterable[int],
        connect: Callable[[int, int], Connect],
        *,
        bulk: Callable[[int, int, bytes], bool],
    ) -> None:
        self.node = node
        self._others = {other: _Node() for other in others}
        self.nodes = sorted((node, *self._others))
        self._connect = connect  # (node, core)
        self._bulk = bulk
        self.on_core_lost: Callable[[int, int], None] = lambda node, core: None  # the transport's
        self.on_messages: Callable[[int, list[bytes]], None] = lambda sender, messages: None
        self.on_lost: Callable[[int, float], None] = lambda node, seconds: None
        self.on_found: Callable[[int], None] = lambda node: None

    def send(self, node: int, group: int, message: bytes, bulk: bool = False) -> None:
        """One message, to the core of `node` that owns `group`. What is sent in one pass of the loop to one core leaves in one write. Never
        blocks: without a connection, and over the bound, messages are dropped, the oldest first. `bulk`: large ones that may take their
        time, and do not hold up the others."""
        other = self._others[node]
        if other.hello is None:
            return
        core = group % other.hello.cores
        if bulk:
            self._bulk(node, core, message)
            return
        lane = other.lanes.get(core)
        if lane is None:
            lane = self._open(node, core)
        lane.send(message)

    def cores_of(self, node: int) -> int:
        """How many cores another node has; 0 while that is not known."""
        hello = self._others[node].hello
        return hello.cores if hello is not None else 0

    def is_there(self, node: int) -> bool:
        return self._others[node].there

    @property
    def dropped(self) -> int:
        """Messages, so far."""
        return sum(lane.dropped for other in self._others.values() for lane in other.lanes.values())

    # --- for the transport -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Every node is asked from now on, at its first core: whether it is there, and how many others it has."""
        for node in self._others:
            self._open(node, 0)

    async def close(self) -> None:
        tasks = [task for other in self._others.values() for task in other.tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tick(self, now: float) -> None:
        for other in self._others.values():
            for lane in other.lanes.values():
                lane.tick(now)

    def greeted(self, hello: Hello) -> None:
        """A core of another node has said who it is, on either side's connection."""
        other = self._others[hello.node]
        before, other.hello = other.hello, hello
        for core in [core for core in other.tasks if core >= hello.cores]:
            other.tasks.pop(core).cancel()
            del other.lanes[core]
        if before is not None and before.start != hello.start:
            log.info("a node was started anew", extra={"node": hello.node, "cores": hello.cores})
            for lane in other.lanes.values():
                lane.drop()  # it is a connection to the life before
            for core in range(before.cores):
                self.on_core_lost(hello.node, core)
            self._lose(hello.node, 0.0)

    def arrived(self, sender: int, body: bytes) -> None:
        """A frame of messages from a core of another node; raises ValueError when it is none."""
        self.on_messages(sender >> 8, messages_of(body))

    # --- lanes -----------------------------------------------------------------------------------------------------------------

    def _open(self, node: int, core: int) -> Lane:
        def down(seconds: float) -> None:
            self.on_core_lost(node, core)
            self._lose(node, seconds)

        other = self._others[node]
        lane = other.lanes[core] = Lane(self._connect(node, core), lambda: self._up(node), down)
        other.tasks[core] = asyncio.get_running_loop().create_task(lane.keep(), name=f"lane to node {node} core {core}")
        return lane

    def _up(self, node: int) -> None:
        other = self._others[node]
        cores = self.cores_of(node)
        if not other.there and all(lane.connected for core, lane in other.lanes.items() if core < cores):
            other.there = True
            self.on_found(node)

    def _lose(self, node: int, seconds: float) -> None:
        other = self._others[node]
        if other.there:
            other.there = False
            self.on_lost(node, seconds)
