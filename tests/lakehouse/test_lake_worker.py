"""Single and continuous runs, as `polynya compact` and `polynya lake run` call them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from worlds.lakehouse import Lake

from polynya.base.errors import ConfigError, Unavailable
from polynya.lakehouse.decoding import decode
from polynya.lakehouse.formats.parquet import Writer
from polynya.lakehouse.jobs import commit
from polynya.lakehouse.jobs.lazy_runner import LazyRunner
from polynya.lakehouse.jobs.plan import Job, JobPlan, TableRef, store_settings
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.jobs.worker import Syncing, TablesFailed, compact, run_worker
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.lakehouse.server.coordinator import NoSuchTable
from polynya.wire.tables import CommitRequest, StoreRef


class ProgressLog:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, step: str, message: str) -> None:
        self.steps.append((step, message))

    @property
    def names(self) -> list[str]:
        return [step for step, _ in self.steps]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.worker.RETRY_SECONDS", 0.0)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def test_compact_starts_no_runner_for_nothing(lake: Lake) -> None:
    def never() -> None:
        raise AssertionError("there is nothing to run")

    assert compact(lake.coordinator, [], never, ProgressLog()) == []  # type: ignore[arg-type]


def test_compact_ends_when_a_job_was_small(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":1}', b'{"n":2}'])
    outcomes = compact(lake.coordinator, ["flights"], lambda: lake.runner, ProgressLog())
    assert [(outcome.rows, outcome.ours) for outcome in outcomes] == [(2, True)]
    lake.check_exactly_once()


def test_compact_names_the_tables_that_there_are(lake: Lake) -> None:
    with pytest.raises(NoSuchTable, match="flights"):
        compact(lake.coordinator, ["flihgts"], lambda: lake.runner, ProgressLog())


def test_a_worker_ends_for_a_table_that_never_was_there(lake: Lake) -> None:
    stop, log = threading.Event(), ProgressLog()
    with pytest.raises(NoSuchTable, match="flihgts"):
        run_worker(
            lake.coordinator,
            ["flihgts"],
            lambda: lake.runner,
            log,
            interval_seconds=0.0,
            stop=stop,
        )
    assert log.steps == []


def test_a_worker_goes_on_when_its_server_is_not_there_yet(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy answers 404 until the server is up."""
    stop, log, rounds = threading.Event(), ProgressLog(), 0

    def tables() -> list[TableRef]:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise NoSuchTable("404 page not found")
        stop.set()
        return [lake.coordinator.table]

    monkeypatch.setattr(lake.coordinator, "tables", tables)
    run_worker(lake.coordinator, [], lambda: lake.runner, log, interval_seconds=0.0, stop=stop)
    assert log.names == ["failed"] and rounds == 2


def test_a_worker_waits_for_a_table_that_was_there(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, log, rounds = threading.Event(), ProgressLog(), 0

    def tables() -> list[TableRef]:
        nonlocal rounds
        rounds += 1
        if rounds == 4:
            stop.set()
        return [] if rounds in (2, 3) else [lake.coordinator.table]

    monkeypatch.setattr(lake.coordinator, "tables", tables)
    run_worker(
        lake.coordinator, ["flights"], lambda: lake.runner, log, interval_seconds=0.0, stop=stop
    )
    assert [step for step, _ in log.steps] == ["failed", "failed"]


def test_objects_that_are_gone_lead_to_a_new_plan(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":1}'])
    lake.source.append("b", [b'{"n":1}'])
    gone = lake.source.pending[0].pack
    path = Path(lake.settings.root) / gone
    path.rename(path.with_suffix(".away"))
    log = ProgressLog()
    log_step = log.__call__

    def progress(step: str, message: str) -> None:
        log_step(step, message)
        if step == "abandoned":
            path.with_suffix(".away").rename(path)

    outcomes = compact(lake.coordinator, [], lambda: lake.runner, progress)
    assert len(outcomes) == 1
    assert list(lake.coordinator.failures.values()) == [1]
    lake.check_exactly_once()


def test_a_small_job_that_was_cut_short_is_not_the_last(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.source.append("a", [b'{"n":1}'])
    real = lake.coordinator.plan

    def plan(name: str, *, merge: bool = False) -> JobPlan | None:
        found = real(name)
        assert found is not None, "who was told that there is no more does not ask again"
        if found.job == 1:
            lake.source.append("a", [b'{"n":2}'])
        return msgspec.structs.replace(found, more=found.job == 1)

    monkeypatch.setattr(lake.coordinator, "plan", plan)
    assert [
        outcome.job for outcome in compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    ] == [1, 2]
    lake.check_exactly_once()


def damaged(lake: Lake, number: int) -> Path:
    """Change a byte of a pending slice."""
    part = lake.source.pending[number]
    path = Path(lake.settings.root) / part.pack
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[part.offset + part.stored - 3] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("how", ["damaged", "gone", "short"])
def test_a_range_that_cannot_be_read_is_set_aside_and_the_rest_goes_on(
    lake: Lake, how: str
) -> None:
    lake.source.append_many({"a": [[b'{"n":1}', b'{"n":2}']], "b": [[b'{"n":3}']]})
    lake.source.append("c", [b'{"n":4}'])
    lost = (
        [part for part in lake.source.pending if part.stream == "c"]
        if how != "damaged"
        else [lake.source.pending[1]]
    )
    path = Path(lake.settings.root) / lost[0].pack
    if how == "damaged":
        damaged(lake, 1)
    elif how == "gone":
        path.unlink()
    else:
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[: lost[0].offset + 5])
    log = ProgressLog()
    with pytest.raises(TablesFailed) as failed:
        compact(lake.coordinator, [], lambda: lake.runner, log)
    part = lost[0]
    for word in (
        "table 'flights'",
        f"stream '{part.stream}'",
        part.pack,
        f"offset {part.offset}",
        "record 0",
        "table failures flights",
    ):
        assert word in str(failed.value)
    assert (
        log.names.count("abandoned") == 3
        and sum(outcome.rows for outcome in failed.value.outcomes) == 4 - part.records
    )
    lake.source.records = [row for row in lake.source.records if row[0] != part.stream]
    lake.check_exactly_once()
    assert compact(lake.coordinator, [], lambda: lake.runner, ProgressLog()) == [], (
        "what is set aside fails no later run"
    )


def test_a_decoder_that_fails_names_the_range(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode.decode

    def decoding(data: Any, ends: Any, schema: Any) -> Any:
        if b"poison" in data.tobytes():
            raise OverflowError("a defect")
        return real(data, ends, schema)

    monkeypatch.setattr("polynya.lakehouse.decoding.kinds.decode", decoding)
    lake.source.append_many({"a": [[b'{"n":1}']], "b": [[b'{"n":"poison"}']], "c": [[b'{"n":3}']]})
    with pytest.raises(TablesFailed, match=r"record 0 of stream 'b'.*OverflowError: a defect"):
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.source.records = [row for row in lake.source.records if row[0] != "b"]
    lake.check_exactly_once()


class TwoTables:
    """A coordinator of two tables, each with a store of its own."""

    def __init__(self, *lakes: Lake) -> None:
        self.lakes = {lake.coordinator.table.name: lake for lake in lakes}

    def tables(self) -> list[TableRef]:
        return [table for lake in self.lakes.values() for table in lake.coordinator.tables()]

    def __getattr__(self, verb: str) -> Any:
        return lambda name, *rest: getattr(self.lakes[name].coordinator, verb)(name, *rest)


class Here:
    """Runs tasks in the store that they name."""

    cores = 2

    def run(self, job: Job, key: str) -> list[TaskResult]:
        return [
            run_task(job, task, open_blobs(store_settings(job.plan.store))) for task in job.tasks
        ]


@pytest.fixture
def two(tmp_path: Path) -> TwoTables:
    made = [Lake(str(tmp_path / name)) for name in ("apples", "pears")]
    for lake, name in zip(made, ("apples", "pears"), strict=True):
        lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, name=name)
        lake.source.append("s", [b'{"n":1}'])
    return TwoTables(*made)


def test_a_fault_of_one_table_delays_no_other(
    two: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = two.lakes["apples"].coordinator.plan
    monkeypatch.setattr(
        two.lakes["apples"].coordinator,
        "plan",
        lambda name: (_ for _ in ()).throw(RuntimeError("Py4J")),
    )
    log = ProgressLog()
    with pytest.raises(TablesFailed, match="table 'apples': RuntimeError: Py4J") as failed:
        compact(two, [], Here, log)  # type: ignore[arg-type]
    assert [outcome.table.name for outcome in failed.value.outcomes] == ["pears"]
    assert "failed" in log.names
    two.lakes["pears"].check_exactly_once()
    monkeypatch.setattr(two.lakes["apples"].coordinator, "plan", real)
    compact(two, [], Here, log)  # type: ignore[arg-type]
    two.lakes["apples"].check_exactly_once()


def test_a_server_that_is_gone_stops_all_tables_at_once(
    two: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def away(*words: object) -> None:
        calls.append(words)
        raise Unavailable("the server is away")

    listed = two.tables()
    monkeypatch.setattr(two, "tables", lambda: listed if not calls else away())
    for lake in two.lakes.values():
        monkeypatch.setattr(lake.coordinator, "plan", away)
    with pytest.raises(Unavailable):
        compact(two, [], Here, ProgressLog(), at_once=1)  # type: ignore[arg-type]
    assert len(calls) == 2


def test_a_spark_that_does_not_start_is_tried_once_for_all_tables(two: TwoTables) -> None:
    tries = []

    def away() -> Any:
        tries.append(1)
        raise Unavailable("no Spark master answers")

    with pytest.raises(Unavailable, match="no Spark master answers"):
        compact(two, [], away, ProgressLog())  # type: ignore[arg-type]
    assert len(tries) == 1
    compact(two, [], Here, ProgressLog())  # type: ignore[arg-type]
    two.lakes["pears"].check_exactly_once()


def test_the_worker_rests_only_the_table_that_failed(
    two: TwoTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "polynya.lakehouse.jobs.worker._wait", lambda interval, faults: 60.0 * faults
    )
    stop, calls = threading.Event(), []
    monkeypatch.setattr(stop, "wait", lambda seconds: None)
    monkeypatch.setattr(
        two.lakes["apples"].coordinator, "plan", lambda name: (_ for _ in ()).throw(OSError("disk"))
    )
    real = two.lakes["pears"].coordinator.plan

    def plan(name: str, *, merge: bool = False) -> JobPlan | None:
        calls.append(name)
        if len(calls) == 3:
            stop.set()
        return real(name)

    monkeypatch.setattr(two.lakes["pears"].coordinator, "plan", plan)
    log = ProgressLog()
    run_worker(two, [], Here, log, interval_seconds=0.0, stop=stop)  # type: ignore[arg-type]
    assert log.names.count("failed") == 1 and len(calls) == 3
    two.lakes["pears"].check_exactly_once()


def test_a_folder_of_another_machine_is_told_as_such(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.source.append("a", [b'{"n":1}'])
    plan = lake.coordinator.plan("flights")
    assert plan is not None
    elsewhere = JobPlan(
        plan.table, plan.job, plan.attempt, StoreRef("local", "/nowhere/objects"), plan.ranges
    )
    monkeypatch.setattr(lake.coordinator, "plan", lambda name: elsewhere)
    with pytest.raises(ConfigError, match="on the server's machine"):
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())


def test_the_worker_goes_on_after_faults(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the server, break Spark, and heal both; the worker continues and finally stops."""
    lake.source.append("a", [b'{"n":1}'])
    stop, log, calls = threading.Event(), ProgressLog(), []
    real = lake.coordinator.plan

    def plan(name: str, *, merge: bool = False) -> JobPlan | None:
        calls.append(name)
        if len(calls) == 1:
            raise Unavailable("the server is away")
        if len(calls) == 2:
            raise RuntimeError("Py4JNetworkError")
        if len(calls) > 3:
            stop.set()
        return real(name)

    monkeypatch.setattr(lake.coordinator, "plan", plan)
    monkeypatch.setattr("polynya.lakehouse.jobs.worker._wait", lambda interval, faults: 0.0)
    run_worker(lake.coordinator, [], lambda: lake.runner, log, interval_seconds=0.0, stop=stop)
    assert log.names.count("failed") == 2
    lake.check_exactly_once()


@pytest.mark.parametrize(("seconds", "pause"), [(7.0, 53.0), (75.0, 0.0)])
def test_the_interval_is_from_start_to_start(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seconds: float, pause: float
) -> None:
    """A round that takes longer than the interval is followed by the next at once."""
    lake.source.append("a", [b'{"n":1}'])
    stop, now, pauses = threading.Event(), [1000.0], list[float]()
    real = lake.coordinator.plan

    def plan(name: str, *, merge: bool = False) -> JobPlan | None:
        now[0] += seconds
        return real(name)

    def wait(timeout: float) -> None:
        pauses.append(timeout)
        stop.set()

    monkeypatch.setattr(lake.coordinator, "plan", plan)
    monkeypatch.setattr(stop, "wait", wait)
    monkeypatch.setattr("polynya.lakehouse.jobs.worker.time.monotonic", lambda: now[0])
    run_worker(
        lake.coordinator, [], lambda: lake.runner, ProgressLog(), interval_seconds=60.0, stop=stop
    )
    assert pauses == [pause]
    lake.check_exactly_once()


def test_sigterm_ends_the_worker(lake: Lake) -> None:
    log = ProgressLog()

    def progress(step: str, message: str) -> None:
        log(step, message)
        if step == "staged-main":
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    lake.source.append("a", [b'{"n":1}'])
    run_worker(lake.coordinator, [], lambda: lake.runner, progress, interval_seconds=60.0)
    assert log.names[-1] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before
    compact(lake.coordinator, [], lambda: lake.runner, log)
    lake.check_exactly_once()


def stopped_at(lake: Lake, step: str, times: int = 1) -> ProgressLog:
    """Return the output of a worker that got SIGTERM that often after a step."""
    log = ProgressLog()

    def progress(name: str, message: str) -> None:
        log(name, message)
        if name == step:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGTERM)

    lake.source.append("a", [b'{"n":1}'])
    run_worker(lake.coordinator, [], lambda: lake.runner, progress, interval_seconds=60.0)
    assert log.names[-1] == "stopped"
    return log


@pytest.mark.parametrize("step", ["pointer", "delta-main"])
def test_a_pair_of_commits_is_finished_before_the_worker_ends(lake: Lake, step: str) -> None:
    log = stopped_at(lake, step)
    assert log.names[-2] == "delta-dlq"
    assert "stop requested" in log.steps[-1][1]
    lake.check_exactly_once()


@pytest.mark.parametrize("times", [1, 2])
def test_a_pair_of_commits_that_takes_too_long_is_left_and_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(
        "polynya.lakehouse.jobs.stopping.FINISH_SECONDS", 0.05 if times == 1 else 1000.0
    )
    with monkeypatch.context() as patch:
        patch.setattr(
            "polynya.lakehouse.formats.delta.apply", lambda *_, **__: threading.Event().wait(60)
        )
        log = stopped_at(lake, "pointer", times)
    assert (
        log.steps[-1][1]
        == "job 1 of 'flights' may be in Iceberg and not yet in Delta; the next run completes it"
    )
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert compact(lake.coordinator, [], lambda: lake.runner, ProgressLog()) == []
    lake.check_exactly_once()


def test_a_worker_whose_server_is_gone_at_the_commit_stops_in_time(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polynya.lakehouse.jobs.stopping.FINISH_SECONDS", 0.05)

    def commit(name: str, request: CommitRequest) -> TableRef:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise Unavailable("the server is away")

    lake.source.append("a", [b'{"n":1}'])
    log = ProgressLog()
    with monkeypatch.context() as patch:
        patch.setattr(lake.coordinator, "commit", commit)
        run_worker(lake.coordinator, [], lambda: lake.runner, log, interval_seconds=60.0)
    assert log.names[-1] == "stopped" and "the next run completes it" in log.steps[-1][1]
    compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.check_exactly_once()


def test_a_fault_after_a_signal_does_not_make_the_worker_go_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise Unavailable("the store is away")

    lake.source.append("a", [b'{"n":1}'])
    log = ProgressLog()
    monkeypatch.setattr("polynya.lakehouse.formats.delta.apply", append)
    run_worker(lake.coordinator, [], lambda: lake.runner, log, interval_seconds=60.0)
    assert log.names[-1] == "stopped" and "not yet in Delta" in log.steps[-1][1]


def test_a_delta_log_that_is_behind_is_repaired_without_a_job(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.source.append("a", [b'{"n":1}'])
    with monkeypatch.context() as patch:
        patch.setattr(
            "polynya.lakehouse.formats.delta.apply",
            lambda *_, **__: (_ for _ in ()).throw(ConnectionError()),
        )
        with pytest.raises(TablesFailed, match="ConnectionError"):
            compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    syncing = Syncing(lake.coordinator, lambda: lake.runner, ProgressLog())
    assert syncing.sync([]) == []
    lake.check_exactly_once()
    assert syncing.repaired == {"7001": lake.coordinator.table.result}


def test_a_runner_starts_once_and_is_closed(lake: Lake) -> None:
    started = []

    class Closing:
        cores = 2

        def close(self) -> None:
            started.append("closed")

    def factory() -> Closing:
        started.append("started")
        return Closing()

    runner = LazyRunner(factory)  # type: ignore[arg-type]
    assert runner.cores + runner.cores == 4
    runner.close()
    assert started == ["started", "closed"]


OUTER_TIMES = ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+14:00"]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("time", OUTER_TIMES)
def test_a_time_beyond_the_years_of_utc_stops_no_table(lake: Lake, time: str, known: bool) -> None:
    if known:
        lake.source.append("a", [b'{"t":"2020-01-01T00:00:00Z"}'])
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.source.append("a", [b'{"t":"%s"}' % time.encode()])
    compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.check_exactly_once()
    column = lake.iceberg()["t__string" if known else "t"]
    assert [value for value in column.to_pylist() if value] == [time]


def test_a_step_after_the_conversion_that_fails_names_the_range(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of all but one range can be closed."""
    real = Writer.write

    def write(self: Writer, rows: Any) -> None:
        if b'{"n":2}' in rows["value"].to_pylist():
            raise OverflowError("a defect")
        real(self, rows)

    monkeypatch.setattr(Writer, "write", write)
    lake.source.append_many({name: [[b'{"n":%d}' % n]] for n, name in enumerate("abcd")})
    with pytest.raises(TablesFailed, match=r"record 0 of stream 'c'.*OverflowError: a defect"):
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.source.records = [row for row in lake.source.records if row[0] != "c"]
    lake.check_exactly_once()


def test_a_commit_that_fails_names_the_range_or_is_noted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = commit.stage

    def stage(*args: Any, **named: Any) -> str:
        for file in named["change"].files:
            if (
                b'{"n":2}'
                in pq.read_table(Path(lake.settings.root) / file.key)["value"].to_pylist()
            ):
                raise OverflowError("a defect")
        return real(*args, **named)

    monkeypatch.setattr(commit, "stage", stage)
    lake.source.append_many({name: [[b'{"n":%d}' % n]] for n, name in enumerate("abcd")})
    with pytest.raises(TablesFailed, match=r"record 0 of stream 'c'.*OverflowError: a defect"):
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    lake.source.records = [row for row in lake.source.records if row[0] != "c"]
    lake.check_exactly_once()

    def never(*args: Any, **named: Any) -> str:
        raise OverflowError("all of it") if len(named["change"].files[0].key) else ValueError

    lake.source.append("e", [b"1"])
    monkeypatch.setattr("polynya.lakehouse.jobs.commit._check_ranges", lambda *args: None)
    monkeypatch.setattr(commit, "stage", never)
    with pytest.raises(TablesFailed, match="all of it"):
        compact(lake.coordinator, [], lambda: lake.runner, ProgressLog())
    assert lake.coordinator.abandoned == ["OverflowError: all of it"]
