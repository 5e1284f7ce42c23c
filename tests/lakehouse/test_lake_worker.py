"""One shot and for ever: what `polynya compact` and `polynya lake run` call."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from worlds.lakehouse import Lake

from polynya.base.errors import ConfigError, Unavailable
from polynya.lakehouse.commit import RangesGone
from polynya.lakehouse.coordinator import NoSuchTable
from polynya.lakehouse.plan import JobPlan, TableRef
from polynya.lakehouse.worker import LazyRunner, compact, run_worker
from polynya.wire.tables import CommitRequest, StoreRef


class Told:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def __call__(self, step: str, told: str) -> None:
        self.steps.append((step, told))

    @property
    def names(self) -> list[str]:
        return [step for step, _ in self.steps]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "store"))


def test_compact_starts_no_runner_for_nothing(lake: Lake) -> None:
    def never() -> None:
        raise AssertionError("there is nothing to run")

    assert compact(lake.coordinator, [], never, Told()) == []  # type: ignore[arg-type]


def test_compact_ends_when_a_job_was_small(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":1}', b'{"n":2}'])
    outcomes = compact(lake.coordinator, ["flights"], lambda: lake.runner, Told())
    assert [(outcome.rows, outcome.ours) for outcome in outcomes] == [(2, True)]
    lake.check_exactly_once()


def test_compact_names_the_tables_that_there_are(lake: Lake) -> None:
    with pytest.raises(NoSuchTable, match="flights"):
        compact(lake.coordinator, ["flihgts"], lambda: lake.runner, Told())


def test_objects_that_are_gone_lead_to_a_new_plan(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":1}'])
    lake.source.append("b", [b'{"n":1}'])
    gone = lake.source.pending[0].pack
    path = Path(lake.settings.root) / gone
    path.rename(path.with_suffix(".away"))
    told = Told()
    told_before = told.__call__

    def progress(step: str, message: str) -> None:
        told_before(step, message)
        if step == "abandoned":
            path.with_suffix(".away").rename(path)

    outcomes = compact(lake.coordinator, [], lambda: lake.runner, progress)
    assert len(outcomes) == 1
    assert len(lake.coordinator.abandoned) == 1
    lake.check_exactly_once()


def test_a_small_job_that_was_cut_short_is_not_the_last(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.source.append("a", [b'{"n":1}'])
    real = lake.coordinator.plan

    def plan(name: str) -> JobPlan | None:
        found = real(name)
        assert found is not None, "who was told that there is no more does not ask again"
        if found.job == 1:
            lake.source.append("a", [b'{"n":2}'])
        return msgspec.structs.replace(found, more=found.job == 1)

    monkeypatch.setattr(lake.coordinator, "plan", plan)
    assert [outcome.job for outcome in compact(lake.coordinator, [], lambda: lake.runner, Told())] == [1, 2]
    lake.check_exactly_once()


def test_objects_that_stay_gone_are_told(lake: Lake) -> None:
    lake.source.append("a", [b'{"n":1}'])
    (Path(lake.settings.root) / lake.source.pending[0].pack).unlink()
    with pytest.raises(RangesGone, match="packs/"):
        compact(lake.coordinator, [], lambda: lake.runner, Told())


def test_a_folder_of_another_machine_is_told_as_such(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.source.append("a", [b'{"n":1}'])
    plan = lake.coordinator.plan("flights")
    assert plan is not None
    elsewhere = JobPlan(plan.table, plan.job, plan.attempt, StoreRef("local", "/nowhere/objects"), plan.ranges)
    monkeypatch.setattr(lake.coordinator, "plan", lambda name: elsewhere)
    with pytest.raises(ConfigError, match="on the server's machine"):
        compact(lake.coordinator, [], lambda: lake.runner, Told())


def test_the_worker_goes_on_after_faults(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is away, then Spark breaks, then all is well; in the end it stops."""
    lake.source.append("a", [b'{"n":1}'])
    stop, told, calls = threading.Event(), Told(), []
    real = lake.coordinator.plan

    def plan(name: str) -> JobPlan | None:
        calls.append(name)
        if len(calls) == 1:
            raise Unavailable("the server is away")
        if len(calls) == 2:
            raise RuntimeError("Py4JNetworkError")
        if len(calls) > 3:
            stop.set()
        return real(name)

    monkeypatch.setattr(lake.coordinator, "plan", plan)
    monkeypatch.setattr("polynya.lakehouse.worker._wait", lambda interval, faults: 0.0)
    run_worker(lake.coordinator, [], lambda: lake.runner, told, interval_seconds=0.0, stop=stop)
    assert told.names.count("failed") == 2
    lake.check_exactly_once()


def test_sigterm_ends_the_worker(lake: Lake) -> None:
    told = Told()

    def progress(step: str, message: str) -> None:
        told(step, message)
        if step == "staged-main":
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    lake.source.append("a", [b'{"n":1}'])
    run_worker(lake.coordinator, [], lambda: lake.runner, progress, interval_seconds=60.0)
    assert told.names[-1] == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before
    compact(lake.coordinator, [], lambda: lake.runner, told)
    lake.check_exactly_once()


def stopped_at(lake: Lake, step: str, times: int = 1) -> Told:
    """What a worker told that got SIGTERM, so often, after a step."""
    told = Told()

    def progress(name: str, message: str) -> None:
        told(name, message)
        if name == step:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGTERM)

    lake.source.append("a", [b'{"n":1}'])
    run_worker(lake.coordinator, [], lambda: lake.runner, progress, interval_seconds=60.0)
    assert told.names[-1] == "stopped"
    return told


@pytest.mark.parametrize("step", ["pointer", "delta-main"])
def test_a_pair_of_commits_is_finished_before_the_worker_ends(lake: Lake, step: str) -> None:
    told = stopped_at(lake, step)
    assert told.names[-2] == "delta-dlq"
    assert "stop requested" in told.steps[-1][1]
    lake.check_exactly_once()


@pytest.mark.parametrize("times", [1, 2])
def test_a_pair_of_commits_that_takes_too_long_is_left_and_told(lake: Lake, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr("polynya.lakehouse.stopping.FINISH_SECONDS", 0.05 if times == 1 else 1000.0)
    with monkeypatch.context() as patch:
        patch.setattr("polynya.lakehouse.delta.append", lambda *_, **__: threading.Event().wait(60))
        told = stopped_at(lake, "pointer", times)
    assert told.steps[-1][1] == "job 1 of 'flights' may be in Iceberg and not yet in Delta; the next run completes it"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert compact(lake.coordinator, [], lambda: lake.runner, Told()) == []
    lake.check_exactly_once()


def test_a_worker_whose_server_is_gone_at_the_commit_stops_in_time(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polynya.lakehouse.stopping.FINISH_SECONDS", 0.05)

    def commit(name: str, request: CommitRequest) -> TableRef:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(60)
        raise Unavailable("the server is away")

    lake.source.append("a", [b'{"n":1}'])
    told = Told()
    with monkeypatch.context() as patch:
        patch.setattr(lake.coordinator, "commit", commit)
        run_worker(lake.coordinator, [], lambda: lake.runner, told, interval_seconds=60.0)
    assert told.names[-1] == "stopped" and "the next run completes it" in told.steps[-1][1]
    compact(lake.coordinator, [], lambda: lake.runner, Told())
    lake.check_exactly_once()


def test_a_fault_after_a_signal_does_not_make_the_worker_go_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def append(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise Unavailable("the store is away")

    lake.source.append("a", [b'{"n":1}'])
    told = Told()
    monkeypatch.setattr("polynya.lakehouse.delta.append", append)
    run_worker(lake.coordinator, [], lambda: lake.runner, told, interval_seconds=60.0)
    assert told.names[-1] == "stopped" and "not yet in Delta" in told.steps[-1][1]


def test_a_delta_log_that_is_behind_is_repaired_without_a_job(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.source.append("a", [b'{"n":1}'])
    with monkeypatch.context() as patch:
        patch.setattr("polynya.lakehouse.delta.append", lambda *_, **__: (_ for _ in ()).throw(ConnectionError()))
        with pytest.raises(ConnectionError):
            compact(lake.coordinator, [], lambda: lake.runner, Told())
    repaired: dict[str, str] = {}
    assert compact(lake.coordinator, [], lambda: lake.runner, Told(), repaired=repaired) == []
    lake.check_exactly_once()
    assert repaired == {"7001": lake.coordinator.table.result}


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
