"""The object tier of a core, as far as it is more than its parts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from sim.loop import run_simulated
from worlds.cold import CoreWorld

from polynya.base.errors import Unavailable
from polynya.config.model import Config
from polynya.config.sections import ColdConfig
from polynya.objectstore import MemoryStore, StoreUnavailable, WatchedStore
from polynya.tiering.tier import Tier


def test_a_core_whose_store_is_away_since_its_start_flushes_what_it_has_nothing_of() -> None:
    """Answer a flush request without any groups: a core that leads nothing must not block the
    tables of the others."""

    async def run() -> None:
        core, made = CoreWorld(), asyncio.Event()
        claim: Any = SimpleNamespace(made=made, owned=lambda: True, reason="it does not answer")
        identity = SimpleNamespace(cluster_id="c1", node=1, history=1)
        start: Any = SimpleNamespace(core=0, identity=identity, config=Config())
        groups: Any = core
        tier = Tier(
            WatchedStore(MemoryStore(), asyncio.get_running_loop().time), start, groups, claim
        )
        await tier.flush_now("docs/")
        core.create("docs/a")
        core.append("docs/a", b"x")
        await tier.flush_now("other/")
        with pytest.raises(Unavailable, match="cannot be used yet"):
            await tier.flush_now("docs/")
        made.set()
        await tier.flush_now("docs/")
        assert core.hot_bytes() == 0

    asyncio.run(run())


class Away(MemoryStore):
    """Takes no writes while it is away."""

    away = False

    async def put(self, key: str, parts: Any) -> None:
        if self.away:
            raise StoreUnavailable(f"{key}: connection refused", "connection refused")
        await super().put(key, parts)


@pytest.mark.parametrize("seconds", [3.0, 20.0, 21.3, 95.0, 600.0])
def test_what_waits_for_the_store_is_flushed_soon_after_its_return(seconds: float) -> None:
    """However long the flusher has come to pause: appends at the bound of hot bytes wait for
    this."""

    async def run() -> float:
        core, made, store, loop = CoreWorld(), asyncio.Event(), Away(), asyncio.get_running_loop()
        made.set()
        claim: Any = SimpleNamespace(made=made, owned=lambda: True, reason=None)
        identity = SimpleNamespace(cluster_id="c1", node=0, history=1)
        cold = ColdConfig(flush_bytes=1, flush_interval_ms=1)
        start: Any = SimpleNamespace(core=0, identity=identity, config=Config(cold=cold))
        groups: Any = core
        tier = Tier(WatchedStore(store, loop.time), start, groups, claim)
        core.create("docs/a")
        core.append("docs/a", b"x")
        store.away = True
        tasks = [loop.create_task(tier.flusher.run()), loop.create_task(tier.access.run())]
        await asyncio.sleep(seconds)
        assert core.hot_bytes()
        store.away, back = False, loop.time()
        while core.hot_bytes() and loop.time() < back + 100:
            await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return loop.time() - back

    assert run_simulated(run()) < 1.5
