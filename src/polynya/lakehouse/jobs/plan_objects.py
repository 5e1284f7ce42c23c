"""The plan objects of a job: a header that all tasks read, and one object for each task.

Their format is in docs/formats/tables.md. Only the tasks of the driver that stored a plan read it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec

from polynya.base.limits import TASK_OBJECTS_AT_ONCE
from polynya.lakehouse.jobs.plan import HEADER_VERSION, Job, JobPlan, Task
from polynya.lakehouse.jobs.results import Progress, Runner, check_version, folder
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import Blobs

_VERSIONS = (1, HEADER_VERSION)
_END = ".plan.json"


def plan_key(plan: JobPlan, number: int) -> str:
    """Return the key of the header of a round of the job."""
    return f"{folder(plan)}/{plan.attempt}.{number}{_END}"


def task_key(key: str, number: int) -> str:
    """Return the key of a task's object, from that of its header."""
    return f"{key.removesuffix(_END)}.{number:05d}.task.json"


def run_plan(blobs: Blobs, job: Job, runner: Runner, progress: Progress) -> list[TaskResult]:
    """Store the plan of a round of the job, and run its tasks. Return one result for each, in
    order."""
    key = plan_key(job.plan, job.round)
    store_plan(blobs, job, key)
    progress("plan-object", key)
    return runner.run(job, key)


def store_plan(blobs: Blobs, job: Job, key: str) -> None:
    """Store a job's header at `key`, and its tasks before it."""
    objects = [(task_key(key, task.id), msgspec.json.encode(task)) for task in job.tasks]
    if len(objects) == 1:
        blobs.put(*objects[0])
    elif objects:
        with ThreadPoolExecutor(TASK_OBJECTS_AT_ONCE) as writers:
            for done in [writers.submit(blobs.put, *each) for each in objects]:
                done.result()
    blobs.put(key, msgspec.json.encode(header_of(job)))


def header_of(job: Job) -> Job:
    """Return the job as its header has it: without ranges, and without tasks."""
    plan = msgspec.structs.replace(job.plan, ranges=[], streams=[], source=None)
    return msgspec.structs.replace(job, plan=plan, tasks=[], version=HEADER_VERSION)


def load_header(blobs: Blobs, key: str) -> Job:
    """Return the header at `key`. Raises CorruptData for a version of another release."""
    job = msgspec.json.decode(blobs.get(key), type=Job)
    check_version(
        key, job.version, _VERSIONS, "task", "install the driver's release on all workers"
    )
    return job


def load_task(blobs: Blobs, key: str, header: Job, number: int) -> Task:
    """Return a task of the plan at `key`. A header of version 1 holds its tasks."""
    if header.version == 1:
        return header.tasks[number]
    return msgspec.json.decode(blobs.get(task_key(key, number)), type=Task)
