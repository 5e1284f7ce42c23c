"""The product's own streams are rows of a table only if its prefix names them."""

from __future__ import annotations

import asyncio

import pytest
from worlds.service import World

from polynya.base.names import FORMER_CURSORS, OWN_FOLDERS
from polynya.stream.features.tables.watches import watch_of

USERS = "shop/orders"
OWN = {folder: f"{folder}0" for folder in OWN_FOLDERS}


async def grown() -> World:
    world = World().start()
    for name in (USERS, *OWN.values()):
        await world.create(name)
        await world.append(name, b"row")
    return world


async def rows_of(world: World, table: str) -> set[str]:
    """Return the streams of which a job of the table has records."""
    planned = await world.jobs.plan(table)
    assert planned is not None
    names = {
        uid: stream.name
        for machine in world.local.machines.values()
        for uid, stream in machine.directory.by_uid.items()
    }
    return {names[part.uid] for part in planned.ranges}


def watched(world: World, name: str) -> int | None:
    """Return the table that the stream's group keeps records for."""
    machine = next(each for each in world.local.machines.values() if name in each.directory.streams)
    watch = watch_of(machine, name)
    return None if watch is None else watch.table


@pytest.mark.parametrize("folder", [each for each in OWN_FOLDERS if FORMER_CURSORS not in each])
def test_a_wide_prefix_leaves_out_what_a_longer_one_names(folder: str) -> None:
    async def run() -> None:
        world = await grown()
        wide, _ = await world.tables.create("wide", "", hold=True)
        assert await world.tables.names(wide, 10) == [USERS]
        assert [watched(world, name) for name in OWN.values()] == [None] * len(OWN)
        assert watched(world, USERS) == wide.uid
        assert await rows_of(world, "wide") == {USERS}
        assert sum(lag.streams for lag in await world.tables.lags(wide)) == 1
        named, _ = await world.tables.create("named", folder[:-1])
        assert await world.tables.names(named, 10) == [OWN[folder]]
        assert watched(world, OWN[folder]) == named.uid
        assert await rows_of(world, "named") == {OWN[folder]}
        await world.stop()

    asyncio.run(run())


def test_a_group_of_an_earlier_release_holds_what_that_release_does() -> None:
    async def run() -> None:
        world = await grown()
        wide, _ = await world.tables.create("wide", "", hold=True)
        for machine in world.local.machines.values():
            machine.counters.level, machine.counters.standalone = 3, False
        assert [watched(world, name) for name in OWN.values()] == [wide.uid] * len(OWN)
        await world.stop()

    asyncio.run(run())
