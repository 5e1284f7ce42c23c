"""Tables side by side in one driver, and divided by leases among several."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from polling import wait_until
from worlds.lakehouse import Many, quiet

from polynya.base.errors import ConfigError
from polynya.lakehouse.jobs.lazy_runner import LazyRunner
from polynya.lakehouse.jobs.plan import Job, JobPlan, store_settings
from polynya.lakehouse.jobs.table_pool import TablePool
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.jobs.worker import Syncing, TablesFailed, compact, run_worker
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.server.leases import Leased, LeaseKeeper

WAIT_SECONDS = 120.0


class Meeting:
    """A runner whose jobs wait until `count` of them run at once; `most` is how many did."""

    cores = 1

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=WAIT_SECONDS)
        self.running = self.most = 0
        self.lock = threading.Lock()

    def run(self, job: Job, key: str) -> list[TaskResult]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.barrier.wait()
        with self.lock:
            self.running -= 1
        blobs = open_blobs(store_settings(job.plan.store))
        return [run_task(job, task, blobs) for task in job.tasks]


def test_tables_are_synced_side_by_side_up_to_a_bound(tmp_path: Path) -> None:
    many, runner = Many(tmp_path, 6), Meeting(3)
    outcomes = compact(many, [], lambda: runner, quiet, at_once=3)  # type: ignore[arg-type, return-value]
    assert [outcome.table.name for outcome in outcomes] == [f"t{number}" for number in range(6)]
    assert runner.most == 3
    many.check()


def test_a_table_that_hangs_and_one_that_fails_delay_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, others = Many(tmp_path, 4), threading.Event()
    done: list[str] = []

    class Runner(Meeting):
        def run(self, job: Job, key: str) -> list[TaskResult]:
            name = job.plan.table.name
            if name == "t0":
                assert others.wait(WAIT_SECONDS), "the others are to end before"
            if name == "t1":
                raise RuntimeError("Py4J")
            return super().run(job, key)

        def works(self) -> bool:
            return True

        def close(self) -> None:
            assert others.is_set(), "a fault of one table closes no session that works"

    def progress(step: str, said: str) -> None:
        if step == "delta-dlq":
            done.append(said)
        if len(done) == 2:
            others.set()

    with pytest.raises(TablesFailed, match="table 't1': RuntimeError: Py4J") as failed:
        compact(many, [], lambda: Runner(1), progress, at_once=2)  # type: ignore[arg-type, return-value]
    assert [outcome.table.name for outcome in failed.value.outcomes] == ["t0", "t2", "t3"]
    assert list(failed.value.faults) == ["t1"]


def test_what_stops_every_table_begins_no_other(tmp_path: Path) -> None:
    many, begun = Many(tmp_path, 5), []

    def plan(name: str, *, merge: bool = False) -> JobPlan | None:
        begun.append(name)
        raise ConfigError("the store is on another machine")

    for lake in many.lakes.values():
        lake.coordinator.plan = plan  # type: ignore[method-assign]
    with pytest.raises(ConfigError):
        compact(many, [], lambda: Meeting(1), quiet, at_once=2)  # type: ignore[arg-type, return-value]
    assert len(begun) <= 3


def test_sigterm_lets_all_pairs_of_commits_end(tmp_path: Path) -> None:
    """Both tables are in Iceberg and not yet in Delta when it arrives."""
    many, steps = Many(tmp_path, 2), list[str]()
    pointers = threading.Barrier(2, timeout=WAIT_SECONDS)
    asked = threading.Event()

    def progress(step: str, said: str) -> None:
        steps.append(f"{step} {said}")
        if step == "pointer" and pointers.wait() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            asked.set()
        if step == "pointer":
            assert asked.wait(WAIT_SECONDS)

    before = signal.getsignal(signal.SIGTERM)
    run_worker(many, [], lambda: Meeting(2), progress, interval_seconds=60.0)  # type: ignore[arg-type, return-value]
    assert steps[-1].startswith("stopped stop requested"), steps[-1]
    assert len([step for step in steps if step.startswith("delta-dlq")]) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    many.check()


def test_after_sigterm_no_other_table_begins_its_pair_of_commits(tmp_path: Path) -> None:
    many, steps = Many(tmp_path, 2), list[str]()
    first, stopped, ended = (threading.Event() for _ in range(3))

    def progress(step: str, said: str) -> None:
        steps.append(step)
        if step == "pointer":
            os.kill(os.getpid(), signal.SIGTERM)
        if step == "staged-dlq" and not first.is_set():
            first.set()  # its pair is delayed until the driver has stopped
            assert stopped.wait(WAIT_SECONDS)
            ended.set()

    run_worker(many, [], lambda: Meeting(2), progress, interval_seconds=60.0)  # type: ignore[arg-type, return-value]
    assert steps[-1] == "stopped"
    stopped.set()
    assert ended.wait(WAIT_SECONDS)
    wait_until(lambda: not working(), what="the thread to end")
    tables = [lake.coordinator.table for lake in many.lakes.values()]
    assert sorted(table.job for table in tables) == [0, 1]
    compact(many, [], lambda: Meeting(1), quiet)  # type: ignore[arg-type, return-value]
    many.check()


def working() -> list[threading.Thread]:
    """The threads that still sync a table."""
    return [thread for thread in threading.enumerate() if thread.name == "table"]


def test_a_closed_runner_starts_no_session_and_its_jobs_have_no_fault() -> None:
    from polynya.lakehouse.jobs.stopping import Stopped

    started = []
    runner = LazyRunner(lambda: started.append(1))  # type: ignore[arg-type, func-returns-value]
    runner.close()
    with pytest.raises(Stopped):
        _ = runner.cores
    assert not started


def test_a_pool_works_on_many_rounds_with_the_same_threads() -> None:
    pool, seen = TablePool(2), list[tuple[str, int]]()
    both = threading.Barrier(2, timeout=WAIT_SECONDS)

    def work(name: str) -> None:
        seen.append((name, threading.get_ident()))
        both.wait()

    for _ in range(5):
        pool.run(work, ["a", "b", "c", "d"])
    assert len({ident for _, ident in seen}) == 2 and len(seen) == 20
    pool.run(lambda name: seen.append((name, threading.get_ident())), ["alone"])
    assert seen[-1] == ("alone", threading.main_thread().ident)
    pool.close()


# --- leases ---------------------------------------------------------------------------------------


class Server:
    """The leases of the tables, as a server keeps them, without their time."""

    def __init__(self, many: Many) -> None:
        self.many = many
        self.holders: dict[str, str] = {}
        self.rests: dict[str, float] = {}
        self.lock = threading.Lock()


class Worker:
    """The coordinator and the leases of one worker."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        self.planned: list[str] = []

    def plan(self, name: str, *, merge: bool = False) -> JobPlan | None:
        server = self.server
        with server.lock:
            if server.holders.get(name, self.name) != self.name or name in server.rests:
                raise Leased(f"another worker syncs '{name}'")
            plan = server.many.lakes[name].coordinator.plan(name, merge=merge)
            if plan is not None:
                server.holders[name] = self.name
                self.planned.append(name)
            return plan

    def extend_leases(self) -> None: ...

    def release_lease(self, name: str, rest_seconds: float) -> None:
        with self.server.lock:
            if self.server.holders.get(name) == self.name:
                del self.server.holders[name]
                self.server.rests[name] = rest_seconds

    def release_leases(self) -> None:
        for name in self.planned:
            self.release_lease(name, 0.0)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.server.many, verb)


def test_two_workers_of_one_core_sync_eight_tables_in_half_the_time(tmp_path: Path) -> None:
    """Each job of a worker runs beside one of the other: four times two jobs, and none twice."""
    many, runner = Many(tmp_path, 8), Meeting(2)
    server = Server(many)
    workers = [Worker(server, name) for name in ("one", "two")]
    drivers = [
        Syncing(worker, lambda: runner, quiet, at_once=1, leases=worker, interval_seconds=60.0)  # type: ignore[arg-type, return-value]
        for worker in workers
    ]
    threads = [threading.Thread(target=driver.sync, args=([],)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert sorted(workers[0].planned + workers[1].planned) == [f"t{number}" for number in range(8)]
    assert len(workers[0].planned) == len(workers[1].planned) == 4
    assert server.holders == {} and all(30 < rest <= 54 for rest in server.rests.values())
    many.check()


def test_a_worker_that_stops_gives_its_leases_back_and_one_that_works_extends_them(
    tmp_path: Path,
) -> None:
    many = Many(tmp_path, 1)
    server, extended = Server(many), threading.Event()
    worker = Worker(server, "one")
    worker.extend_leases = extended.set  # type: ignore[method-assign]

    def progress(step: str, said: str) -> None:
        if step == "schema":
            os.kill(os.getpid(), signal.SIGTERM)

    run_worker(worker, [], lambda: Meeting(1), progress, interval_seconds=60.0, leases=worker)  # type: ignore[arg-type, return-value]
    assert server.holders == {} and server.rests == {"t0": 0.0}
    with LeaseKeeper(worker, 0.001):
        assert extended.wait(WAIT_SECONDS)
