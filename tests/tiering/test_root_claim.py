"""The claim of the object store's root: which data folders may have it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sim.loop import run_simulated

from polynya.backup import copies
from polynya.backup.group_file import Header
from polynya.base.errors import ConfigError
from polynya.objectstore import MemoryStore, ObjectStore, StoreSettings, StoreUnavailable, read_root
from polynya.tiering import root_claim
from polynya.tiering.root_claim import StoreRootClaim


def claim_of(
    folder: Path, store: ObjectStore, indexes: dict[int, int], *, node: int = 0
) -> StoreRootClaim:
    identity = SimpleNamespace(cluster_id="c1", history=1, node=node)
    config = SimpleNamespace(data=str(folder), store=StoreSettings(backend="memory"))
    start: Any = SimpleNamespace(core=1, start_id="s1", identity=identity, config=config)
    return StoreRootClaim(start, store, lambda: indexes)


async def copied(store: ObjectStore, group: int, index: int, *, history: int = 1) -> None:
    await copies.write(store, ("c1", history), Header(group, 1, index, 0, 1, 0, 0), [b"x"])


def test_an_older_copy_of_a_data_folder_does_not_get_the_root(tmp_path: Path) -> None:
    """Refuse the root to a restored machine: it would start without some acknowledged data and
    sweep the rest from the store."""

    async def run() -> None:
        store = MemoryStore()
        await copied(store, 1, 7)
        await copied(store, 2, 999)  # of another core
        await copied(store, 1, 999, history=2)
        with pytest.raises(
            ConfigError, match=r"is a stale copy.* group 1 at entry 7, but this folder ends at 6"
        ):
            await claim_of(tmp_path, store, {1: 6, 3: 1}).make()
        assert await read_root(store) is None, "whoever has it keeps it"
        claim = claim_of(tmp_path, store, {1: 7, 3: 1})
        await claim.make()
        assert await claim.owned()
        await claim_of(
            tmp_path, store, {1: 6}, node=1
        ).make()  # the others of its cluster know better

    asyncio.run(run())


@pytest.mark.parametrize("record", [b'{"cluster_id":"\xff"}', b"[" * 100_000, b"{", b""])
def test_an_unreadable_record_of_the_root_holds_nothing(tmp_path: Path, record: bytes) -> None:
    (tmp_path / root_claim.FILE).write_bytes(record)
    start: Any = SimpleNamespace(config=SimpleNamespace(data=str(tmp_path)))
    assert not root_claim.was_held(start)


class Away(MemoryStore):
    """Answers nothing while it is away."""

    away = True

    async def head(self, key: str) -> Any:
        if self.away:
            raise StoreUnavailable(f"{key}: connection refused", "connection refused")
        return await super().head(key)


@pytest.mark.parametrize("seconds", [1.0, 33.3, 600.0])
def test_a_root_whose_store_was_away_is_claimed_soon_after_its_return(
    tmp_path: Path, seconds: float
) -> None:
    """Claim the root before any flush: appends at the limit of hot bytes wait for this."""

    async def run() -> float:
        store, loop = Away(), asyncio.get_running_loop()
        claim = claim_of(tmp_path, store, {})
        claim.is_known = True
        making = loop.create_task(claim.make())
        await asyncio.sleep(seconds)
        store.away, back = False, loop.time()
        await making
        return loop.time() - back

    assert run_simulated(run()) <= 1.0
