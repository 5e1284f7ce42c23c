"""Background work beside the turns of a core."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.node import periodic_work
from polynya.node.periodic_work import PeriodicWork


def test_time_passes_for_streams_while_what_crosses_groups_waits_for_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keep streams alive by live readers, which are logged about every second."""
    monkeypatch.setattr(periodic_work, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(periodic_work, "SETTLE_SECONDS", 0.0)

    async def run() -> None:
        waits, often = asyncio.Event(), asyncio.Event()
        sweeps = looks = 0

        def sweep() -> None:
            nonlocal sweeps
            sweeps += waits.is_set()

        def swept() -> None:
            nonlocal looks
            looks += waits.is_set()
            if looks == 3:
                often.set()

        async def settle() -> None:
            waits.set()
            await asyncio.Event().wait()

        async def nothing() -> None:
            """Do the rest of the work."""

        engine: Any = SimpleNamespace(
            local=SimpleNamespace(sweep=sweep),
            outbox_sender=SimpleNamespace(sweep=settle),
            snapshotter=SimpleNamespace(look=nothing, due=lambda: False),
            core=SimpleNamespace(journal=SimpleNamespace(look=lambda: None)),
            retainer=SimpleNamespace(run_once=nothing),
            transaction_jobs=SimpleNamespace(run_once=nothing),
        )
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in PeriodicWork(engine, swept).tasks()]
        async with asyncio.timeout(30):
            await often.wait()
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sweeps >= looks >= 3

    asyncio.run(run())
