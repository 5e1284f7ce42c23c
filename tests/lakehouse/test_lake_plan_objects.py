"""The plan objects: their golden bytes, what a task reads of them, and plans of earlier releases."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from worlds.lakehouse import Lake, quiet

from polynya.base.errors import CorruptData
from polynya.lakehouse.jobs.commit import run_job
from polynya.lakehouse.jobs.plan import Job, JobPlan, Range, TableRef, layout
from polynya.lakehouse.jobs.plan_objects import (
    header_of,
    load_header,
    load_task,
    plan_key,
    store_plan,
    task_key,
)
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.reading.blobs import LocalBlobs
from polynya.lakehouse.schema.columns import Column
from polynya.wire.tables import StoreRef

PARTS = [Range(name, uid, 1, "", 1, 0, 0, 2, 9, "p", 0, 9, 7) for uid, name in enumerate("ab", 1)]
PLAN = JobPlan(TableRef("1", "t", "", "tables/1"), 3, "ab", StoreRef("local", "/x"), PARTS)
JOB = Job(PLAN, [Column("n", "long", "n", [])], [{}], layout(PARTS, {}, 1), b"m", b"d", True)
HEADER = (
    b'{"plan":{"table":{"uid":"1","name":"t","prefix":"","location":"tables/1","job":0,'
    b'"iceberg":"","iceberg_dlq":"","result":"","store":null,"columns":[],"merge_files":0,'
    b'"merge_bytes":0,"partitions":[],"transform":"","keep_snapshots":20,"keep_ms":0,"tags":{}},"job":3,"attempt":"ab","store":{"kind":'
    b'"local","root":"/x","bucket":"","region":"","endpoint":"","shared":false},"ranges":[],'
    b'"version":1,"more":null,"streams":[],"source":null},"columns":[{"field":"n","type":"long","name":"n",'
    b'"children":[]}],"shapes":[{}],"tasks":[],"arrow_schema":"bQ==","arrow_schema_dlq":"ZA==",'
    b'"discover":true,"full":false,"round":0,"cuts":[],"folder":"","strict":[],"version":2}'
)
TASK = (
    b'{"id":0,"ranges":[{"stream":"a","uid":1,"group":1,"content_type":"","encoding":1,"record":0,'
    b'"byte":0,"records":2,"length":9,"pack":"p","offset":0,"stored":9,"crc":7,"skip":0,"take":-1,'
    b'"first_batch":0,"batches":0,"numbers":0,"aborted":[]},{"stream":"b","uid":2,"group":1,"content_type":"",'
    b'"encoding":1,"record":0,"byte":0,"records":2,"length":9,"pack":"p","offset":0,"stored":9,'
    b'"crc":7,"skip":0,"take":-1,"first_batch":0,"batches":0,"numbers":0,"aborted":[]}],"shapes":[0,0],'
    b'"merge":null,"redo":[]}'
)


def test_the_bytes_of_a_header_and_a_task(tmp_path: Path) -> None:
    blobs, key = LocalBlobs(str(tmp_path)), plan_key(PLAN, 1)
    assert key == "tables/1/jobs/000000000003/ab.1.plan.json"
    assert task_key(key, 12) == "tables/1/jobs/000000000003/ab.1.00012.task.json"
    store_plan(blobs, JOB, key)
    assert blobs.get(key) == HEADER
    assert blobs.get(task_key(key, 0)) == TASK
    header = load_header(blobs, key)
    assert header == header_of(JOB)
    assert load_task(blobs, key, header, 0) == JOB.tasks[0]


def test_a_plan_of_the_release_before_holds_its_tasks(tmp_path: Path) -> None:
    blobs, key = LocalBlobs(str(tmp_path)), plan_key(PLAN, 0)
    before = msgspec.json.decode(msgspec.json.encode(JOB))
    del before["version"]
    blobs.put(key, msgspec.json.encode(before))
    header = load_header(blobs, key)
    assert load_task(blobs, key, header, 0) == JOB.tasks[0]


def test_a_plan_of_a_later_release_is_refused(tmp_path: Path) -> None:
    blobs, key = LocalBlobs(str(tmp_path)), plan_key(PLAN, 0)
    later = msgspec.structs.replace(header_of(JOB), version=3)
    blobs.put(key, msgspec.json.encode(later))
    with pytest.raises(CorruptData, match="version 3"):
        load_header(blobs, key)


def test_a_task_reads_the_header_and_its_own_object_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.plan.TASK_BYTES_MIN", 1)
    lake = Lake(str(tmp_path / "store"))
    for number in range(100):
        lake.source.append(f"s{number:03}", [b'{"n":%d}' % number])
    read: list[list[str]] = []

    class Noted(LocalBlobs):
        def get(self, key: str) -> bytes:
            read[-1].append(key)
            return super().get(key)

    class Runner:
        cores = 4

        def run(self, job: Job, key: str) -> list[TaskResult]:
            results = []
            for number in range(len(job.tasks)):
                read.append([])
                blobs = Noted(lake.settings.root)
                header = load_header(blobs, key)
                results.append(run_task(header, load_task(blobs, key, header, number), blobs))
            return results

    plan = lake.coordinator.plan("flights")
    assert plan is not None
    outcome = run_job(plan, lake.coordinator, Runner(), lake.blobs, quiet)  # type: ignore[arg-type]
    assert outcome is not None and outcome.rows == 100
    lake.check_exactly_once()
    assert len(read) == 8
    key = plan_key(plan, 0)
    assert read == [[key, task_key(key, number)] for number in range(8)]
    stored = sum(len(lake.blobs.get(each[1])) for each in read)
    assert stored < 1.2 * len(msgspec.json.encode(plan.ranges)), "each range stands there once"
    assert len(lake.blobs.get(key)) < 8000
