"""Both tiers run at once, and a failure of either fails the whole."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import psutil
import pytest
from polling import wait_until
from product import alive
from tiers.both import NICENESS, OUTPUT, Gate, report_of
from tiers.planted import START, plant, run_python

OUTPUT_OF_GATE = """....... [ 50%]
....... [100%]
=========================== short test summary info ============================
SKIPPED [1] tests/test_x.py:1: no program
14 passed, 1 skipped in 0.10s
"""


def test_of_a_gate_that_passed_the_summary_is_printed() -> None:
    assert report_of(OUTPUT_OF_GATE, failed=False).startswith("====")
    assert report_of("...\n3 passed in 0.10s\n", failed=False) == "3 passed in 0.10s"
    assert report_of("", failed=False) == ""


def test_of_a_gate_that_failed_all_is_printed() -> None:
    assert report_of(OUTPUT_OF_GATE, failed=True) == OUTPUT_OF_GATE.rstrip()


@pytest.mark.process
@pytest.mark.parametrize(("gate_passes", "processes_pass"), [(False, True), (True, False)])
def test_a_failure_of_either_tier_fails_the_whole(
    tmp_path: Path, gate_passes: bool, processes_pass: bool
) -> None:
    plant(
        tmp_path,
        f"@pytest.mark.process\ndef test_processes():\n    {START}\n    assert {processes_pass}\n"
        f"def test_gate():\n    assert {gate_passes}, 'a defect'\n",
    )
    gate = shlex.join([sys.executable, "-m", "pytest", "-q", "-m", "not process"])
    done = run_python(tmp_path, "-m", "tiers.both", gate, "-q", "-n0")
    assert done.returncode == 1, done.stdout + done.stderr
    *_, gate_said, processes_said = done.stdout.splitlines()
    assert gate_said == f"gate: {'passed' if gate_passes else 'FAILED (1)'}"
    assert processes_said == f"processes: {'passed' if processes_pass else 'FAILED (1)'}"
    assert ("a defect" in done.stdout) is not gate_passes
    assert "1 " in (tmp_path / OUTPUT).read_text().splitlines()[-1]


@pytest.mark.process
def test_the_session_of_the_gate_has_a_low_priority_and_ends_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pid_file = tmp_path / "pid"
    command = ["sh", "-c", "sleep 600 & echo $! > new; mv new pid; wait"]
    with Gate(command):
        wait_until(pid_file.exists, what="the gate to start its child")
        child = psutil.Process(int(pid_file.read_text()))
        assert child.nice() >= NICENESS
        group = Path(f"/proc/{child.pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(f"nice {NICENESS}\n")
    wait_until(lambda: not alive(child), what="the child to end with the gate")


@pytest.mark.process
def test_what_failed_is_repeated_when_the_gate_has_ended(tmp_path: Path) -> None:
    plant(
        tmp_path,
        f"""
from pathlib import Path
import os

@pytest.mark.process
def test_processes():
    {START}
    ended = Path("ended").exists()
    Path("began").touch()
    assert ended, "the gate is under way"

def test_gate():
    while not Path("began").exists():
        os.sched_yield()
    Path("ended").touch()
""",
    )
    gate = shlex.join([sys.executable, "-m", "pytest", "-q", "-m", "not process"])
    done = run_python(tmp_path, "-m", "tiers.both", gate, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    *_, flaky, _, _, gate_said, processes_said = done.stdout.splitlines()
    assert flaky.startswith("FLAKY: test_planted.py::test_processes")
    assert (gate_said, processes_said) == ("gate: passed", "processes: passed")
