"""Stopping cores wait for each other, within a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from polling import turns

from polynya.node import shutdown_barrier
from polynya.node.shutdown_barrier import ShutdownBarrier
from polynya.transport import Transport


@asynccontextmanager
async def cores(
    folder: Path, count: int
) -> AsyncIterator[tuple[list[Transport], list[ShutdownBarrier]]]:
    transports = [Transport(core, count, str(folder), start_id="s") for core in range(count)]
    farewells = [ShutdownBarrier(transport) for transport in transports]
    for transport in transports:
        await transport.start()
    for transport in transports:
        await transport.wait_connected()
    try:
        yield transports, farewells
    finally:
        for transport in transports:
            await transport.close()


def test_the_first_waits_for_the_last(tmp_path: Path) -> None:
    async def story() -> None:
        async with cores(tmp_path, 3) as (_, farewells), asyncio.TaskGroup() as tasks:
            first, second = (tasks.create_task(each.say()) for each in farewells[:2])
            await turns()
            assert not (first.done() or second.done())
            await farewells[2].say()
            async with asyncio.timeout(30):
                await asyncio.gather(first, second)

    asyncio.run(story())


def test_a_core_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with cores(tmp_path, 2) as (transports, farewells):
            waiting = asyncio.create_task(farewells[0].say())
            await turns()
            assert not waiting.done()
            await transports[1].close()
            async with asyncio.timeout(30):
                await waiting

    asyncio.run(story())


def test_nor_for_ever_one_that_does_not_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown_barrier, "PATIENCE_SECONDS", 0.05)

    async def story() -> None:
        async with cores(tmp_path, 2) as (_, farewells), asyncio.timeout(30):
            await farewells[0].say()

    asyncio.run(story())
