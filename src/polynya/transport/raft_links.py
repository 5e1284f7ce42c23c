"""Raft messages between nodes, from each core to the core that has the group, and the liveness of
nodes.

A group is on core `group % cores` of each node, and nodes may have different numbers of cores. A
core has one lane to each core of another node with which it shares groups. With equal numbers, that
is only the core of the same number. The handshake reports the number of cores.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from math import gcd

from polynya.transport.backoff import Connect
from polynya.transport.handshake import PROTOCOL_MAX, PROTOCOL_MIN, Hello
from polynya.transport.keepalive import SILENCE_SECONDS
from polynya.transport.lane import Lane, join_messages, messages_of

# A node that only fell silent, as one does that gets no CPU, is mostly connected again within this
# time. The owners of streams stay until then: they would change twice.
PAUSE_SECONDS = 1.5
Shared = Callable[[int], bool]  # of a group: whether it is on that core of the other node
log = logging.getLogger("polynya.transport")


class _Node:
    """Another node: its number of cores, its incarnation, and the lanes to it by core."""

    __slots__ = ("connect", "cores", "lanes", "level", "paused_at", "protocol", "start", "tasks")

    def __init__(self, connect: Callable[[int], Connect], cores: int) -> None:
        self.connect = connect
        self.cores = cores
        self.start = ""  # its start id
        self.protocol = PROTOCOL_MIN  # the newest that both support
        self.level = 0  # the newest log level that it supports
        self.paused_at = float("-inf")  # when a connection was last given up for its silence
        self.lanes: dict[int, Lane] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def is_up(self) -> bool:
        return any(lane.connected for lane in self.lanes.values())

    def keep(self) -> None:
        """Connect the lanes, and keep them connected."""
        for core, lane in self.lanes.items():
            self.tasks[core] = asyncio.get_running_loop().create_task(lane.keep())

    async def end(self) -> None:
        """Return when the connections have ended."""
        tasks = list(self.tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RaftReceiver:
    """The replication of a core, which runs on the loop. This one ignores every event."""

    def group_of(self, message: bytes) -> int:
        """Return the group of an encoded message."""
        return 0

    def messages(self, node: int, messages: list[bytes]) -> None:
        """Handle messages of a node. Raises InvalidMessage."""

    def found(self, node: int, shared: Shared) -> None:
        """Handle a new connection to a core, which hosts the shared groups."""

    def lost(self, node: int, shared: Shared, silent_ms: int) -> None:
        """Handle a lost connection, and for how long nothing had been received."""

    def sending(self, node: int, shared: Shared) -> None:
        """Handle heartbeats that wait behind large incoming data."""

    def taking(self, node: int, shared: Shared) -> None:
        """Handle heartbeats that wait behind large outgoing data."""


class RaftLinks:
    """The links of core `core` of `cores`. They exist before the replication, which `join`s."""

    def __init__(
        self,
        own: tuple[int, int],
        connect: Mapping[int, Callable[[int], Connect]],
        bulk: Callable[[int, int, bytes], bool],
    ) -> None:
        self._core, self._cores = own
        self._bulk = bulk
        self._nodes = {node: _Node(to, self._cores) for node, to in connect.items()}
        self._running = False
        self.receiver = RaftReceiver()
        self.synced: Callable[[], int] = lambda: 0  # how far this core's journal is synced
        self.on_gone: list[
            Callable[[int, int], None]
        ] = []  # (node, core) of a lost connection, for other network packages
        for node in self._nodes:
            self._shape(node, self._cores)

    def join(self, receiver: RaftReceiver) -> None:
        """Give the events to the replication from now on."""
        self.receiver = receiver

    def send(self, node: int, messages: list[bytes]) -> None:
        """Send the messages of a turn to `node`, one write for each of its cores. Never blocks.
        Without a connection all messages are dropped; above the bound, the oldest are."""
        there = self._nodes.get(node)
        if there is None:  # it was removed from the cluster
            return
        if there.cores == self._cores:
            there.lanes[self._core].send(messages)
            return
        for core, some in self._split(messages, there.cores).items():
            there.lanes[core].send(some)

    def send_bulk(self, node: int, messages: list[bytes]) -> None:
        """Send large, non-urgent messages over a separate connection. They are dropped when it is
        full."""
        for core, some in self._split(messages, self.cores_of(node)).items():
            self._bulk(node, core, join_messages(some))

    def protocol(self, node: int) -> int:
        """Return the newest protocol that both nodes support, as far as is known."""
        there = self._nodes.get(node)
        return PROTOCOL_MIN if there is None else there.protocol

    def is_up(self, node: int) -> bool:
        """Return whether a core that shares groups with this one is connected."""
        there = self._nodes.get(node)
        return there is not None and there.is_up

    def seems_up(self, node: int) -> bool:
        """Return whether the node is up, or fell silent so recently that it may only pause."""
        if self.is_up(node):
            return True
        there = self._nodes.get(node)
        now = asyncio.get_running_loop().time()
        return there is not None and now - there.paused_at < PAUSE_SECONDS

    def life_of(self, node: int) -> str:
        """Return the start id of a connected node; empty while it is down."""
        return self._nodes[node].start if self.is_up(node) else ""

    def level_of(self, node: int) -> int:
        """Return the newest log level that the node supports; 0 until it is known."""
        there = self._nodes.get(node)
        return 0 if there is None else there.level

    def cores_of(self, node: int) -> int:
        """Return the node's number of cores; the number of this node until it is known."""
        there = self._nodes.get(node)
        return self._cores if there is None else there.cores

    @property
    def dropped(self) -> int:
        """Return the total number of dropped messages."""
        return sum(lane.dropped for there in self._nodes.values() for lane in there.lanes.values())

    @property
    def there(self) -> int:
        """Return the number of connected nodes."""
        return sum(map(self.is_up, self._nodes))

    # --- for the transport ------------------------------------------------------------------------

    def start(self) -> None:
        """Connect to every node, and stay connected."""
        self._running = True
        for there in self._nodes.values():
            there.keep()

    async def close(self) -> None:
        self._running = False
        await asyncio.gather(*(there.end() for there in self._nodes.values()))

    def add(self, node: int, connect: Callable[[int], Connect]) -> None:
        """Add a node."""
        self._nodes[node] = _Node(connect, self._cores)
        self._shape(node, self._cores)

    async def remove(self, node: int) -> None:
        """Remove a node; returns when its connections have ended."""
        there = self._nodes.pop(node, None)
        if there is None:
            return
        await there.end()
        for lane in there.lanes.values():
            lane.drop()

    def tick(self, now: float) -> None:
        for there in self._nodes.values():
            for lane in there.lanes.values():
                lane.tick(now)

    def greeted(self, hello: Hello) -> None:
        """Record the `Hello` of a core of another node. Connections to an earlier incarnation are
        closed."""
        there = self._nodes.get(hello.node)
        if there is None:
            return
        there.level = max(hello.level, 1)
        before, there.start = there.start, hello.start
        there.protocol = min(hello.high, PROTOCOL_MAX)
        if before not in ("", hello.start):
            log.info("a node was restarted", extra={"node": hello.node, "release": hello.release})
            for lane in there.lanes.values():
                lane.drop()
        if hello.cores != there.cores:
            log.info(
                "a node changed its number of cores",
                extra={"node": hello.node, "cores": hello.cores, "here": self._cores},
            )
            self._shape(hello.node, hello.cores)

    def hurry(self, node: int) -> None:
        """Retry connections to the node now, because it has shown that it is up."""
        there = self._nodes.get(node)
        for lane in () if there is None else there.lanes.values():
            lane.hurry()

    def arrived(self, sender: int, body: bytes) -> None:
        """Handle a frame of messages from a core of another node. Raises InvalidMessage if it is
        malformed."""
        self.receiver.messages(sender >> 8, messages_of(body))

    def sending(self, sender: int) -> None:
        """Handle a large Raft frame in progress from a core of another node."""
        self.receiver.sending(sender >> 8, _shared(self.cores_of(sender >> 8), sender & 0xFF))

    # --- lanes ------------------------------------------------------------------------------------

    def _shape(self, node: int, cores: int) -> None:
        """Create a lane to each core of the node that shares groups with this one. Two cores share
        groups if their numbers are congruent modulo the gcd of the core counts (Chinese remainder
        theorem)."""
        there = self._nodes[node]
        for lane in there.lanes.values():
            lane.drop()
        for task in there.tasks.values():
            task.cancel()
        there.cores, there.tasks = cores, {}
        wanted = (
            core for core in range(cores) if (core - self._core) % gcd(cores, self._cores) == 0
        )
        there.lanes = {core: self._lane(node, core) for core in wanted}
        if self._running:
            there.keep()

    def _lane(self, node: int, core: int) -> Lane:
        there = self._nodes[node]
        shared = _shared(there.cores, core)

        def lost() -> None:
            for hear in self.on_gone:
                hear(node, core)
            now = asyncio.get_running_loop().time()
            silent = lane.silent_seconds(now)
            if silent > SILENCE_SECONDS:
                there.paused_at = now
            self.receiver.lost(node, shared, int(silent * 1000))

        lane = Lane(
            there.connect(core),
            lambda: self.receiver.found(node, shared),
            lost,
            lambda: self.receiver.taking(node, shared),
            lambda: self.synced(),  # noqa: PLW0108 (the journal sets it later)
        )
        return lane

    def _split(self, messages: list[bytes], cores: int) -> dict[int, list[bytes]]:
        """Split messages by the target core of the other node."""
        if cores == self._cores:
            return {self._core: messages}
        found: dict[int, list[bytes]] = {}
        for message in messages:
            found.setdefault(self.receiver.group_of(message) % cores, []).append(message)
        return found


def _shared(cores: int, core: int) -> Shared:
    """Return the predicate of the groups on core `core` of `cores`."""
    return lambda group: group % cores == core
