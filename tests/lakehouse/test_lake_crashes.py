"""Killed between any two steps, run twice, run by two at once: every record is in each table
exactly once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from long_tests import long
from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.formats import delta
from polynya.lakehouse.jobs.commit import STEPS, repair, run_job
from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.jobs.stopping import begin_again
from polynya.wire.tables import CommitRequest

FEW_STEPS = ("ran", "staged-dlq", "pointer", "delta-main")  # writes are counted further below


class Killed(BaseException):
    """The driver is dead."""


def fill(lake: Lake, number: int) -> None:
    """Records that widen the schema of the job before, a dead letter among them in odd jobs."""
    lake.source.append("s/one", [b'{"n":%d,"c%d":{"d":[1]}}' % (i, number) for i in range(20)])
    lake.source.append_many(
        {
            "s/two": [[b'{"n":1}', b"[]" if number % 2 else b"{}"]],
            "s/three": [[b'{"t":"2020-01-01T00:00:00Z"}']],
        }
    )


def drive(lake: Lake, progress: Any = quiet) -> None:
    """Carry out all due work, as a driver does when it starts."""
    repair(lake.blobs, lake.coordinator.table)
    while (plan := lake.coordinator.plan("flights")) is not None:
        run_job(plan, lake.coordinator, lake.runner, lake.blobs, progress)


def killed_after(step: str) -> Any:
    def progress(done: str, message: str) -> None:
        if done == step:
            raise Killed(step)

    return progress


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    begin_again()  # where another file has stopped the jobs of this process
    return Lake(str(tmp_path / "store"))


@pytest.mark.parametrize(
    "step", [*FEW_STEPS, *long(step for step in STEPS if step not in FEW_STEPS)]
)
def test_killed_after_a_step(lake: Lake, step: str) -> None:
    for number in range(3):
        fill(lake, number)
        with pytest.raises(Killed):
            drive(lake, killed_after(step))
    drive(lake)
    lake.check_exactly_once()
    assert lake.coordinator.table.job == lake.coordinator.jobs
    assert lake.iceberg("dlq").num_rows == 1


class Faulty:
    """A store whose n-th write never returns: before it happened, or after."""

    def __init__(self, blobs: Any, fatal: int, *, after: bool) -> None:
        self._blobs = blobs
        self._left = fatal
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blobs, name)
        return self._counted(found) if name in ("put", "open_upload", "sync_folder") else found

    def _counted(self, call: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            result = call(*arguments)
            if self._left == 0:
                raise Killed
            return result

        return counted

    @property
    def survived(self) -> bool:
        return self._left > 0


@pytest.mark.parametrize("after", [True, *long([False])])
def test_killed_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """The second job, which widens both tables, dies at its 1st, 2nd, 3rd … write."""
    monkeypatch.setattr(delta, "LocalBlobs", object)  # the faulty store stands for a local one
    fatal = 0
    while True:
        fatal += 1
        lake = Lake(str(tmp_path / f"{after}{fatal}"))
        fill(lake, 1)
        drive(lake)
        fill(lake, 3)
        healthy = lake.blobs
        lake.blobs = lake.runner.blobs = faulty = Faulty(healthy, fatal, after=after)  # type: ignore[assignment]
        try:
            drive(lake)
        except Killed:
            pass
        lake.blobs = lake.runner.blobs = healthy
        drive(lake)
        lake.check_exactly_once()
        if faulty.survived:
            break
    assert fatal > 10


@pytest.mark.parametrize("point", ["create", "add_columns", "create_write_transaction"])
def test_killed_inside_of_delta(lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Right after each thing that deltalake does."""
    real = delta.DeltaTable
    alive = [True]

    class Deadly(real):  # type: ignore[misc, valid-type]
        @classmethod
        def create(cls, *arguments: Any, **options: Any) -> Any:
            return _deadly(real.create, "create")(*arguments, **options)

        def create_write_transaction(self, *arguments: Any, **options: Any) -> Any:
            return _deadly(super().create_write_transaction, "create_write_transaction")(
                *arguments, **options
            )

        @property
        def alter(self) -> Any:
            alter = super().alter
            alter.add_columns = _deadly(alter.add_columns, "add_columns")
            return alter

    def _deadly(call: Any, name: str) -> Any:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            if name == point and alive[0]:
                raise Killed
            return result

        return wrapped

    for number in range(3):
        fill(lake, number)
        monkeypatch.setattr(delta, "DeltaTable", Deadly)
        alive[0] = True
        try:
            drive(lake)
        except Killed:
            pass
        alive[0] = False
        drive(lake)
        lake.check_exactly_once()


def test_run_twice(lake: Lake) -> None:
    fill(lake, 1)
    plan = lake.coordinator.plan("flights")
    assert plan is not None
    first = run_job(plan, lake.coordinator, lake.runner, lake.blobs, quiet)
    again = run_job(plan, lake.coordinator, lake.runner, lake.blobs, quiet)
    assert first.ours and again.ours
    lake.check_exactly_once()


def test_a_late_driver_changes_nothing(lake: Lake) -> None:
    """Two have the plan; one sleeps until the other has done this job and the next."""
    fill(lake, 1)
    late = lake.coordinator.plan("flights")
    assert late is not None
    sleeping = []

    def asleep(step: str, message: str) -> None:
        if step == "staged-dlq" and not sleeping:
            sleeping.append(step)
            drive(lake)
            fill(lake, 2)
            drive(lake)

    outcome = run_job(late, lake.coordinator, lake.runner, lake.blobs, asleep)
    assert sleeping
    assert outcome.table.job == 2
    lake.check_exactly_once()


def test_two_at_once(lake: Lake) -> None:
    """Two drivers race through five jobs, step by step together."""
    for number in range(5):
        fill(lake, number)
        plans = [lake.coordinator.plan("flights") for _ in range(2)]
        faults: list[BaseException] = []
        together = threading.Barrier(2)

        def in_step(step: str, message: str, together: threading.Barrier = together) -> None:
            if step in ("planned", "staged-dlq"):
                together.wait(60)

        def work(plan: Any, in_step: Any = in_step, faults: list[BaseException] = faults) -> None:
            try:
                run_job(plan, lake.coordinator, lake.runner, lake.blobs, in_step)
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        lake.check_exactly_once()
    table = lake.coordinator.table
    assert table.job == 5
    assert (
        DeltaTable(f"{lake.settings.root}/{table.location}/main").transaction_version(
            "polynya-7001-main"
        )
        == 5
    )


def test_an_answer_that_was_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer moved, the driver never heard of it and asks again."""
    fill(lake, 1)
    real = lake.coordinator.commit

    def twice(name: str, request: CommitRequest) -> TableRef:
        real(name, request)
        return real(name, request)

    monkeypatch.setattr(lake.coordinator, "commit", twice)
    drive(lake)
    lake.check_exactly_once()


def test_the_checker_can_fail(lake: Lake) -> None:
    """A server that hands out the same ranges in two jobs makes duplicates."""
    fill(lake, 1)
    ranges = list(lake.source.pending)
    drive(lake)
    lake.source.pending = ranges
    drive(lake)
    with pytest.raises(AssertionError):
        lake.check_exactly_once()
