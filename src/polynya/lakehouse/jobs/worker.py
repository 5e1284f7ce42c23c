"""`polynya table sync` and `polynya lake run`: run jobs for tables, once or continuously."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

import msgspec

from polynya.base.errors import ConfigError, PolynyaError, Unavailable
from polynya.base.limits import TABLES_AT_ONCE
from polynya.lakehouse.jobs.commit import (
    JobOutcome,
    RangesFailed,
    failure_text,
    repair,
    run_job,
)
from polynya.lakehouse.jobs.culprits import describe as described_fault
from polynya.lakehouse.jobs.derive import derivation
from polynya.lakehouse.jobs.late_schemas import retry_registered
from polynya.lakehouse.jobs.lazy_runner import LazyRunner, RunnerFactory
from polynya.lakehouse.jobs.plan import JobPlan, TableRef, store_settings
from polynya.lakehouse.jobs.results import REBUILD, REPLAY, Progress, Rewrite, Runner
from polynya.lakehouse.jobs.rewrites.merging import due_merges, merge_all, merge_due
from polynya.lakehouse.jobs.rewrites.redo import Redefined, produce_rebuild, produce_replay
from polynya.lakehouse.jobs.stateful.lineage import Lineage
from polynya.lakehouse.jobs.stopping import STOPPED, Stopped, begin_again, stop_on_signals
from polynya.lakehouse.jobs.table_pool import TablePool
from polynya.lakehouse.machine.store import checked_blobs
from polynya.lakehouse.reading.blobs import Blobs
from polynya.lakehouse.server.coordinator import Coordinator, NoSuchTable
from polynya.lakehouse.server.leases import Leased, LeaseKeeper, Leases, NoLeases
from polynya.wire.tables import FailedRange, StoreRef

MERGES_MAX = 100  # per table and call
JOBS_MAX = 1000  # per table and call, because streams may grow faster than they are compacted
# for servers that omit `more`: a smaller job was not cut by the plan limit, so it was the last
LAST_JOB_BYTES = 32 << 20
RETRY_SECONDS = 1.0  # before ranges that failed are read again; doubles
BACKOFF_SECONDS_MAX = 60.0
# of the interval from the start of a round, in which other workers leave the synced tables alone
REST_SHARE = 0.9
_TRIES_AT_MOST = 3  # doublings of the pause
_RANGES_SHOWN = 5  # in one message


class TablesFailed(PolynyaError):
    """Some tables could not be brought up to date; `outcomes` are the jobs that were committed all
    the same."""

    def __init__(self, outcomes: list[JobOutcome], faults: dict[str, Exception]) -> None:
        super().__init__(
            "; ".join(f"table '{name}': {_spoken(fault)}" for name, fault in faults.items())
        )
        self.outcomes = outcomes
        self.faults = faults


class NeverCreated(NoSuchTable):
    """A table was named that the server does not have."""


class SetAside(PolynyaError):
    """Ranges of a table were set aside: the rest of the table is up to date."""

    def __init__(self, name: str, ranges: Collection[FailedRange]) -> None:
        report = "; ".join(map(failure_text, list(ranges)[:_RANGES_SHOWN]))
        more = f"; and {len(ranges) - _RANGES_SHOWN} more" if len(ranges) > _RANGES_SHOWN else ""
        super().__init__(
            f"cannot be read and was set aside: {report}{more}. See 'polynya table failures {name}'"
        )


def compact(
    coordinator: Coordinator,
    tables: Sequence[str],
    factory: RunnerFactory,
    progress: Progress,
    *,
    at_once: int = TABLES_AT_ONCE,
) -> list[JobOutcome]:
    """Bring tables (default: all) up to the acknowledged data, some side by side. A fault of one
    table delays no other.

    Raises NoSuchTable, what stops every table, and at the end TablesFailed.
    """
    syncing = Syncing(coordinator, factory, progress, at_once=at_once)
    try:
        return syncing.sync(tables)
    finally:
        syncing.close()


class Syncing:
    """A driver that syncs tables in rounds: its Spark session, its threads, and what it remembers
    between rounds."""

    def __init__(
        self,
        coordinator: Coordinator,
        factory: RunnerFactory,
        progress: Progress,
        *,
        at_once: int = TABLES_AT_ONCE,
        leases: Leases | None = None,
        interval_seconds: float = 0.0,
    ) -> None:
        begin_again()
        self._coordinator = coordinator
        self._runner = LazyRunner(factory)
        self._progress = progress
        self._pool = TablePool(at_once)
        self._leases = leases or NoLeases()
        self._interval_seconds = interval_seconds
        self._began = time.monotonic()  # the round
        self.repaired: dict[str, str] = {}  # by uid: the last result that the Delta logs have
        self._looked: dict[str, int] = {}  # by uid: unmerged files when no merge was due

    def sync(self, tables: Sequence[str], skip: Collection[str] = ()) -> list[JobOutcome]:
        """Sync tables (default: all but `skip`), and those that they are derived from. Returns and
        raises as `compact`."""
        self._runner.begin_round()
        self._began = time.monotonic()
        known = _known(self._coordinator, tables)
        wanted = [name for name in dict.fromkeys(tables or sorted(known)) if name not in skip]
        lineage = Lineage(known, wanted, skip)
        names = lineage.names
        outcomes: dict[str, list[JobOutcome]] = {name: [] for name in names}
        faults: dict[str, Exception] = {}

        def work(name: str) -> None:
            report = self._progress if len(names) < 2 else _named(name, self._progress)
            lineage.wait(name)
            try:
                self._one(known[name], report, outcomes[name])
            except Leased:
                pass  # its worker reports faults
            except Exception as fault:
                _check_others_can_go_on(self._coordinator, self._runner, fault)
                faults[name] = fault
                self._progress("failed", f"table '{name}': {_spoken(fault)}")
            finally:
                lineage.done(name)

        self._pool.run(work, names)
        done = [outcome for name in names for outcome in outcomes[name]]
        if faults:
            raise TablesFailed(done, {name: faults[name] for name in names if name in faults})
        return done

    def close(self) -> None:
        """Stop the Spark session. Threads that still sync a table end after their present step."""
        self._pool.close()
        self._runner.close()

    def _one(self, table: TableRef, progress: Progress, outcomes: list[JobOutcome]) -> None:
        """Run the jobs of a table, merge its files, and complete its Delta logs."""
        try:
            retry_registered(self._coordinator, table)
            _compact_table(self._coordinator, table.name, self._runner, progress, outcomes)
            if outcomes:
                self._merge_due(table.store, progress, outcomes)
        except Exception:
            self._leases.release_lease(table.name, self._rest_seconds())
            raise
        self._leases.release_lease(table.name, self._rest_seconds())
        store = table.store
        if not outcomes and store is not None and self.repaired.get(table.uid) != table.result:
            repair(checked_blobs(store_settings(store)), table)
            self.repaired[table.uid] = table.result

    def _rest_seconds(self) -> float:
        """Return for how long other workers leave alone a table that was synced now."""
        passed = time.monotonic() - self._began
        return max(0.0, REST_SHARE * self._interval_seconds - passed)

    def _merge_due(
        self, store: StoreRef | None, progress: Progress, outcomes: list[JobOutcome]
    ) -> None:
        """Merge files of the table of the last outcome, if enough were added since the last
        merge."""
        last = outcomes[-1]
        table = msgspec.structs.replace(last.table, store=store)
        if not table.merge_files:
            return
        if last.unmerged < table.merge_files + self._looked.get(table.uid, 0):
            return
        self._looked[table.uid] = 0
        merged = run_merges(self._coordinator, table, self._runner, progress)
        outcomes += merged
        if not merged:
            self._looked[table.uid] = last.unmerged


def run_worker(
    coordinator: Coordinator,
    tables: Sequence[str],
    factory: RunnerFactory,
    progress: Progress,
    *,
    interval_seconds: float,
    stop: threading.Event | None = None,
    leases: Leases | None = None,
) -> None:
    """Keep tables up to date until `stop` is set or SIGTERM or SIGINT arrives. Errors are reported
    and retried with backoff. With `leases`, several workers divide the tables. Raises NoSuchTable
    for a name that no table has at the start."""
    stop, leases = stop or threading.Event(), leases or NoLeases()
    syncing = Syncing(
        coordinator, factory, progress, leases=leases, interval_seconds=interval_seconds
    )
    try:
        with stop_on_signals(), LeaseKeeper(leases):
            _work(syncing, tables, progress, interval_seconds, stop)
    except Stopped as stopped:
        progress("stopped", str(stopped) or STOPPED)
    finally:
        syncing.close()


def _work(
    syncing: Syncing,
    tables: Sequence[str],
    progress: Progress,
    interval_seconds: float,
    stop: threading.Event,
) -> None:
    """Sync tables in rounds, without those that failed a moment ago. The interval is from the start
    of a round to the start of the next, which follows at once if a round takes longer."""
    resting: dict[
        str, tuple[int, float]
    ] = {}  # tables that failed: how often in a row, and until when they rest
    faults, listed = 0, False  # listed: the named tables were there once
    while not stop.is_set():
        begin = time.monotonic()
        skip = [name for name, (_, until) in resting.items() if time.monotonic() < until]
        try:
            syncing.sync(tables, skip)
            faults, listed, resting = 0, True, {name: resting[name] for name in skip}
        except TablesFailed as failed:
            faults, listed = 0, True
            resting = _rested(resting, skip, failed, interval_seconds)
        except (PolynyaError, OSError) as fault:
            if isinstance(fault, NeverCreated) and not listed:
                raise
            faults += 1
            progress("failed", f"{fault}; retrying in {_wait(interval_seconds, faults):.0f} s")
        passed = 0.0 if faults else time.monotonic() - begin
        stop.wait(max(0.0, _wait(interval_seconds, faults) - passed))


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
        blobs = checked_blobs(store_settings(plan.store))
        derives = bool(plan.table.transform)
        try:
            rewrite = derivation(coordinator) if derives else merge_due
            outcome = run_job(plan, coordinator, runner, blobs, progress, rewrite=rewrite)
        except RangesFailed as fault:
            failed |= {(each.uid, each.record): each for each in fault.ranges}
            progress("abandoned", f"{fault}: requesting a new plan")
            coordinator.fail(name, plan.table.uid, plan.job, fault.ranges)
            time.sleep(RETRY_SECONDS * 2 ** min(tries, _TRIES_AT_MOST))
            tries += 1
            continue
        except Exception as fault:
            _note(coordinator, plan, fault)
            raise
        tries = 0
        if outcome is None and derives:
            break
        if outcome is None:
            continue
        outcomes.append(outcome)
        for part in plan.ranges:
            failed.pop((part.uid, part.record + part.skip), None)  # it could be read after all
        if derives:
            continue  # until a job finds nothing
        more = outcome.bytes >= LAST_JOB_BYTES if plan.more is None else plan.more
        if plan.ranges and not more:
            break
    if failed:
        aside = coordinator.aside(name)  # others belong to streams that ended meanwhile
        lost = [each for (uid, record), each in failed.items() if (uid, record) in aside]
        if lost:
            raise SetAside(name, lost)


def _note(coordinator: Coordinator, plan: JobPlan, fault: Exception) -> None:
    """Tell the server why a job failed, which abandons it: the table shows it. What is not there
    is waited for without that."""
    if isinstance(fault, ConfigError | Unavailable | Stopped | OSError):
        return
    with suppress(PolynyaError):
        coordinator.abandon(
            plan.table.name, plan.table.uid, plan.job, described_fault(fault), failed=True
        )


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
    blobs = checked_blobs(store_settings(table.store))
    for _ in range(MERGES_MAX):
        if not due_merges(blobs, table, whole=whole):
            break
        plan = coordinator.plan(table.name, merge=True)
        if plan is None:
            break
        rewrite = merge_all if whole else merge_due
        outcome = run_job(plan, coordinator, runner, blobs, progress, rewrite=rewrite)
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


def rebuild(
    coordinator: Coordinator,
    name: str,
    factory: RunnerFactory,
    progress: Progress,
    wanted: Redefined,
) -> JobOutcome | None:
    """Write a table to a new folder, with columns and partitions chosen again. Raises NoSuchTable,
    ConfigError, and the errors of a job."""

    def rewrite(plan: JobPlan, runner: Runner, blobs: Blobs, report: Progress) -> str:
        return produce_rebuild(plan, runner, blobs, report, wanted, coordinator.schemas)

    return _redo(coordinator, name, factory, progress, (REBUILD, rewrite))


def replay(
    coordinator: Coordinator, name: str, factory: RunnerFactory, progress: Progress
) -> JobOutcome | None:
    """Put the values of dead letters that fit the table's columns now into its rows. Return None if
    none does. Raises NoSuchTable, and the errors of a job."""

    def rewrite(plan: JobPlan, runner: Runner, blobs: Blobs, report: Progress) -> str:
        return produce_replay(plan, runner, blobs, report, coordinator.schemas)

    return _redo(coordinator, name, factory, progress, (REPLAY, rewrite))


def _redo(
    coordinator: Coordinator,
    name: str,
    factory: RunnerFactory,
    progress: Progress,
    work: tuple[str, Rewrite],
) -> JobOutcome | None:
    """Run a rewrite of a table, after the jobs that other drivers left open."""
    runner = LazyRunner(factory)
    try:
        _known(coordinator, [name])
        for _ in range(JOBS_MAX):
            plan = coordinator.plan(name, merge=True)
            if plan is None:
                break
            blobs = checked_blobs(store_settings(plan.store))
            outcome = run_job(plan, coordinator, runner, blobs, progress, rewrite=work[1])
            if outcome is None or outcome.work == work[0]:
                return outcome
        return None
    finally:
        runner.close()


def _known(coordinator: Coordinator, wanted: Sequence[str]) -> dict[str, TableRef]:
    """Return all tables by name. Raises NoSuchTable if a wanted one is not there."""
    known = {table.name: table for table in coordinator.tables()}
    for name in wanted:
        if name not in known:
            raise NeverCreated(
                f"there is no table '{name}'. The tables are: {', '.join(sorted(known)) or 'none'}"
            )
    return known


def _check_others_can_go_on(coordinator: Coordinator, runner: LazyRunner, fault: Exception) -> None:
    """Raise the fault again if it is no table's own."""
    if isinstance(fault, ConfigError) or fault is runner.fault:
        raise fault
    if isinstance(fault, Unavailable):
        try:
            coordinator.tables()
        except PolynyaError:
            raise fault from None
    if not isinstance(fault, PolynyaError):
        runner.discard_broken()  # a Spark error; a JVM that is gone refuses connections


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


def _named(name: str, progress: Progress) -> Progress:
    """Return a callback that names the table: steps of several are told in turn."""
    return lambda step, report: progress(step, f"'{name}': {report}")


def _spoken(fault: Exception) -> str:
    report = str(fault) if isinstance(fault, PolynyaError | OSError) else ""
    return report or f"{type(fault).__name__}: {fault}"


def _wait(interval_seconds: float, faults: int) -> float:
    """Return the pause, doubled with each consecutive error."""
    return (
        interval_seconds
        if not faults
        else min(BACKOFF_SECONDS_MAX, max(1.0, interval_seconds) * 2.0**faults)
    )
