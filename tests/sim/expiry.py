"""Streams that expire: by a TTL that appends and reads extend, or at a time. Log time decides, so
responses are compared with its earliest and latest possible values."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

from sim.workers import Shop

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, StreamInfo
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

NAMES = ("ends/a", "ends/b", "ends/c")
FOREVER_MS = 1 << 62
# after an unknown outcome an append may still be applied, also in the next incarnation
LATE_MS = 30_000
GRACE = 1.125  # of a TTL: a read that only a lost leader knew of may have been


class Ends:
    """One client for each name."""

    def __init__(self, episode: Episode, shop: Shop) -> None:
        self._episode, self._world, self._shop = episode, episode.world, shop
        self.counts: Counter[str] = Counter()

    def clients(self) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self._client(name)) for name in NAMES]

    async def finish(self) -> None:
        """Wait on a healthy cluster until all streams expire without requests."""
        for _ in range(200):
            left = [
                name
                for name in NAMES
                for node in self._world.alive()
                if name in self._machine(node, name).directory.streams
            ]
            if not left:
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{left} are over, and stay")

    def _machine(self, node: Node, name: str) -> Any:
        return node.engine.local.machines[self._world.group_of(name)]

    async def _client(self, name: str) -> None:
        random = Random(f"{name} {self._episode.seed}")
        life = Life(self._shop, self._world.group_of(name), name)
        while not self._episode.over:
            await asyncio.sleep(random.choice((0.05, 0.3, 1.0, 1.5)))
            alive = self._world.alive()
            if alive:
                act = (
                    random.choice((life.create, life.append, life.read, life.look, life.look))
                    if life.uid
                    else life.create
                )
                try:
                    self.counts[f"{act.__name__} {await act(random.choice(alive), random)}"] += 1
                except (Unavailable, OutcomeUnknown):
                    life.doubt()


class Life:
    """A client's knowledge of one stream's life: it lasts until `least_ms` at least and `most_ms`
    at most."""

    def __init__(self, shop: Shop, group: int, name: str) -> None:
        self._shop, self._group, self._name = shop, group, name
        self.uid = 0  # 0: not known
        self._ttl_ms = self._fixed_ms = 0
        self._least_ms, self._most_ms = 0, FOREVER_MS
        self._late_ms = 0  # until then an unseen change may happen

    def doubt(self) -> None:
        """Widen the bounds after an unknown outcome: the life may have been extended, also by a
        read whose response was lost."""
        self._late_ms = self._shop.newest_ms() + LATE_MS
        if not self._fixed_ms:
            self._most_ms = FOREVER_MS

    async def create(self, node: Node, random: Random) -> str:
        began_ms, known = self._now_ms(), self.uid
        ttl, at = (
            (random.choice((1, 2)), None)
            if random.random() < 0.7
            else (None, began_ms + random.choice((500, 2000)))
        )
        command = Create(
            self._name, began_ms, "text/plain", Encoding.BYTES, ttl_seconds=ttl, expires_at_ms=at
        )
        self.uid = 0  # until there is an answer it may be any life
        reply = await node.background.ask(node.propose(self._name, command), 7.0)
        if reply.code == Code.CREATED:
            if known:
                self._is_over("another is created")
            self.uid, self._ttl_ms, self._fixed_ms = reply.uid, (ttl or 0) * 1000, at or 0
            self._touched(began_ms)
        elif reply.code in (Code.EXISTS, Code.EXISTS_DIFFERENT) and reply.uid == known:
            self.uid = known
            self._is_there(began_ms, "EXISTS")
        return Code(reply.code).name

    async def append(self, node: Node, random: Random) -> str:
        began_ms = self._now_ms()
        reply = await node.background.ask(node.append(self._name, b"x"), 7.0)
        if reply.code == Code.OK and reply.uid == self.uid:
            self._is_there(began_ms, "an append is taken")
            self._touched(began_ms)
        elif reply.code == Code.NOT_FOUND:
            self._gone()
        return Code(reply.code).name

    async def read(self, node: Node, random: Random) -> str:
        """Read the stream, which extends its life. A crashed leader may have been the only node to
        know."""
        began_ms = self._now_ms()
        page = await node.background.ask(node.engine.service.read(ReadQuery(self._name)))
        if isinstance(page, Page) and page.info.uid == self.uid:
            self._is_there(began_ms, "it is read")
            if self._ttl_ms:
                self._most_ms = max(
                    self._most_ms, int(self._shop.newest_ms() + self._ttl_ms * GRACE)
                )
        elif not isinstance(page, Page) and page.code == Code.NOT_FOUND:
            self._gone()
        return type(page).__name__

    async def look(self, node: Node, random: Random) -> str:
        began_ms = self._now_ms()
        info = await node.background.ask(node.engine.service.info(self._name))
        if isinstance(info, StreamInfo) and info.uid == self.uid:
            self._is_there(began_ms, "it is shown")
        elif not isinstance(info, StreamInfo) and info.code == Code.NOT_FOUND:
            self._gone()
        return type(info).__name__

    def _touched(self, began_ms: int) -> None:
        if self._fixed_ms:
            self._least_ms = self._most_ms = self._fixed_ms
        else:
            self._least_ms = max(self._least_ms, began_ms + self._ttl_ms)
            newest_ms = self._shop.newest_ms()
            self._most_ms = (
                FOREVER_MS if newest_ms < self._late_ms else int(newest_ms + self._ttl_ms * GRACE)
            )

    def _is_there(self, began_ms: int, what: str) -> None:
        assert began_ms < self._most_ms, (
            f"{self._name}: {what} at {began_ms} or later, and it was over at {self._most_ms}"
        )

    def _is_over(self, what: str) -> None:
        now_ms = self._shop.newest_ms()
        assert now_ms >= self._least_ms, (
            f"{self._name}: {what} by {now_ms}, and it lasts until {self._least_ms}"
        )
        self.uid, self._least_ms, self._most_ms = 0, 0, FOREVER_MS

    def _gone(self) -> None:
        if self.uid:
            self._is_over("it is not there")

    def _now_ms(self) -> int:
        """Log time is not earlier in its group."""
        return self._shop.stamps[self._group]
