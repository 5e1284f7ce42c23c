"""Move leaderships to nodes that can write to the object store.

Only a group's leader can flush its hot data, and appends are rejected when too much is unflushed. A
core that cannot write for a while asks the cores of other nodes whether they can. They test it
before they answer, and transfer no leadership to the asking node meanwhile. If no node can write,
nothing moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Protocol

import msgspec

from polynya.engine.leadership import LeaderPlacement
from polynya.jobs import repeat
from polynya.tiering.store_health import StoreAccess
from polynya.transport import Reply, node_of

KIND_STORE = 1009  # other kinds: health, access, shutdown barrier, cluster view and map
ASK_SECONDS = 5.0  # between two requests to the other nodes
ANSWER_SECONDS = 3.0  # timeout of a request
SHUN_SECONDS = 3 * ASK_SECONDS  # an asking node receives no leadership for this long
ASKING_MAX = 1024  # pending replies
log = logging.getLogger("polynya.leadership")
Taken = Callable[[bytes | BaseException], None]


class StoreLeadershipTransport(Protocol):
    """The interface that this module needs of a core's transport."""

    def on(self, kind: int, handler: Callable[[bytes, Reply, int], None]) -> None: ...

    def call_nowait(self, core: int, kind: int, body: bytes, done: Taken) -> None: ...


class StoreLeadership:
    """The store leadership of one core. `cores` returns the addresses of the reachable cores on
    other nodes."""

    def __init__(
        self,
        leads: LeaderPlacement,
        access: StoreAccess,
        transport: StoreLeadershipTransport,
        cores: Callable[[], Iterable[int]],
    ) -> None:
        self._leads, self._access, self._transport, self._cores = leads, access, transport, cores
        self._loop = asyncio.get_running_loop()
        self._owed: list[Reply] = []
        self._asked = asyncio.Event()
        self._nodes = set[int]()  # that can write, as asked at `_asked_at`
        self._asked_at, self._is_logged = -inf, False
        transport.on(KIND_STORE, self._hear)

    async def run(self) -> None:
        """Move leaderships while the store fails here; endless loop."""
        await repeat(self._relieve, self._access.patience.look, at_once=False)

    async def answer(self) -> None:
        """Answer other cores, in an endless loop, whether this one can write."""
        await repeat(self._answer, inf, wake=self._asked, at_once=False)

    async def _relieve(self) -> None:
        failing = self._access.failing()
        if not failing:
            self._is_logged = False
            return
        if self._loop.time() - self._asked_at >= ASK_SECONDS:
            self._asked_at = self._loop.time()
            self._nodes = await self._able(failing)
        if self._leads.relieve(self._nodes) and not self._is_logged:
            self._is_logged = True
            log.warning(
                "this node cannot use the object store: transferring leaderships to nodes that can",
                extra={"nodes": sorted(self._nodes)},
            )

    async def _answer(self) -> None:
        can = msgspec.msgpack.encode(await self._access.can_write())
        owed, self._owed = self._owed, []
        for reply in owed:
            reply(can)

    async def _able(self, failing: float) -> set[int]:
        """Return the nodes whose cores all answered that they can write."""
        cores = list(self._cores())
        said: dict[int, bool] = {}
        whole = asyncio.Event()

        def take(core: int, answer: bytes | BaseException) -> None:
            said[core] = isinstance(answer, bytes) and msgspec.msgpack.decode(answer, type=bool)
            if len(said) == len(cores):
                whole.set()

        for core in cores:
            self._transport.call_nowait(
                core, KIND_STORE, msgspec.msgpack.encode(failing), partial(take, core)
            )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await whole.wait()
        except TimeoutError:
            pass
        return {node_of(core) for core in cores} - {
            node_of(core) for core in cores if not said.get(core, False)
        }

    def _hear(self, body: bytes, reply: Reply, sender: int) -> None:
        if msgspec.msgpack.decode(body, type=float) > 0:
            self._leads.shun(node_of(sender), SHUN_SECONDS)
        if len(self._owed) < ASKING_MAX:
            self._owed.append(reply)
            self._asked.set()
