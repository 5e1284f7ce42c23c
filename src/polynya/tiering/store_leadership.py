"""Leaderships go where the object store can be written to: a node that it refuses hands them to nodes that it does not, since what is recent can
only be flushed where its group is led, and appends are refused when too much is not.

A core that cannot write for a while asks those of the other nodes whether they can. They try it before they answer, and give that node back no
leaderships meanwhile. Where nobody can, nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

import msgspec

from polynya.engine.leadership import LeaderPlacement
from polynya.tiering.store_health import StoreAccess
from polynya.transport import Reply, node_of

KIND_STORE = 1009  # beside those of health, access, farewell, the cluster's view and its map
ASK_SECONDS = 5.0  # between two questions to the others
ANSWER_SECONDS = 3.0  # they are waited for
SHUN_SECONDS = 3 * ASK_SECONDS  # a node that asked is given no leaderships for so long
ASKING_MAX = 1024  # answers that are owed at once
log = logging.getLogger("polynya.leads")
Taken = Callable[[bytes | BaseException], None]


class StoreLeadershipTransport(Protocol):
    """What is needed of a core's transport."""

    def on(self, kind: int, handler: Callable[[bytes, Reply, int], None]) -> None: ...

    def call_nowait(self, core: int, kind: int, body: bytes, done: Taken) -> None: ...


class StoreLeadership:
    """Of one core. `cores`: addresses of those of the other nodes that are there."""

    def __init__(
        self, leads: LeaderPlacement, access: StoreAccess, transport: StoreLeadershipTransport, cores: Callable[[], Iterable[int]]
    ) -> None:
        self._leads, self._access, self._transport, self._cores = leads, access, transport, cores
        self._loop = asyncio.get_running_loop()
        self._owed: list[Reply] = []
        self._asked = asyncio.Event()
        transport.on(KIND_STORE, self._hear)

    async def run(self) -> None:
        """For ever: looks after what is led here."""
        able: set[int] = set()
        asked, told = float("-inf"), False
        while True:
            await asyncio.sleep(self._access.patience.look)
            failing = self._access.failing()
            if not failing:
                told = False
                continue
            if self._loop.time() - asked >= ASK_SECONDS:
                asked = self._loop.time()
                able = await self._able(failing)
            if self._leads.relieve(able) and not told:
                told = True
                log.warning(
                    "the object store cannot be used here, but by others: these lead what this node led", extra={"nodes": sorted(able)}
                )

    async def answer(self) -> None:
        """For ever: tells others whether this core can write."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            can = msgspec.msgpack.encode(await self._access.can_write())
            owed, self._owed = self._owed, []
            for reply in owed:
                reply(can)

    async def _able(self, failing: float) -> set[int]:
        """The nodes whose cores can all write, of those that say so."""
        cores = list(self._cores())
        said: dict[int, bool] = {}
        whole = asyncio.Event()

        def take(core: int, answer: bytes | BaseException) -> None:
            said[core] = isinstance(answer, bytes) and msgspec.msgpack.decode(answer, type=bool)
            if len(said) == len(cores):
                whole.set()

        for core in cores:
            self._transport.call_nowait(core, KIND_STORE, msgspec.msgpack.encode(failing), partial(take, core))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await whole.wait()
        except TimeoutError:
            pass
        return {node_of(core) for core in cores} - {node_of(core) for core in cores if not said.get(core, False)}

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        if msgspec.msgpack.decode(body, type=float) > 0:
            self._leads.shun(node_of(sender), SHUN_SECONDS)
        if len(self._owed) < ASKING_MAX:
            self._owed.append(reply)
            self._asked.set()
