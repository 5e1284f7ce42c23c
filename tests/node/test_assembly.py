"""What works beside the turns of a core, as its parts are put together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from polynya.node import assembly
from polynya.node.assembly import Assembly


def test_time_passes_for_streams_while_what_crosses_groups_waits_for_another_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Live readers keep a stream alive by what is logged for them about every second."""
    monkeypatch.setattr(assembly, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(assembly, "SETTLE_SECONDS", 0.0)

    async def run() -> None:
        waits, often, sweeps = asyncio.Event(), asyncio.Event(), 0

        def sweep() -> None:
            nonlocal sweeps
            sweeps += waits.is_set()
            if sweeps == 3:
                often.set()

        async def settle() -> None:
            waits.set()
            await asyncio.Event().wait()

        core: Any = Assembly.__new__(Assembly)
        core._member, core._tasks = None, []
        core._engine = SimpleNamespace(
            local=SimpleNamespace(sweep=sweep), outbox_sender=SimpleNamespace(sweep=settle)
        )
        for work in (core._sweep(), core._settle()):
            core._spawn(work)
        async with asyncio.timeout(30):
            await often.wait()
        for task in core._tasks:
            task.cancel()
        await asyncio.gather(*core._tasks, return_exceptions=True)
        assert sweeps >= 3

    asyncio.run(run())
