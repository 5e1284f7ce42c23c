"""The CPU seconds of a test include all its processes; recorded times order the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cpu_seconds
import pytest
from cpu_seconds import (
    UNKNOWN,
    Cost,
    by_file,
    keep,
    keep_slow,
    kept,
    measured,
    order,
    slow,
    table,
    unrecorded,
)

ROOT = Path(__file__).parents[1]
BUDGET = (
    1_350  # CPU seconds of all files that `make test` runs; 1,181 on 2026-11-30, on an idle machine
)
SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"
# ends by a signal before anyone waited for its child
ORPHAN = """
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
os.kill(os.getpid(), signal.SIGKILL)
"""
TESTS = f"""
import subprocess, sys

def test_here():
    exec({SPIN.format(seconds=0.2)!r})

def test_in_a_child():
    subprocess.run([sys.executable, "-c", {SPIN.format(seconds=0.3)!r}], check=True)

def test_in_an_orphan():
    child = {ORPHAN!r}
    subprocess.run([sys.executable, "-c", child, {SPIN.format(seconds=0.3)!r}], check=False)

def test_idle():
    pass
"""
PLUGIN = """
from pathlib import Path
from cpu_seconds import Meter

def pytest_configure(config):
    config.pluginmanager.register(Meter(Path(__file__).parent / "costs"))
"""


@pytest.mark.process
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_test_costs_what_it_and_its_children_compute(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, "."]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    environment.pop("PYTEST_XDIST_WORKER", None)  # of the run that this test is a part of
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    costs = {
        name.rpartition("::")[2]: cost for name, cost in measured([tmp_path / "costs"]).items()
    }
    assert list(costs) == ["test_here", "test_in_a_child", "test_in_an_orphan", "test_idle"]
    assert (
        costs["test_here"].cpu >= 0.2
        and costs["test_in_a_child"].cpu >= 0.3
        and (costs["test_in_an_orphan"].cpu >= 0.3 or sys.platform != "linux")
        and costs["test_idle"].cpu < 0.2
    )
    assert costs["test_here"].wall >= 0.2


def test_files_are_the_sum_of_their_tests_and_ordered_by_what_keeps_a_worker_busy(
    tmp_path: Path,
) -> None:
    lines = [
        ["tests/a.py::one", 1.0, 5.0, False],
        ["tests/b.py::two", 2.0, 2.5, True],
        ["tests/a.py::three[x::y]", 0.5, 0.5, False],
        ["tests/b.py::two", 4.0, 3.0, True],
    ]
    (tmp_path / "costs").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tests = measured([tmp_path / "costs"])
    assert by_file(tests) == {"tests/a.py": Cost(1.5, 5.5), "tests/b.py": Cost(4.0, 3.0)}
    assert by_file(measured([tmp_path / "costs"], alone=True)) == {"tests/a.py": Cost(1.5, 5.5)}
    assert order(by_file(tests)) == {"tests/a.py": 5.5, "tests/b.py": 4.0}
    assert [line.split()[-1] for line in table(by_file(tests)).splitlines()[1:]] == [
        "tests/b.py",
        "tests/a.py",
    ], "the dearest first"


def test_what_is_kept_is_of_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_seconds, "KEPT", tmp_path / "tests" / "cpu_seconds.json")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").touch()
    (tmp_path / "tests" / "b.py").touch()
    cpu_seconds.KEPT.write_text('{"tests/a.py": [9.0, 9.0], "tests/gone.py": [9.0, 9.0]}')
    keep({"tests/b.py": Cost(0.21, 2.04)})
    assert kept() == {"tests/a.py": Cost(9.0, 9.0), "tests/b.py": Cost(0.2, 2.0)}
    keep({"tests/a.py": Cost(0.1, 0.2)})
    assert kept() == {"tests/a.py": Cost(0.1, 0.2), "tests/b.py": Cost(0.2, 2.0)}


def test_a_file_of_processes_without_a_record_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_seconds, "KEPT", tmp_path / "tests" / "cpu_seconds.json")
    (tmp_path / "tests").mkdir()
    marked = "pytestmark = pytest.mark.process\n"
    for name, long in (("known", ""), ("new", ""), ("long", "@pytest.mark.long\n")):
        file = tmp_path / "tests" / f"test_{name}.py"
        file.write_text(f"{marked}{long}def test_it(): pass\n")
    (tmp_path / "tests" / "test_in_process.py").touch()
    cpu_seconds.KEPT.write_text('{"tests/test_known.py": [9.0, 9.0]}')
    assert unrecorded() == ["tests/test_new.py"]


def test_slow_tests_are_those_that_compute_or_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_seconds, "SLOW", tmp_path / "tests" / "slow_tests.txt")
    (tmp_path / "tests").mkdir()
    for name in "ab":
        (tmp_path / "tests" / f"{name}.py").touch()
    cpu_seconds.SLOW.write_text("tests/a.py::was\ntests/b.py::kept\ntests/gone.py::one\n")
    costs = {"was": (0.01, 0.02), "computes": (0.1, 0.1), "waits[::x]": (0.0, 0.3)}
    keep_slow({f"tests/a.py::{name}": Cost(*cost) for name, cost in costs.items()})
    assert slow() == {"tests/b.py::kept", "tests/a.py::computes", "tests/a.py::waits[::x]"}


def test_the_tests_of_ci_stay_within_their_budget() -> None:
    """A test of another client or engine takes about 20 CPU seconds; its long form has the mark."""
    known, unknown = sum(cost.cpu for cost in kept().values()), unrecorded()
    assert known + len(unknown) * UNKNOWN.cpu <= BUDGET, (
        f"{known:.0f} recorded CPU seconds, and {UNKNOWN.cpu:.0f} for each of {unknown}: make some "
        "tests cheaper, or run 'make test-times' on an idle machine"
    )


def test_the_files_whose_times_are_kept_are_there() -> None:
    names = {*kept(), *(name.partition("::")[0] for name in slow())}
    assert not [name for name in names if not (ROOT / name).exists()]
