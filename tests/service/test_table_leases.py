"""Leases of tables: two workers divide the tables, a dead worker's lease ends, and a sync without
a lease is never refused."""

from __future__ import annotations

import asyncio
import tempfile

import pytest
from worlds.service import Node, World, name_in

from polynya.base.limits import TABLE_LEASE_MS
from polynya.service.table_jobs import PlannedJob, TableJobs
from polynya.service.table_leases import KEPT_MS, SCOPE, Lease, may_take
from polynya.service.tables import TableRefused
from polynya.stream.features.settings.rules import values_of

NAMES = [f"t{number}" for number in range(8)]


@pytest.mark.parametrize(
    ("lease", "allowed"),
    [
        (None, True),
        (Lease("me", 200), True),
        (Lease("other", 200), False),
        (Lease("other", 99), True),
        (Lease("other", 99, 150), False),
        (Lease("me", 99, 150), False),
        (Lease("other", 90, 100), True),
    ],
)
def test_who_may_take_a_table(lease: Lease | None, allowed: bool) -> None:
    assert may_take(lease, "me", 100) == allowed


async def planned(jobs: TableJobs, name: str, worker: str) -> PlannedJob | str | None:
    """A plan, or the code of the refusal."""
    try:
        return await jobs.plan(name, worker=worker)
    except TableRefused as refused:
        return refused.code


def test_a_lease_is_extended_released_and_ends_with_a_worker_that_dies() -> None:
    async def run() -> None:
        world = World().start()
        stream = name_in(1, hint="a")
        await world.create(stream)
        await world.append(stream, b"1")
        await world.tables.create("t", "test/")
        jobs, clock = world.jobs, world.clock
        first = await planned(jobs, "t", "one")
        assert isinstance(first, PlannedJob)
        assert await planned(jobs, "t", "two") == "TABLE_LEASED"
        assert not await jobs.extend_lease("t", "two")
        clock.ms += TABLE_LEASE_MS - 1
        assert await jobs.extend_lease("t", "one")
        clock.ms += TABLE_LEASE_MS - 1
        assert await planned(jobs, "t", "two") == "TABLE_LEASED"
        without = await jobs.plan("t")
        assert without is not None and without.job == first.job, "no lease, no refusal"
        clock.ms += 1
        second = await planned(jobs, "t", "two")
        assert isinstance(second, PlannedJob) and second.job == first.job
        assert not await jobs.extend_lease("t", "one")
        await jobs.release_lease("t", "one", 0)
        assert await planned(jobs, "t", "one") == "TABLE_LEASED", "only the holder releases"
        await jobs.release_lease("t", "two", 30_000)
        assert await planned(jobs, "t", "one") == "TABLE_LEASED"
        clock.ms += 30_000
        assert isinstance(await planned(jobs, "t", "one"), PlannedJob)
        await jobs.abandon(first.table.uid, first.job)
        await world.tables.drop("t")
        await world.tables.create("u", "test/")
        clock.ms += TABLE_LEASE_MS + KEPT_MS + 1
        assert isinstance(await planned(jobs, "u", "one"), PlannedJob)
        assert len(values_of(await world.service.meta_group.entries(SCOPE), SCOPE)) == 1, (
            "old leases go"
        )
        await world.stop()

    asyncio.run(run())


def test_a_table_without_work_is_leased_to_no_one() -> None:
    async def run() -> None:
        world = World().start()
        await world.tables.create("t", "test/")
        for worker in ("one", "two"):
            assert await planned(world.jobs, "t", worker) is None
        assert values_of(await world.service.meta_group.entries(SCOPE), SCOPE) == {}
        await world.stop()

    asyncio.run(run())


def test_workers_of_two_cores_never_get_the_same_table_at_once() -> None:
    async def run(directory: str) -> None:
        node = await Node(directory).start()
        here, there = node.worlds
        streams = [name_in(1 + number % 4, hint=f"lease{number}") for number in range(8)]
        for name, stream in zip(NAMES, streams, strict=True):
            await here.create(stream)
            await here.append(stream, b"row")
            await here.tables.create(name, stream.removeprefix("default/"))
        got: dict[str, list[str]] = {}

        async def work(world: World, worker: str) -> None:
            for name in NAMES:
                if isinstance(await planned(world.jobs, name, worker), PlannedJob):
                    got.setdefault(name, []).append(worker)
                await asyncio.sleep(0)

        await asyncio.gather(*(work(each, f"w{at}") for at, each in enumerate((here, there))))
        assert sorted(got) == NAMES
        assert all(len(workers) == 1 for workers in got.values()), got
        await node.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
