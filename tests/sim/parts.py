"""Parts of a simulated cluster: a disk's writer, the ways between nodes, a subscription, and the
map of where the groups are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from sim.process import NOBODY

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.engine.turns import WriteJob
from polynya.raft import Raft, Settings
from polynya.stream.machine import Machine
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.snapshots.encode import snapshot_of
from polynya.transport.handshake import PROTOCOL_MAX
from polynya.wal import Journal, WriteBatch

if TYPE_CHECKING:
    from sim.cluster import Node


GROUPS = 2
PULSE_SECONDS = 0.25
SILENCE_SECONDS = 1.0
# then the connection is given up, and with it what waits for an answer
CALL_SECONDS = SILENCE_SECONDS + PULSE_SECONDS


def settings_of(group: int, is_first: bool, groups: int) -> Settings:
    """Return settings with small bounds, so that each is met."""
    return Settings(
        priority=2 if is_first else 1,
        sleep_after_ms=1500,
        message_bytes_max=4096,
        inflight_messages_max=8,
        inflight_bytes_max=16_384,
        log_bytes_max=8192,
        chunk_bytes=1024,
        chunk_window_bytes=4096,
        rejoin_ms=1000,
    )


class NotThere(AssertionError):
    """A stream that was created, and must be there."""


class Stream:
    """Both ends of a subscription: pushed data arrives in order, until an end is gone or a longer
    network cut."""

    def __init__(self, here: Node, there: Node, on_item: Any, on_end: Any) -> None:
        self.here, self.there = here, there
        self.lives = (here.life, there.life)
        # broken: something did not arrive, so nothing does that comes later
        self.open, self.broken = (
            True,
            False,
        )
        self.ready = 0.0
        self.on_item, self.on_end = on_item, on_end
        self.on_cancel: Callable[[], object] = lambda: None

    def alive(self) -> bool:
        ends = (self.here, self.there)
        met = self.there.number not in self.here.lost and self.here.number not in self.there.lost
        return (
            not self.broken
            and met
            and all(
                node.alive and node.life == life
                for node, life in zip(ends, self.lives, strict=True)
            )
        )

    def forward(self, to: Node, what: Callable[[], object]) -> None:
        loop, world = asyncio.get_running_loop(), self.here.world
        # one behind the other
        self.ready = max(self.ready + 1e-6, loop.time() + world.random.uniform(*world.delay))

        def arrive() -> None:
            if self.alive():
                to.process.hand(lambda: what() if self.alive() else None)
            else:
                self.broken = True

        loop.call_at(self.ready, arrive, context=NOBODY)

    def item(self, body: bytes) -> None:
        if self.open:
            self.forward(self.here, lambda: self.on_item(body))

    def end(self, error: BaseException | None = None) -> None:
        if self.open:
            self.open = False
            self.forward(self.here, lambda: self.on_end(error))

    def cancel(self) -> None:
        self.on_item = self.on_end = lambda *_: None
        if self.open:
            self.open = False
            self.forward(self.there, self._cancelled)

    def _cancelled(self) -> None:
        self.on_cancel()

    def look(self) -> bool:
        """Report whether the connection is still open; if not, notify the side that is left."""
        if self.open and not self.alive():
            self.open = False
            if self.here.alive and self.here.life == self.lives[0]:
                self.here.process.hand(lambda: self.on_end(Unavailable("the connection broke")))
            if self.there.alive and self.there.life == self.lives[1]:
                self.there.process.hand(self._cancelled)
        return self.open


class SimRpc:
    """Calls between the nodes of one life: an answer that does not come in time has an unknown
    outcome."""

    def __init__(self, node: Node, life: int) -> None:
        self.node, self.life = node, life
        self.others: list[int] = []
        self.streams: dict[int, Any] = {}
        self.handlers: dict[
            int, Callable[[bytes, Callable[[bytes | BaseException], None], int], None]
        ] = {}

    def on(
        self,
        kind: int,
        handler: Callable[[bytes, Callable[[bytes | BaseException], None], int], None],
    ) -> None:
        self.handlers[kind] = handler

    def on_stream(self, kind: int, handler: Any) -> None:
        self.streams[kind] = handler

    def subscribe(self, core: int, kind: int, body: bytes, on_item: Any, on_end: Any) -> Stream:
        stream = Stream(self.node, self.node.world.nodes[core >> 8], on_item, on_end)
        self.node.world.open.append(stream)
        stream.forward(
            stream.there,
            lambda: stream.there.way.streams[kind](body, stream, self.node.number << 8),
        )
        return stream

    def send(self, core: int, kind: int, body: bytes) -> bool:
        return False

    def cores_of(self, node: int) -> int:
        return 1

    def protocol(self, core: int) -> int:
        return PROTOCOL_MAX

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None:
        world, to = self.node.world, core >> 8
        over = asyncio.get_running_loop().call_later(
            CALL_SECONDS, lambda: done(OutcomeUnknown(f"node {to} has not answered"))
        )

        def answered(answer: bytes | BaseException) -> None:
            if not over.cancelled() and over.when() > asyncio.get_running_loop().time():
                over.cancel()
                done(answer)

        def arrived() -> None:
            node = world.nodes[to]
            node.way.handlers[kind](
                body,
                lambda answer: world.deliver(node, self.node.number, lambda: answered(answer)),
                self.node.number << 8,
            )

        world.deliver(self.node, to, arrived)


class SimMap(msgspec.Struct, frozen=True):
    """The cluster map as the meta group has it: per group the voters and the goal, and the read
    replicas of all groups."""

    epoch: int
    members: tuple[int, ...]
    voters: dict[int, tuple[int, ...]]
    goals: dict[int, tuple[int, ...]]
    nodes: dict[int, Any] = {}
    readers: tuple[int, ...] = ()

    def placed_on(self, group: int) -> tuple[int, ...]:
        return tuple(sorted({*self.voters[group], *self.goals[group]}))

    def replicas_of(self, group: int) -> tuple[int, ...]:
        return (
            self.members if group == 0 else tuple(sorted({*self.placed_on(group), *self.readers}))
        )

    def readers_of(self, group: int) -> tuple[int, ...]:
        return tuple(
            sorted(set(self.members if group == 0 else self.readers) - set(self.placed_on(group)))
        )

    def learners_of(self, group: int) -> tuple[int, ...]:
        return tuple(sorted(set(self.goals[group]) - set(self.voters[group])))

    def first_of(self, group: int) -> int:
        return self.goals[group][group % len(self.goals[group])]


class SimWriter:
    """Writes one batch after the other, each after a while; those of a node that died meanwhile
    never."""

    def __init__(self, node: Node, journal: Journal) -> None:
        self._node, self._journal = node, journal
        self._ready = 0.0
        self._open = True

    def write(self, job: WriteJob) -> None:
        loop = asyncio.get_running_loop()
        self._ready = max(self._ready, loop.time()) + self._node.world.disk_seconds(self._node)
        loop.call_at(self._ready, self._write, *job)

    def _write(self, batch: WriteBatch, done: Callable[[BaseException | None], None]) -> None:
        if not self._open:
            return
        error: BaseException | None = None
        try:
            self._journal.write(batch)
        except BaseException as caught:
            error = caught
        done(error)

    def close(self) -> None:
        self._open = False


class Links:
    """Links of one incarnation of a node: a dead node's messages are dropped."""

    def __init__(self, node: Node, life: int) -> None:
        self.node, self.life = node, life

    def send(self, node: int, messages: list[bytes]) -> None:
        if self.life == self.node.life and self.node.alive:
            self.node.world.carry(self.node, node, messages)

    def send_bulk(self, node: int, messages: list[bytes]) -> None:
        """Send on a separate connection: the message may overtake others and be overtaken."""
        self.send(node, messages)


def reached(nodes: Iterable[Node]) -> list[object]:
    """Return the progress of each node: small bounds and slow links take time."""
    members = [member for node in nodes for member in node.core.members.values()]
    peers = [peer for member in members for peer in member.raft.peers.values()]
    sent = [peer.outgoing.acked if peer.outgoing is not None else 0 for peer in peers]
    return [[member.group.applied_index for member in members], sent]


def held_by(raft: Raft) -> int:
    """Return the last index on the member's disk, in a snapshot or behind it. Unbounded after a
    disk loss or while it receives a snapshot."""
    busy = (
        raft.amnesiac
        or raft.learning
        or raft.transfers.installing is not None
        or raft.reset is not None
        or not raft.durable
    )
    return 1 << 62 if busy else max(raft.durable, raft.snapshot.index)


def placeless(machine: Machine) -> bytes:
    """Encode the state of a group, positions in the own journal aside."""
    image = msgspec.msgpack.decode(snapshot_of(machine), type=snapshots.Image)
    for stream in image.streams:
        for batch in stream.hot or ():
            batch.position = 0
    return msgspec.msgpack.encode(image)
