"""Background work of a simulated node, as in the product's assembly: expiry, outbox, retention,
notification of leaderless readers, subscription wakes and webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from polynya.base.errors import OutcomeUnknown, PolynyaError
from polynya.jobs import repeat
from polynya.node.periodic_work import SETTLE_SECONDS, SWEEP_SECONDS
from polynya.service.stale_readers import StaleReaders
from polynya.subscriptions import Subscriptions
from polynya.subscriptions.shell import TICK_SECONDS
from polynya.subscriptions.webhooks import DeliveryOutcome

if TYPE_CHECKING:
    from sim.cluster import Node

Receiver = Callable[[bytes], Awaitable[DeliveryOutcome]]
Result = TypeVar("Result")


class BackgroundWork:
    """Background work of one incarnation of a node. Idle in worlds without it: stories have parts
    of their own."""

    def __init__(self, node: Node) -> None:
        self._node, self._engine = node, node.engine
        service = node.engine.service
        if not node.world.keeps_house:
            return
        self.subscriptions = Subscriptions(service, allow_loopback=True)
        self.subscriptions._wakes.webhooks = Post(node)  # type: ignore[assignment]
        self._stranded = StaleReaders(
            service.local, service.directory, node.forwarding.targets, service.rpc
        )
        node.engine.after_turn.append(self.subscriptions.pump)
        for work in (
            self._settle(),
            self._retain(),
            self._look(),
            repeat(self.subscriptions._keep, TICK_SECONDS),
        ):
            node.spawn(work)
        if node.world.runs_transactions:
            node.spawn(self._transact())

    def end(self) -> None:
        """Cancel the tasks of the subscriptions, as the node dies."""
        if not self._node.world.keeps_house:
            return
        subscriptions = self.subscriptions
        tasks = (
            *subscriptions._senders.values(),
            *subscriptions._wakes._busy.values(),
            *subscriptions._wakes._issuing.values(),
        )
        for task in (*tasks, *filter(None, (subscriptions._sweeping,))):
            task.cancel()

    async def ask(self, work: Coroutine[Any, Any, Result], seconds: float = 6.0) -> Result:
        """Send a client's request to the node, which works on it while it lives. Raises the
        request's errors, and OutcomeUnknown on the node's crash or the client's timeout."""
        node, life = self._node, self._node.life
        task = asyncio.ensure_future(work)
        node.tasks.add(task)  # type: ignore[arg-type]
        try:
            await asyncio.wait((task,), timeout=seconds)
        finally:
            node.tasks.discard(task)  # type: ignore[arg-type]
            # an episode that has failed ends in the midst of everything
            if not task.done() and not task.get_loop().is_closed():
                task.cancel()
        if not task.done() or task.cancelled() or node.life != life or not node.alive:
            if task.done() and not task.cancelled():
                task.exception()
            raise OutcomeUnknown("no answer")
        return task.result()

    async def _settle(self) -> None:
        for rounds in count(1):
            await asyncio.sleep(SWEEP_SECONDS)
            self._engine.local.sweep()
            if rounds % round(SETTLE_SECONDS / SWEEP_SECONDS) == 0:
                await self._engine.outbox_sender.sweep()

    async def _transact(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._engine.transaction_jobs.run_once()

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            with suppress(PolynyaError):
                await self._engine.retainer.run_once()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self._stranded.look()


class Post:
    """Webhooks of one node: the receivers are in the world, and the ways to them lose requests and
    answers."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def check(self, url: str) -> None:
        """Allow every URL."""

    async def post(
        self, url: str, body: bytes, headers: dict[str, str], seconds: float
    ) -> DeliveryOutcome:
        world = self._node.world
        random: Random = world.random
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(random.uniform(*world.delay))
                if random.random() < world.loss:
                    await asyncio.sleep(seconds)
                outcome = await world.receivers[url](body)
                await asyncio.sleep(random.uniform(*world.delay))
                if random.random() < world.loss:
                    await asyncio.sleep(seconds)
                return outcome
        except TimeoutError:
            return DeliveryOutcome(False, reason="no answer")

    async def close(self) -> None:
        """Close an instance without open resources."""
