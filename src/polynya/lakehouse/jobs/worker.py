"""`polynya table sync` and `polynya lake run`: run jobs for tables, once or continuously."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from polynya.base.errors import ConfigError, PolynyaError, Unavailable
from polynya.lakehouse.jobs.commit import (
    JobOutcome,
    Progress,
    RangesFailed,
    repair,
    run_job,
    told_failure,
)
from polynya.lakehouse.jobs.merging import due_merges
from polynya.lakehouse.jobs.plan import Job, TableRef, store_settings
from polynya.lakehouse.jobs.results import Runner
from polynya.lakehouse.jobs.stopping import Stopped, stop_on_signals
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.server.coordinator import Coordinator, NoSuchTable
from polynya.wire.tables import FailedRange, StoreRef

MERGES_MAX = 100  # per table and call
JOBS_MAX = 1000  # per table and call, because streams may grow faster than they are compacted
# for servers that omit `more`: a smaller job was not cut by the plan limit, so it was the last
LAST_JOB_BYTES = 32 << 20
RETRY_SECONDS = 1.0  # before ranges that failed are read again; doubles
BACKOFF_SECONDS_MAX = 60.0
_TRIES_AT_MOST = 3  # doublings of the pause
_RANGES_TOLD = 5  # in one message

RunnerFactory = Callable[[], Runner]


class TablesFailed(PolynyaError):
    """Some tables could not be brought up to date; `outcomes` are the jobs that were committed all
    the same."""

    def __init__(self, outcomes: list[JobOutcome], faults: dict[str, Exception]) -> None:
        super().__init__(
            "; ".join(f"table '{name}': {_spoken(fault)}" for name, fault in faults.items())
        )
        self.outcomes = outcomes
        self.faults = faults


class SetAside(PolynyaError):
    """Ranges of a table were set aside: the rest of the table is up to date."""

    def __init__(self, name: str, ranges: Collection[FailedRange]) -> None:
        told = "; ".join(map(told_failure, list(ranges)[:_RANGES_TOLD]))
        more = f"; and {len(ranges) - _RANGES_TOLD} more" if len(ranges) > _RANGES_TOLD else ""
        super().__init__(
            f"cannot be read and was set aside: {told}{more}. See 'polynya table failures {name}'"
        )


class LazyRunner:
    """Start a runner only when the first job needs one, because a Spark session takes seconds to
    start."""

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


class Memory(msgspec.Struct):
    """The memory of a driver of the tables between its rounds, by uid."""

    repaired: dict[str, str] = {}  # the last result up to which the Delta logs were complete
    looked: dict[str, int] = {}  # files since the last merge when no merge was found due


def compact(
    coordinator: Coordinator,
    tables: Sequence[str],
    factory: RunnerFactory,
    progress: Progress,
    *,
    runner: LazyRunner | None = None,
    memory: Memory | None = None,
    skip: Collection[str] = (),
) -> list[JobOutcome]:
    """Bring tables (default: all but `skip`) up to the acknowledged data. A fault of one table
    delays no other.

    Raises NoSuchTable, what stops every table, and at the end TablesFailed. `memory` is kept across
    calls.
    """
    own = runner or LazyRunner(factory)
    memory = memory or Memory()
    try:
        known = _known(coordinator, tables)
        outcomes: list[JobOutcome] = []
        faults: dict[str, Exception] = {}
        for name in tables or sorted(known):
            if name in skip:
                continue
            before = len(outcomes)
            try:
                _compact_table(coordinator, name, own, progress, outcomes)
                if len(outcomes) > before:
                    store = known[name].store
                    _merge_due(coordinator, store, own, progress, outcomes, memory.looked)
                store = known[name].store
                if (
                    len(outcomes) == before
                    and store is not None
                    and memory.repaired.get(known[name].uid) != known[name].result
                ):
                    repair(open_blobs(store_settings(store)), known[name])
                    memory.repaired[known[name].uid] = known[name].result
            except Exception as fault:
                _check_others_can_go_on(coordinator, own, fault)
                faults[name] = fault
                progress("failed", f"table '{name}': {_spoken(fault)}")
        if faults:
            raise TablesFailed(outcomes, faults)
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
    """Keep tables up to date until `stop` is set or SIGTERM or SIGINT arrives. Errors are reported
    and retried with backoff."""
    stop = stop or threading.Event()
    runner = LazyRunner(factory)
    memory = Memory()
    resting: dict[
        str, tuple[int, float]
    ] = {}  # tables that failed: how often in a row, and until when they rest
    faults = 0
    try:
        with stop_on_signals():
            while not stop.is_set():
                skip = [name for name, (_, until) in resting.items() if time.monotonic() < until]
                try:
                    compact(
                        coordinator,
                        tables,
                        factory,
                        progress,
                        runner=runner,
                        memory=memory,
                        skip=skip,
                    )
                    faults, resting = 0, {name: resting[name] for name in skip}
                except TablesFailed as failed:
                    faults, resting = 0, _rested(resting, skip, failed, interval_seconds)
                except (PolynyaError, OSError) as fault:
                    faults += 1
                    progress(
                        "failed", f"{fault}; retrying in {_wait(interval_seconds, faults):.0f} s"
                    )
                stop.wait(_wait(interval_seconds, faults))
    except Stopped as stopped:
        progress("stopped", str(stopped) or "stop requested; the next run repeats unfinished work")
    finally:
        runner.close()


def _compact_table(
    coordinator: Coordinator,
    name: str,
    runner: LazyRunner,
    progress: Progress,
    outcomes: list[JobOutcome],
) -> None:
    """Run jobs until the table is up to date. Raises SetAside at the end if it is but for some
    ranges."""
    failed: dict[tuple[int, int], FailedRange] = {}
    tries = 0
    for _ in range(JOBS_MAX):
        plan = coordinator.plan(name)
        if plan is None:
            break
        blobs = open_blobs(store_settings(plan.store))
        try:
            outcome = run_job(plan, coordinator, runner, blobs, progress)
        except RangesFailed as fault:
            failed |= {(each.uid, each.record): each for each in fault.ranges}
            progress("abandoned", f"{fault}: requesting a new plan")
            coordinator.fail(name, plan.table.uid, plan.job, fault.ranges)
            time.sleep(RETRY_SECONDS * 2 ** min(tries, _TRIES_AT_MOST))
            tries += 1
            continue
        tries = 0
        if outcome is None:
            continue
        outcomes.append(outcome)
        for part in plan.ranges:
            failed.pop((part.uid, part.record + part.skip), None)  # it could be read after all
        more = outcome.bytes >= LAST_JOB_BYTES if plan.more is None else plan.more
        if plan.ranges and not more:
            break
    if failed:
        aside = coordinator.aside(name)  # others belong to streams that ended meanwhile
        lost = [each for (uid, record), each in failed.items() if (uid, record) in aside]
        if lost:
            raise SetAside(name, lost)


def _merge_due(
    coordinator: Coordinator,
    store: StoreRef | None,
    runner: LazyRunner,
    progress: Progress,
    outcomes: list[JobOutcome],
    looked: dict[str, int],
) -> None:
    """Merge files of the table of the last outcome, if enough were added since the last merge.

    `looked` keeps how many there were when none was due.
    """
    last = outcomes[-1]
    table = msgspec.structs.replace(last.table, store=store)
    if not table.merge_files:
        return
    if last.unmerged < table.merge_files + looked.get(table.uid, 0):
        return
    looked[table.uid] = 0
    merged = run_merges(coordinator, table, runner, progress)
    outcomes += merged
    if not merged:
        looked[table.uid] = last.unmerged


def run_merges(
    coordinator: Coordinator,
    table: TableRef,
    runner: LazyRunner,
    progress: Progress,
    *,
    whole: bool = False,
) -> list[JobOutcome]:
    """Merge files of a table until no merge is due. A job that another driver left open is finished
    first."""
    outcomes: list[JobOutcome] = []
    if table.store is None:
        return outcomes
    blobs = open_blobs(store_settings(table.store))
    for _ in range(MERGES_MAX):
        if not due_merges(blobs, table, whole=whole):
            break
        plan = coordinator.plan(table.name, merge=True)
        if plan is None:
            break
        outcome = run_job(plan, coordinator, runner, blobs, progress, whole=whole)
        if outcome is None:
            break
        outcomes.append(outcome)
        table = outcome.table
    return outcomes


def merge(
    coordinator: Coordinator, name: str, factory: RunnerFactory, progress: Progress
) -> list[JobOutcome]:
    """Merge all small files of a table. Raises NoSuchTable, and the errors of a job."""
    known = _known(coordinator, [name])
    runner = LazyRunner(factory)
    try:
        return run_merges(coordinator, known[name], runner, progress, whole=True)
    finally:
        runner.close()


def _known(coordinator: Coordinator, wanted: Sequence[str]) -> dict[str, TableRef]:
    """Return all tables by name. Raises NoSuchTable if a wanted one is not there."""
    known = {table.name: table for table in coordinator.tables()}
    for name in wanted:
        if name not in known:
            raise NoSuchTable(
                f"there is no table '{name}'. The tables are: {', '.join(sorted(known)) or 'none'}"
            )
    return known


def _check_others_can_go_on(coordinator: Coordinator, runner: LazyRunner, fault: Exception) -> None:
    """Raise the fault again if it is no table's own."""
    if isinstance(fault, ConfigError):
        raise fault
    if isinstance(fault, Unavailable):
        try:
            coordinator.tables()
        except PolynyaError:
            raise fault from None
    if not isinstance(fault, PolynyaError | OSError):
        runner.close()  # a Spark error: its session may be broken


def _rested(
    resting: dict[str, tuple[int, float]],
    skipped: Collection[str],
    failed: TablesFailed,
    interval_seconds: float,
) -> dict[str, tuple[int, float]]:
    """Return when each failed table is tried again: later after each failure in a row."""
    made = {name: resting[name] for name in skipped}
    for name in failed.faults:
        times = resting.get(name, (0, 0.0))[0] + 1
        made[name] = (times, time.monotonic() + _wait(interval_seconds, times))
    return made


def _spoken(fault: Exception) -> str:
    told = str(fault) if isinstance(fault, PolynyaError | OSError) else ""
    return told or f"{type(fault).__name__}: {fault}"


def _wait(interval_seconds: float, faults: int) -> float:
    """Return the pause, doubled with each consecutive error."""
    return (
        interval_seconds
        if not faults
        else min(BACKOFF_SECONDS_MAX, max(1.0, interval_seconds) * 2.0**faults)
    )
