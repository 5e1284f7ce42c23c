"""Layout of tasks, checks of plans, and sampling."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds.lakehouse import Lake

from polynya.base.errors import CorruptData
from polynya.lakehouse.jobs import prepare
from polynya.lakehouse.jobs.plan import TASK_BYTES_MAX, JobPlan, Range, TableRef, check_plan, layout
from polynya.lakehouse.jobs.worker import compact
from polynya.wire.tables import StoreRef


def part(stream: str = "s", record: int = 0, length: int = 1 << 20, **others: int) -> Range:
    return msgspec.structs.replace(
        Range(stream, hash(stream) % 1000, 1, "", 1, record, 0, 10, length, "p", 0, length, 0),
        **others,
    )


def plan(*ranges: Range, job: int = 2, version: int = 1) -> JobPlan:
    return JobPlan(
        TableRef("1", "t", "", "tables/1", 1),
        job,
        "a",
        StoreRef("local", "/x"),
        list(ranges),
        version,
    )


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 32 << 20)), max_size=80),
    st.integers(1, 8),
)
def test_tasks_hold_all_ranges_once_in_order(sizes: list[tuple[str, int]], cores: int) -> None:
    ranges = [
        part(stream, record=10 * number, length=length)
        for number, (stream, length) in enumerate(sizes)
    ]
    tasks = layout(ranges[::-1], {}, cores)
    flat = [found for task in tasks for found in task.ranges]
    assert flat == sorted(ranges, key=lambda found: (found.stream, found.uid, found.record))
    assert [task.id for task in tasks] == list(range(len(tasks)))
    assert all(task.ranges and len(task.shapes) == len(task.ranges) for task in tasks)
    assert all(
        sum(found.length for found in task.ranges) <= TASK_BYTES_MAX + (32 << 20) for task in tasks
    )


def test_large_jobs_are_cut_into_equal_shares_for_the_cores() -> None:
    tasks = layout([part(record=10 * number, length=4 << 20) for number in range(250)], {}, 2)
    sizes = [sum(found.length for found in task.ranges) for task in tasks]
    assert len(tasks) % 2 == 0
    assert max(sizes) <= TASK_BYTES_MAX
    assert max(sizes) - min(sizes) <= 4 << 20


def test_one_stream_of_two_gigabytes_is_split_by_bytes() -> None:
    tasks = layout([part(record=10 * number, length=4 << 20) for number in range(512)], {}, 2)
    sizes = [sum(found.length for found in task.ranges) for task in tasks]
    assert len(tasks) == 12
    assert max(sizes) <= TASK_BYTES_MAX and max(sizes) - min(sizes) <= 4 << 20
    starts = [task.ranges[0].record for task in tasks]
    assert starts == sorted(starts), "the records of a task follow those of the task before"


def test_a_thousand_streams_of_one_record_are_one_small_job() -> None:
    ranges = [part(f"s{number:04}", length=100, uid=number) for number in range(1000)]
    [task] = layout(ranges, {}, 2)
    assert [found.uid for found in task.ranges] == list(range(1000))


def test_small_jobs_are_one_task() -> None:
    assert len(layout([part(stream) for stream in "abcdef"], {}, 16)) == 1


@pytest.mark.parametrize(
    "bad",
    [
        plan(version=2), plan(job=1), plan(part(skip=10)), plan(part(skip=5, take=6)), plan(part(take=0)), plan(part(uid=1 << 63)),
        plan(part(encoding=3)), plan(part(skip=-1)),
    ],
)  # fmt: skip
def test_plans_that_no_driver_can_run(bad: JobPlan) -> None:
    with pytest.raises(CorruptData):
        check_plan(bad)


def test_a_claim_may_begin_and_end_inside_of_a_slice(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("s", [b'{"n":0}', b'{"n":1}'], [b'{"n":2}'], [b'{"n":3}', b'{"n":4}'])
    lake.source.pending[0] = msgspec.structs.replace(lake.source.pending[0], skip=1, take=3)
    lake.source.records = lake.source.records[1:4]
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    lake.check_exactly_once()
    table = lake.iceberg()
    assert table["n"].to_pylist() == [1, 2, 3]
    assert table["offset"].to_pylist() == [1, 2, 3]
    assert table["batch"].to_pylist() == [0, 2, 3]
    assert table["byte_offset"].to_pylist() == [8, 16, 24]


def test_streams_that_are_not_json_have_rows_without_typed_values(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("text", [b"hello"], [b""], [b"\xff\x00"], encoding=0)
    lake.source.append("json", [b'{"n":1}'])
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    lake.check_exactly_once()
    assert lake.iceberg().sort_by([("stream", "ascending"), ("offset", "ascending")])[
        "n"
    ].to_pylist() == [1, None, None, None]
    assert lake.iceberg("dlq").num_rows == 0
    times = lake.iceberg()["append_time"].to_pylist()
    assert len({moment.microsecond for moment in times}) > 1


def test_samples_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [part(f"s{number:04}", record=0, length=4 << 20, uid=number) for number in range(1000)]
    chosen = prepare._sampled(plan(*ranges))
    assert len(chosen) <= prepare.SAMPLE_STREAMS_MAX
    assert (
        sum(found.stored for found_ranges in chosen.values() for found in found_ranges)
        <= (4 << 30) // prepare.SAMPLE_SHARE
    )
    assert 0 in chosen
    assert 999 in chosen
    assert prepare._sampled(plan(*ranges[::-1])) == chosen
