"""`polynya table sync` and `polynya lake run`: run jobs for tables, once or continuously."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from polynya.base.errors import PolynyaError
from polynya.lakehouse.blobs import open_blobs
from polynya.lakehouse.commit import JobOutcome, Progress, RangesGone, Runner, repair, run_job
from polynya.lakehouse.coordinator import Coordinator, NoSuchTable
from polynya.lakehouse.plan import Job, store_settings
from polynya.lakehouse.stopping import Stopped, stop_on_signals
from polynya.lakehouse.task import TaskResult

JOBS_MAX = 1000  # per table and call, because streams may grow faster than they are compacted
LAST_JOB_BYTES = 32 << 20  # for servers that omit `more`: a smaller job was not cut by the plan limit, so it was the last
NEW_PLANS_MAX = 3  # for one table whose plans name missing objects
BACKOFF_SECONDS_MAX = 60.0

RunnerFactory = Callable[[], Runner]


class LazyRunner:
    """Start a runner only when the first job needs one, because a Spark session takes seconds to start."""

    def __init__(self, factory: RunnerFactory) -> None:
        self._factory = factory
        self._runner: Runner | None = None

    @property
    def cores(self) -> int:
        return self._started().cores

    def run(self, job: Job, key: str) -> list[TaskResult]:
        return self._started().run(job, key)

    def close(self) -> None:
        close = getattr(self._runner, "close", None)
        self._runner = None
        if close is not None:
            close()

    def _started(self) -> Runner:
        self._runner = self._runner or self._factory()
        return self._runner


def compact(
    coordinator: Coordinator,
    tables: Sequence[str],
    factory: RunnerFactory,
    progress: Progress,
    *,
    runner: LazyRunner | None = None,
    repaired: dict[str, str] | None = None,
) -> list[JobOutcome]:
    """Bring tables (default: all) up to the acknowledged data. Raises NoSuchTable and the errors of a job.

    `repaired` keeps, across calls, the last result up to which each table's Delta logs were found complete.
    """
    own = runner or LazyRunner(factory)
    memory = {} if repaired is None else repaired
    try:
        known = {table.name: table for table in coordinator.tables()}
        for name in tables:
            if name not in known:
                raise NoSuchTable(f"there is no table '{name}'. The tables are: {', '.join(sorted(known)) or 'none'}")
        outcomes: list[JobOutcome] = []
        for name in tables or sorted(known):
            done = _compact_table(coordinator, name, own, progress)
            store = known[name].store
            if not done and store is not None and memory.get(known[name].uid) != known[name].result:
                repair(open_blobs(store_settings(store)), known[name])
                memory[known[name].uid] = known[name].result
            outcomes += done
        return outcomes
    finally:
        if runner is None:
            own.close()


def run_worker(
    coordinator: Coordinator,
    tables: Sequence[str],
    factory: RunnerFactory,
    progress: Progress,
    *,
    interval_seconds: float,
    stop: threading.Event | None = None,
) -> None:
    """Keep tables up to date until `stop` is set or SIGTERM or SIGINT arrives. Errors are reported and retried with backoff."""
    stop = stop or threading.Event()
    runner = LazyRunner(factory)
    repaired: dict[str, str] = {}
    faults = 0
    try:
        with stop_on_signals():
            while not stop.is_set():
                try:
                    compact(coordinator, tables, factory, progress, runner=runner, repaired=repaired)
                    faults = 0
                except (PolynyaError, OSError) as fault:
                    faults += 1
                    progress("failed", f"{fault}; retrying in {_wait(interval_seconds, faults):.0f} s")
                except Exception as fault:  # a Spark error: its session may be broken
                    faults += 1
                    runner.close()
                    progress("failed", f"{type(fault).__name__}: {fault}; restarting Spark in {_wait(interval_seconds, faults):.0f} s")
                stop.wait(_wait(interval_seconds, faults))
    except Stopped as stopped:
        progress("stopped", str(stopped) or "stop requested; the next run repeats unfinished work")
    finally:
        runner.close()


def _compact_table(coordinator: Coordinator, name: str, runner: LazyRunner, progress: Progress) -> list[JobOutcome]:
    outcomes: list[JobOutcome] = []
    gone = 0
    for _ in range(JOBS_MAX):
        plan = coordinator.plan(name)
        if plan is None:
            break
        blobs = open_blobs(store_settings(plan.store))
        try:
            outcomes.append(run_job(plan, coordinator, runner, blobs, progress))
        except RangesGone as missing:
            gone += 1
            if gone >= NEW_PLANS_MAX:
                raise RangesGone(f"{missing}, and new plans of the server name it again: its object store has lost it") from None
            progress("abandoned", f"{missing}: requesting a new plan")
            coordinator.abandon(name, plan.table.uid, plan.job, str(missing))
            continue
        more = outcomes[-1].bytes >= LAST_JOB_BYTES if plan.more is None else plan.more
        if not more:
            break
    return outcomes


def _wait(interval_seconds: float, faults: int) -> float:
    """Return the pause, doubled with each consecutive error."""
    return interval_seconds if not faults else min(BACKOFF_SECONDS_MAX, max(1.0, interval_seconds) * 2.0**faults)
