"""The network between simulated nodes: cuts, loss, delay, copies and replays, and ways that carry
only so much at once; of all or of one way alone."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING

import msgspec
from sim.process import NOBODY

if TYPE_CHECKING:
    from sim.cluster import Node

Pair = tuple[int, int]  # (from, to)
KEPT = 16  # messages of each way that may come again
WAITING_MAX = 60  # for room on a way; more are lost
CALM = (0.0005, 0.002)


class Bad(msgspec.Struct, frozen=True):
    """The defects of one link: shares, and `capacity`, the messages in flight at once (0:
    unlimited)."""

    loss: float = 0.0
    replays: float = 0.0
    capacity: int = 0
    waits: bool = False  # what finds no room waits; else it is lost


WELL = Bad()


class Sent(msgspec.Struct):
    at: float
    life: int  # of who is to get it
    what: Callable[[], None]


class Network:
    """The network between `nodes`."""

    nodes: dict[int, Node]

    def __init__(self, random: Random) -> None:
        self.random = random
        self.cut: set[Pair] = set()  # that nothing passes
        self.clogged: dict[Pair, float] = {}  # that nothing passes before that time
        self.bad: dict[Pair, Bad] = {}
        self.loss = self.copies = self.replays = 0.0
        self.capacity, self.waits = 0, False  # see `Bad`
        self.replay_seconds = 0.9  # what is older does not come again
        self.sent = 0
        self.delay = CALM
        self.in_order = False  # what one node sends to another arrives in the order of its sending
        self._last: dict[Pair, float] = {}  # when the last of a way arrives, if that counts
        self.far: dict[int, float] = {}  # node -> seconds that it is away from all others
        self.lost_for_room = self.replayed = 0
        self._under_way: Counter[Pair] = Counter()
        self._waiting: dict[Pair, deque[Callable[[], None]]] = {}
        self._lately: dict[Pair, deque[Sent]] = {}

    def carry(self, sender: Node, to: int, messages: list[bytes]) -> None:
        node = self.nodes.get(to)
        if node is None:
            return

        said = sender.greeter.said()

        def come() -> None:
            if node.greeter.lets_in(sender, said):
                node.core.received(messages, sender.number)

        self.deliver(sender, to, come)
        if self.copies and self.random.random() < self.copies:
            self.deliver(sender, to, come)
        replays = (
            max(self.replays, self.bad.get((sender.number, to), WELL).replays)
            if self.bad
            else self.replays
        )
        if replays:
            self._replay(sender, node, come, replays)

    def _replay(self, sender: Node, node: Node, what: Callable[[], None], share: float) -> None:
        """Repeat something that was sent a while ago, to the same life."""
        lately, now = (
            self._lately.setdefault((sender.number, node.number), deque(maxlen=KEPT)),
            asyncio.get_running_loop().time(),
        )
        old = [
            sent
            for sent in lately
            if now - sent.at < self.replay_seconds and sent.life == node.life
        ]
        if old and self.random.random() < share:
            self.replayed += 1
            self.deliver(sender, node.number, self.random.choice(old).what)
        lately.append(Sent(now, node.life, what))

    def deliver(self, sender: Node, to: int, what: Callable[[], None]) -> None:
        """Deliver a message after a delay if the link is up then and now."""
        if not sender.alive:
            return
        self.sent += 1
        way = (sender.number, to)
        bad = self.bad.get(way, WELL) if self.bad else WELL
        if way in self.cut or self.random.random() < max(self.loss, bad.loss):
            return
        node, life = self.nodes[to], self.nodes[to].life
        capacity, waits = (bad.capacity, bad.waits) if bad.capacity else (self.capacity, self.waits)

        def here() -> None:
            if node.alive and node.life == life:
                what()

        def arrive() -> None:
            if capacity:
                self._arrived(way)
            if node.alive and node.life == life and way not in self.cut:
                node.process.hand(here)

        def leave() -> None:
            self._under_way[way] += bool(capacity)
            asyncio.get_running_loop().call_later(self._seconds(way), arrive, context=NOBODY)

        if not capacity or self._under_way[way] < capacity:
            leave()
        elif waits and len(self._waiting.setdefault(way, deque())) < WAITING_MAX:
            self._waiting[way].append(leave)
        else:
            self.lost_for_room += 1

    def _seconds(self, way: Pair) -> float:
        clogged = (
            max(0.0, self.clogged.get(way, 0.0) - asyncio.get_running_loop().time())
            if self.clogged
            else 0.0
        )
        far = self.far.get(way[0], 0.0) + self.far.get(way[1], 0.0) if self.far else 0.0
        seconds = clogged + far + self.random.uniform(*self.delay)
        if self.in_order:
            now = asyncio.get_running_loop().time()
            last = self._last[way] = max(self._last.get(way, 0.0) + 1e-6, now + seconds)
            return last - now
        return seconds

    def _arrived(self, way: Pair) -> None:
        self._under_way[way] -= 1
        if waiting := self._waiting.get(way):
            waiting.popleft()()

    # --- what is done to it

    def part(self, one: Iterable[int], other: Iterable[int], *, back: bool = True) -> None:
        """Cut the link from one side to the other, and `back`."""
        other = tuple(other)
        for sender in one:
            for to in other:
                if sender != to:
                    self.cut |= {(sender, to), (to, sender)} if back else {(sender, to)}

    def isolate(self, number: int) -> None:
        self.part((number,), self.nodes)

    def ring(self, numbers: list[int]) -> None:
        """Build links in which a majority hears each node, and no two nodes have the same one."""
        reach = len(numbers) // 2
        for index, sender in enumerate(numbers):
            heard = {numbers[(index + step) % len(numbers)] for step in range(1, reach + 1)}
            self.part((sender,), set(numbers) - heard, back=False)

    def bridge(self, numbers: list[int]) -> None:
        """Build two halves that are cut off from each other; the middle node reaches both."""
        half = len(numbers) // 2
        self.part(numbers[:half], numbers[half + 1 :])

    def heal(self) -> None:
        self.cut.clear()
        self.clogged.clear()
        self.bad.clear()
        self.loss = self.copies = self.replays = 0.0
        self.capacity, self.waits = 0, False
        self.delay = CALM
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for leave in queue:
                leave()
