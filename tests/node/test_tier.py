"""The object tier of a core, as far as it is more than its parts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from cold_world import CoreWorld

from polynya.base.errors import Unavailable
from polynya.node.config import ColdConfig
from polynya.node.tier import Tier
from polynya.objectstore import MemoryStore, WatchedStore


def test_a_core_whose_store_is_away_since_its_start_flushes_what_it_has_nothing_of() -> None:
    """In a cluster every core is asked: one that leads nothing must not keep the tables of all others from going on."""

    async def run() -> None:
        core, made = CoreWorld(), asyncio.Event()
        claim: Any = SimpleNamespace(made=made, owned=lambda: True, reason="it does not answer")
        birth = SimpleNamespace(cluster_id="c1", node=1, history=1)
        start: Any = SimpleNamespace(core=0, birth=birth, config=SimpleNamespace(cold=ColdConfig()))
        groups: Any = core
        tier = Tier(WatchedStore(MemoryStore(), asyncio.get_running_loop().time), start, groups, claim)
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
