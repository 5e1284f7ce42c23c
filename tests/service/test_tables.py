"""Tables over the cores of a node: every record in exactly one committed job, despite crashes and
late planners."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import msgspec
import pytest
from worlds.service import IDLE_MS, Node, World, name_in

from polynya.service import table_jobs
from polynya.service.table_jobs import PlannedJob, TableJobs
from polynya.service.tables import TableRefused, Tables
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.tables import rules as stream_tables
from polynya.stream.features.tables.commands import (
    TableAbandon,
    TableCommit,
    TableDrop,
    TableMove,
    TableOpen,
    TableReplace,
)
from polynya.stream.features.tables.rules import ClaimedRange, Lag, lag_of
from polynya.stream.features.tables.state import Failure
from polynya.stream.parts import ColdSlice
from polynya.stream.replies import Code

STREAMS = [name_in(group, hint="t") for group in (1, 2, 3, 4)]


class Lake:
    """A driver's view: what its committed jobs hold."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rows: list[tuple[int, int]] = []  # (uid, record)
        self.commits = 0

    async def plan(self, *, merge: bool = False) -> PlannedJob | None:
        return await self.world.jobs.plan("t", merge=merge)

    async def commit(self, planned: PlannedJob) -> bool:
        """Commit, and report whether this attempt is the one that counts."""
        self.commits += 1
        table = planned.table
        main = f"main-{planned.attempt}"
        command = TableCommit(
            table.uid,
            planned.job,
            planned.attempt,
            table.main,
            table.dlq,
            main,
            main,
            1,
            0,
            self.world.clock.ms,
        )
        try:
            committed = await self.world.jobs.commit(command)
        except TableRefused as refused:
            if refused.code != "JOB_CONFLICT":
                raise
            return False
        assert committed.main == main
        again = await self.world.jobs.commit(command)
        assert again.committed == planned.job, "its repeat succeeds"
        for part in planned.ranges:
            for piece in part.slices:
                self.rows += [(part.uid, piece.record + number) for number in range(piece.records)]
        return True

    async def check(self) -> None:
        """Assert that each record has exactly one row, and that no work is left."""
        wanted = []
        for name in STREAMS:
            info = await self.world.service.info(name)
            wanted += [(info.uid, number) for number in range(info.record)]  # type: ignore[union-attr]
        assert sorted(self.rows) == sorted(wanted)
        assert await self.plan() is None


async def grow(world: World, count: int = 3) -> None:
    for name in STREAMS:
        await world.create(name)
        for number in range(count):
            await world.append(name, b"row %d" % number)


def in_one_core(tell: object) -> None:
    async def run() -> None:
        world = World().start()
        await grow(world)
        await world.tables.create("t", "test/")
        await tell(world)  # type: ignore[operator]
        await world.stop()

    asyncio.run(run())


def test_jobs_take_every_record_once() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        for _ in range(3):
            planned = await lake.plan()
            assert planned is not None and await lake.commit(planned)
            await grow(world)
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        await lake.check()
        assert (await world.tables.lag(await world.tables.find("t"))).records == 0

    in_one_core(tell)


def test_an_abandoned_job_is_planned_again_with_all_that_came_since() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        planned = await lake.plan()
        assert planned is not None
        await grow(world)
        await world.jobs.abandon(planned.table.uid, planned.job)
        assert not await lake.commit(planned)
        later = await lake.plan()
        assert later is not None and later.job > planned.job and await lake.commit(later)
        await lake.check()

    in_one_core(tell)


def test_what_an_abandoned_job_had_claimed_stays_its_tables_though_another_takes_the_streams_over() -> (
    None
):
    async def tell(world: World) -> None:
        lake = Lake(world)
        planned = await lake.plan()
        assert planned is not None
        await world.jobs.abandon(planned.table.uid, planned.job)
        await world.tables.create("longer", "test/t")
        assert await world.jobs.plan("longer") is None, "its records begin where that claim ended"
        later = await lake.plan()
        assert later is not None and await lake.commit(later)
        await lake.check()

    in_one_core(tell)


def test_a_merge_between_jobs_claims_nothing_and_loses_nothing() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        given_up = await lake.plan()
        assert given_up is not None
        await world.jobs.abandon(given_up.table.uid, given_up.job)
        merging = await lake.plan(merge=True)
        assert merging is not None and merging.job > given_up.job and merging.ranges == []
        assert await lake.commit(merging)
        await grow(world)
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        await lake.check()

    in_one_core(tell)


def test_an_open_merge_is_any_drivers_until_it_ends() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        merging, other = await lake.plan(merge=True), await lake.plan()
        assert merging is not None and other is not None
        assert (other.job, other.ranges) == (merging.job, []) and other.attempt != merging.attempt
        await world.jobs.abandon(other.table.uid, other.job)
        planned = await lake.plan()
        assert planned is not None and planned.ranges and not await lake.commit(merging)
        ordinary = await lake.plan(merge=True)
        assert ordinary is not None and ordinary.ranges == planned.ranges
        assert await lake.commit(ordinary)
        await lake.check()

    in_one_core(tell)


def test_two_planners_never_claim_for_one_job() -> None:
    """A planner abandons a job that another left halfway, and a third opens the next one first."""

    async def tell(world: World) -> None:
        lake = Lake(world)
        table, call = await world.tables.find("t"), world.service.call
        await call(META_GROUP, TableOpen(table.uid, world.clock.ms))

        async def beaten(group: int, command: Any) -> Any:
            reply = await call(group, command)
            if isinstance(command, TableAbandon):
                await call(META_GROUP, TableOpen(table.uid, world.clock.ms))
            return reply

        world.service.call = beaten
        with pytest.raises(TableRefused, match="another planner"):
            await lake.plan(merge=True)
        world.service.call = call
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        await lake.check()

    in_one_core(tell)


def test_a_merge_takes_over_what_an_abandoned_job_must_still_write() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        planned = await lake.plan()
        assert planned is not None
        await world.jobs.abandon(planned.table.uid, planned.job)
        await world.tables.create("longer", "test/t")
        later = await lake.plan(merge=True)
        assert later is not None and later.ranges and await lake.commit(later)
        await lake.check()

    in_one_core(tell)


def test_jobs_have_about_so_many_slices_at_most() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        others = [name_in(1 + number % 4, hint=f"other{number}-") for number in range(20)]
        for name in others:
            await world.create(name)
            await world.append(name, b"one")
        jobs: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_jobs, "JOB_SLICES_MAX", 4)
            while (planned := await lake.plan()) is not None:
                jobs.append(sum(len(part.slices) for part in planned.ranges))
                assert planned.more or sum(jobs) == 24
                assert await lake.commit(planned)
        assert sum(jobs) == 24 and max(jobs) <= 8, "of each group one stream at least"
        lake.rows = [
            row
            for row in lake.rows
            if row[0] in {(await world.service.info(name)).uid for name in STREAMS}
        ]  # type: ignore[union-attr]
        await lake.check()

    in_one_core(tell)


def test_a_groups_share_of_a_job_is_that_of_its_slices() -> None:
    lags = [
        Lag(group=1, slices=90_000, bytes=9_000_000),
        Lag(group=2, slices=10_000, bytes=100_000_000),
        Lag(group=3),
    ]
    found = table_jobs.shares(lags, 3)
    assert found[1] == (100 + table_jobs.SLICE_COST) * 45_000
    assert found[2] == (10_000 + table_jobs.SLICE_COST) * 5_000
    assert found[3] == 1
    whole = table_jobs.JOB_BYTES_MAX // 2
    assert table_jobs.shares([Lag(group=1, slices=50_000, bytes=1)], 2) == {1: whole, 2: whole}
    assert table_jobs.shares([Lag(slices=500_000, bytes=1)], 2) == {1: whole, 2: whole}, (
        "a release before does not say whose it is"
    )


def test_two_drivers_of_one_job_commit_it_once() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        first, second = await lake.plan(), await lake.plan()
        assert first is not None and second is not None and first.job == second.job
        assert [await lake.commit(second), await lake.commit(first)] == [True, False]
        await lake.check()

    in_one_core(tell)


@pytest.mark.parametrize("restart_after", ["plan", "commit"])
def test_restarts_between_the_steps_lose_and_repeat_nothing(restart_after: str) -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        for _ in range(3):
            planned = await lake.plan()
            assert planned is not None
            if restart_after == "plan":
                world.power_cut()
                again = await lake.plan()
                assert again is not None and (again.job, again.ranges) == (
                    planned.job,
                    planned.ranges,
                )
            assert await lake.commit(planned)
            if restart_after == "commit":
                await world.snapshot()
                world.power_cut()
            await grow(world)
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        await lake.check()

    in_one_core(tell)


@pytest.mark.parametrize("step", range(1, 9))
def test_a_planner_dies_before_any_of_its_commands(step: int) -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        left = step
        call = world.service.call

        async def dying(group: int, command: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                raise asyncio.CancelledError
            return await call(group, command)  # type: ignore[arg-type]

        world.service.call = dying  # type: ignore[assignment]
        planned = None
        try:
            planned = await TableJobs(world.service, world.service.flush).plan("t")
        except asyncio.CancelledError:
            pass
        world.service.call = call
        await grow(world)
        if planned is not None:
            assert await lake.commit(planned)
        final = await lake.plan()
        assert final is not None and await lake.commit(final)
        await lake.check()

    in_one_core(tell)


def test_planners_and_drivers_on_two_cores_at_once() -> None:
    async def drive(lake: Lake, rounds: int) -> None:
        for number in range(rounds):
            try:
                planned = await lake.plan(merge=number % 3 == 2)
            except TableRefused as refused:
                if refused.code != "JOB_PREEMPTED":
                    raise
                continue
            if planned is not None:
                await lake.commit(planned)
            await lake.world.append(STREAMS[0], b"more")

    async def run(directory: str) -> None:
        node = await Node(directory).start()
        await grow(node.worlds[0])
        await node.worlds[1].tables.create("t", "test/")
        assert [table.name for table in await node.worlds[0].tables.all()] == ["t"]
        lakes = [Lake(world) for world in node.worlds]
        lakes[1].rows = lakes[0].rows
        await asyncio.gather(*(drive(lake, 6) for lake in (*lakes, *lakes)))
        await grow(node.worlds[1], 1)
        for _ in range(2):
            planned = await lakes[1].plan()
            if planned is not None:
                assert await lakes[1].commit(planned)
        await lakes[0].check()
        assert all(world.hot_bytes == 0 for world in node.worlds), "planning flushed on every core"
        await node.stop()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))


def test_the_lag_is_counted_in_parts_between_which_streams_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_tables, "LAG_STREAMS", 4)

    async def run() -> None:
        world = World().start()
        await world.tables.create("t", "test/")
        names = [name_in(1, hint=f"lag{number}") for number in range(20)]
        for name in names:
            await world.create(name)
            await world.append(name, b"1")
        await world.service.flush("")
        machine = world.local.machines[1]
        parts = lag_of(machine, 1, "test/", [], 0)
        seen = next(parts).records
        assert seen == 3, "not all at once"
        for name in (names[0], names[-1]):
            await world.delete(name)
        await world.create(name_in(1, hint="new"))
        await world.append(names[1], b"2")
        *_, lag = parts
        assert (lag.streams, lag.records) == (19, 19), "without the last one, which is gone"
        total = await world.tables.lag((await world.tables.all())[0])
        assert (total.streams, total.records) == (19, 19)
        await world.stop()

    asyncio.run(run())


def test_a_plan_leaves_out_what_is_set_aside_and_nothing_else() -> None:
    slices = [ColdSlice(first, first, 10, 10, "p", 0, 10, 1) for first in (0, 10, 20)]
    whole = ClaimedRange(7, "test/a", "text/plain", 0, slices, 3)

    def left(*aside: tuple[int, int], uid: int = 7) -> list[tuple[int, int, int]]:
        failures = [
            Failure(uid, "test/a", begin, end, "p", 0, "damaged", 3, 1, 1, aside=True)
            for begin, end in aside
        ]
        return [
            (part.first, part.end, len(part.slices))
            for part in table_jobs.left_over([whole], failures)
        ]

    assert left() == left((10, 20), uid=8) == [(3, 0, 3)]
    assert left((10, 20)) == [(3, 10, 1), (20, 30, 1)]
    assert left((12, 15), (20, 30)) == [(3, 12, 2), (15, 20, 1)]
    assert left((0, 10), (15, 40)) == [(10, 15, 1)]
    assert left((0, 30)) == []


def test_declared_columns_have_types_that_there_are() -> None:
    async def tell(world: World) -> None:
        with pytest.raises(TableRefused, match="'id:integer' declares no column: expected long, "):
            await world.tables.create("other", "other/", columns=[("id", "integer")])
        for field in ("", "a..b", ".a", "a."):
            with pytest.raises(TableRefused, match=f"'{field}:long' declares no column"):
                await world.tables.create("other", "other/", columns=[(field, "long")])
        table, new = await world.tables.create("other", "other/", columns=[("id", "long")])
        assert new and table.columns == [("id", "long")]
        assert await world.tables.create("other", "other/", columns=[("id", "long")]) == (
            table,
            False,
        )
        with pytest.raises(TableRefused, match="with other options"):
            await world.tables.create("other", "other/")

    in_one_core(tell)


def test_a_drop_gives_every_record_to_the_next_table_and_leaves_no_file() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        for _ in range(2):  # the second job settles the claims of the first
            planned = await lake.plan()
            assert planned is not None and await lake.commit(planned)
            await world.append(STREAMS[0], b"more")
        uid = planned.table.uid
        await world.store.put(f"tables/{uid}/main/data/a.parquet", b"rows")
        world.clock.ms += 10 * IDLE_MS
        await world.evictor.evict_due()
        assert any(machine.directory.evicted for machine in world.local.machines.values())
        await world.tables.drop("t")
        with pytest.raises(TableRefused) as late:
            await world.jobs.commit(
                TableCommit(uid, 3, "a", "", "", "m", "m", 1, 0, world.clock.ms)
            )
        assert late.value.code == "TABLE_NOT_FOUND" and await world.tables.all() == []
        await world.kill().tables.finish_drops()
        again, new = await world.tables.create("t", "test/")
        assert new and again.uid != uid
        fresh = Lake(world)
        while (planned := await fresh.plan()) is not None:
            assert await fresh.commit(planned)
        await fresh.check()
        for _ in range(2):
            await world.collector.sweep(grace_ms=0)
        left = [info.key async for info in world.store.list(f"tables/{uid}/")]
        assert not left and uid not in world.local.here(0).meta.tables

    in_one_core(tell)


def test_partitions_are_checked_and_kept() -> None:
    async def tell(world: World) -> None:
        create = world.tables.create
        made, new = await create(
            "p", "p/", columns=[("at", "date")], partitions=["DAY( at )", "bucket(16,key)"]
        )
        assert new and made.partitions == ["day(at)", "bucket(16, key)"]
        again = {"columns": [("at", "date")], "partitions": ["day(at)", "bucket(16, key)"]}
        assert await create("p", "p/", **again) == (made, False)
        for wrong in (
            ["day(n)"],
            ["day(key)"],
            ["hour(at)"],
            ["value"],
            ["bucket(key)"],
            ["bucket(1, key)"],
            ["week(at)"],
            ["day(at"],
            [""],
            ["day(at)", "day(at)"],
            ["stream", "offset", "batch", "incarnation", "byte_offset"],
        ):
            with pytest.raises(TableRefused) as refused:
                await create("w", "w/", columns=[("at", "date")], partitions=wrong)
            assert refused.value.code == "TABLE_PARTITION"
        with pytest.raises(TableRefused) as other:
            await create("p", "p/", columns=[("at", "date")])
        assert other.value.code == "TABLE_EXISTS"

    in_one_core(tell)


def test_a_table_has_a_payload_that_can_change() -> None:
    async def tell(world: World) -> None:
        create, alter = world.tables.create, world.tables.alter
        made, new = await create("p", "p/", columns=[("a", "long")], payload="registry:http://r:1/")
        assert new and made.columns == [("", "registry:http://r:1"), ("a", "long")]
        options = {"columns": [("a", "long")], "payload": "registry:http://r:1"}
        assert await create("p", "p/", **options) == (made, False)
        changed = await alter("p", columns=[("b", "date")])
        assert changed.columns == [("", "registry:http://r:1"), ("a", "long"), ("b", "date")]
        changed = await alter("p", payload='avro:"string"')
        assert changed.columns[0] == ("", 'avro:"string"')
        assert (await alter("p", payload="")).columns == [("a", "long"), ("b", "date")]
        for wrong in (
            "json",
            "registry:ftp://r",
            "registry:http://user:word@r",
            "registry:http://r?x=1",
            "avro:",
            "protobuf:message M {}",
            "avro:" + "x" * (64 << 10),
        ):
            with pytest.raises(TableRefused) as refused:
                await create("w", "w/", payload=wrong)
            assert refused.value.code == "TABLE_PAYLOAD"
        with pytest.raises(TableRefused) as field:
            await create("w", "w/", columns=[("", "registry")])
        assert field.value.code == "TABLE_COLUMN"
        await create("d", "test/", transform="sql:select * from input")
        with pytest.raises(TableRefused, match="its transform decides"):
            await alter("d", payload="registry")

    in_one_core(tell)


def test_a_derived_table_claims_nothing_and_tells_why_its_job_failed() -> None:
    """Check a derived table: it claims nothing and reports its job's failure. It shares a prefix
    with another table; neither takes the other's records."""

    async def tell(world: World) -> None:
        sql = "sql:select * from input"
        derived, new = await world.tables.create("d", "test/", transform=sql, partitions=["x"])
        assert new and await world.tables.overlaps(derived) == ([], [])
        await world.tables.create("longer", f"{STREAMS[0]}")
        lake = Lake(world)
        planned = await world.jobs.plan("d")
        assert planned is not None and planned.ranges == []
        assert planned.streams == sorted(STREAMS), "also those that another table takes"
        failed = await world.jobs.abandon(derived.uid, planned.job, "no such column")
        assert failed.fault == "no such column" and failed.fault_ms == world.clock.ms
        planned = await world.jobs.plan("d")
        assert planned is not None and await lake.commit(planned)
        assert (await world.tables.find("d")).fault == ""
        ordinary = await world.jobs.plan("t")
        assert ordinary is not None and len({part.uid for part in ordinary.ranges}) == 3
        for change in ({"hold": True}, {"columns": [("a", "long")]}):
            with pytest.raises(TableRefused, match="its transform decides"):
                await world.tables.alter("d", **change)
        for wrong in (
            {"transform": "select 1"},
            {"transform": "python:os"},
            {"transform": "python:a b:c"},
            {"transform": "sql: "},
            {"transform": sql, "hold": True},
            {"transform": sql, "columns": [("a", "long")]},
        ):
            with pytest.raises(TableRefused) as refused:
                await world.tables.create("w", "w/", **wrong)
            assert refused.value.code == "TABLE_TRANSFORM"

    in_one_core(tell)


def test_a_job_moves_the_table_once_and_the_next_ones_go_on_there() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        rebuild, rival = await lake.plan(merge=True), await lake.plan(merge=True)
        assert rebuild is not None and rival is not None and rebuild.ranges == []
        await world.tables.alter("t", columns=[("late", "date")])
        table, now_ms = rebuild.table, world.clock.ms
        parts = (table.uid, rebuild.job, rebuild.attempt, table.main, table.dlq, "m", "d")
        move = TableMove(*parts, 4, "r", [("id", "long")], ["day(id)"], now_ms)
        with pytest.raises(TableRefused, match="expected one of type"):
            await world.jobs.commit(move)
        move = msgspec.structs.replace(move, partitions=["stream"])
        for _ in range(2):  # a repeat succeeds
            moved = await world.jobs.commit(move)
            assert (moved.folder, moved.main) == (f"tables/{table.uid}/{rebuild.job:012d}", "m")
            assert moved.columns == [("late", "date"), ("id", "long")]
            assert (moved.rows, moved.dlq_rows, moved.partitions) == (1, 4, ["stream"])
        assert not await lake.commit(rival), "its base has changed"
        await grow(world)
        planned = await lake.plan()
        assert planned is not None and planned.table.folder == moved.folder
        assert await lake.commit(planned)
        await lake.check()

    in_one_core(tell)


def test_a_job_may_leave_fewer_rows() -> None:
    async def tell(world: World) -> None:
        lake = Lake(world)
        planned = await lake.plan()
        assert planned is not None and await lake.commit(planned)
        again = await lake.plan(merge=True)
        assert again is not None
        table = again.table
        parts = (table.uid, again.job, again.attempt, table.main, table.dlq, "m", "d")
        for rows in (-1, -1):  # a repeat succeeds and counts once
            command = TableReplace(*parts, rows, 0, world.clock.ms, "r")
            replaced = await world.jobs.commit(command)
            assert (replaced.rows, replaced.main, replaced.committed) == (0, "m", again.job)

    in_one_core(tell)


def test_a_table_is_derived_from_another_one() -> None:
    async def tell(world: World) -> None:
        tables, sql = world.tables, "sql:select * from input"
        prefix, transform = await tables.over("d", "t", sql)
        made, new = await tables.create("d", prefix, transform=transform)
        source = await tables.source_of(made)
        assert new and source is not None and source.name == "t"
        assert made.prefixes == source.prefixes, "who may read its streams may read it"
        planned = await world.jobs.plan("d")
        assert planned is not None and planned.source is not None
        assert (planned.source.uid, planned.ranges, planned.streams) == (source.uid, [], [])
        assert [each.name for each in await tables.derived_from(source)] == ["d"]
        with pytest.raises(TableRefused, match="d is derived from 't'") as refused:
            await tables.drop("t")
        assert (refused.value.status, refused.value.code) == (409, "TABLE_HAS_DERIVED")
        await tables.alter("t", new_name="u")
        renamed = await tables.source_of(made)
        assert renamed is not None and renamed.name == "u"
        await tables.drop("d")
        await tables.drop("u")
        assert await tables.all() == []

    in_one_core(tell)


def test_a_table_over_a_table_that_was_dropped_meanwhile_is_not_created() -> None:
    async def tell(world: World) -> None:
        tables = world.tables
        prefix, transform = await tables.over("d", "t", "sql:select * from input")
        await tables.drop("t")
        with pytest.raises(TableRefused, match="that 'd' reads was dropped meanwhile") as refused:
            await tables.create("d", prefix, transform=transform)
        assert (refused.value.status, refused.value.code) == (404, "TABLE_NOT_FOUND")
        assert await tables.all() == []

    in_one_core(tell)


def test_a_table_from_which_others_are_derived_is_not_dropped() -> None:
    async def tell(world: World) -> None:
        tables = world.tables
        source = await tables.find("t")
        for name in ("e", "d"):
            prefix, transform = await tables.over(name, "t", "sql:select * from input")
            await tables.create(name, prefix, transform=transform)
        reply = await world.service.call(META_GROUP, TableDrop(source.uid, world.clock.ms))
        assert (reply.code, reply.detail) == (Code.REFUSED, ["d", "e"])
        with pytest.raises(TableRefused, match="d, e are derived from 't': drop those first"):
            await tables.drop("t")
        assert (await tables.find("t")).dropped_ms == 0

    in_one_core(tell)


@pytest.mark.parametrize("drop_first", [False, True])
def test_of_a_drop_and_a_creation_over_the_table_at_once_one_succeeds(drop_first: bool) -> None:
    async def create(tables: Tables) -> None:
        prefix, transform = await tables.over("d", "t", "sql:select * from input")
        await tables.create("d", prefix, transform=transform)

    async def tell(world: World) -> None:
        tables = world.tables
        calls = [tables.drop("t"), create(tables)]
        ended = await asyncio.gather(
            *(calls if drop_first else reversed(calls)), return_exceptions=True
        )
        refused = [each for each in ended if isinstance(each, BaseException)]
        assert [type(each) for each in refused] == [TableRefused], ended
        assert [each.name for each in await tables.all()] in ([], ["d", "t"])

    in_one_core(tell)


def test_an_altered_table_keeps_its_rows_and_its_declared_types() -> None:
    async def tell(world: World) -> None:
        await world.tables.create("other", "other/")
        await world.tables.create("held", "held/", columns=[("id", "long")])
        altered = await world.tables.alter(
            "held", new_name="kept", hold=True, columns=[("at", "timestamptz")]
        )
        assert (altered.name, altered.hold) == ("kept", True)
        assert altered.columns == [("id", "long"), ("at", "timestamptz")]
        assert await world.tables.find("kept") == altered
        watches = [
            machine.claims.watches[altered.uid]
            for machine in world.local.machines.values()
            if machine.group
        ]
        assert watches and all(watch.hold for watch in watches)
        for wrong, code in (
            ({"new_name": "other"}, "TABLE_EXISTS"),
            ({"columns": [("id", "string")]}, "TABLE_COLUMN"),
            ({"new_name": "9"}, "TABLE_NAME"),
        ):
            with pytest.raises(TableRefused) as refused:
                await world.tables.alter("kept", **wrong)
            assert refused.value.code == code

    in_one_core(tell)
