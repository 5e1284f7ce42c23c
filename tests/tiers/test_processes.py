"""Tests of processes that failed are repeated once, alone, at most three; tests without processes
never are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tiers.flakes import LOCAL, read_flakes
from tiers.outcome import Failure, Outcome
from tiers.planted import START, plant, run_python
from tiers.processes import Verdict, judge, units_of, without_tests

FLAKY = f"""
import subprocess
from pathlib import Path
def fails_once(name):
    {START}
    first = Path(name)
    if not first.exists():
        first.touch()
        raise AssertionError("the port was taken")
"""


def failure(test: str, phase: str = "call", line: str = "AssertionError") -> Failure:
    return Failure(f"tests/{test}", phase, line, "")


def judged(failures: list[Failure], *passing: str, quarantined: str = "") -> tuple[Verdict, int]:
    """The verdict when these tests pass when they are repeated, and how many were repeated."""
    repeated = []

    def repeat(tests: tuple[str, ...]) -> bool:
        repeated.append(tests)
        return all(each in passing for each in tests)

    verdict = judge(Outcome(failures=failures), frozenset({quarantined}), repeat)
    return verdict, len(repeated)


def test_tests_that_fail_for_one_shared_fixture_are_one_failure() -> None:
    refused = [failure(f"a.py::{name}", "setup", "refused") for name in "xyz"]
    units = units_of([*refused, failure("b.py::x", "setup", "refused"), failure("a.py::w")])
    assert [len(unit.tests) for unit in units] == [3, 1, 1]


def test_the_failures_of_a_test_in_call_and_teardown_are_one() -> None:
    units = units_of([failure("a.py::x"), failure("a.py::x", "teardown")])
    assert [unit.tests for unit in units] == [("tests/a.py::x",)]


def test_three_failures_are_repeated_and_one_that_fails_again_fails_the_run() -> None:
    failures = [failure(f"a.py::{name}") for name in "xyz"]
    verdict, repeated = judged(failures, "tests/a.py::x", "tests/a.py::z")
    assert repeated == 3
    assert [unit.tests for unit in verdict.flaky] == [("tests/a.py::x",), ("tests/a.py::z",)]
    assert [unit.tests for unit in verdict.failed] == [("tests/a.py::y",)]


def test_of_four_failures_none_is_repeated() -> None:
    failures = [failure(f"a.py::{name}") for name in "wxyz"]
    verdict, repeated = judged(failures, *(each.test for each in failures))
    assert repeated == 0
    assert len(verdict.failed) == 4


def test_a_file_that_cannot_be_collected_is_not_repeated() -> None:
    verdict, repeated = judged([failure("a.py", "collect")], "tests/a.py")
    assert repeated == 0
    assert len(verdict.failed) == 1


def test_a_failure_in_quarantine_decides_nothing() -> None:
    failures = [failure(f"a.py::{name}") for name in "wxyz"]
    verdict, repeated = judged(
        failures, *(each.test for each in failures[1:]), quarantined="tests/a.py::w"
    )
    assert repeated == 3
    assert verdict.ignored == failures[:1]
    assert not verdict.failed


def test_options_are_repeated_with_their_values_and_without_the_tests() -> None:
    here = f"{__file__}::test_x[tests]"
    assert without_tests(["-q", "-k", __file__, here, "--pdb"]) == ["-q", "-k", __file__, "--pdb"]


@pytest.mark.process
def test_a_flaky_test_of_processes_is_repeated_reported_and_passes(tmp_path: Path) -> None:
    plant(
        tmp_path,
        f"{FLAKY}\n@pytest.mark.process\ndef test_flaky():\n    fails_once('x')\n"
        f"@pytest.mark.process\ndef test_sound():\n    {START}\n"
        "def test_of_the_other_tier():\n    raise AssertionError\n",
    )
    done = run_python(tmp_path, "-m", "tiers.processes", "-q", "-k", "flaky or sound", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    *_, flaky, advice, last = done.stdout.splitlines()
    assert flaky == (
        "FLAKY: test_planted.py::test_flaky failed and passed when repeated: "
        "AssertionError: the port was taken"
    )
    assert "make flakes" in advice
    assert last == "2 passed, 0 failed, 0 skipped"
    (kept,) = read_flakes(tmp_path / LOCAL)
    assert (kept.test, kept.line) == (
        "test_planted.py::test_flaky",
        "AssertionError: the port was taken",
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        (
            "@pytest.mark.process\ndef test_broken():\n    {start}\n    assert 0",
            "1 failed, 0 skipped",
        ),
        ("import no_such_module\npytestmark = pytest.mark.process", "1 error"),
    ],
    ids=["again", "uncollected"],
)
def test_what_fails_again_fails_the_run(tmp_path: Path, tests: str, expected: str) -> None:
    plant(tmp_path, tests.format(start=START))
    done = run_python(tmp_path, "-m", "tiers.processes", "-q", "-n0")
    assert done.returncode != 0, done.stdout
    assert not (tmp_path / LOCAL).exists()
    assert expected in done.stdout, done.stdout


@pytest.mark.process
def test_a_process_left_behind_fails_a_run_whose_flaky_test_passes_again(tmp_path: Path) -> None:
    leaves = "sleep 600 > /dev/null 2>&1 & echo $! > left"
    plant(
        tmp_path,
        f"{FLAKY}\nimport leftovers\nleftovers.GONE_SECONDS = 0.5\n"
        "@pytest.mark.process\ndef test_flaky():\n    fails_once('x')\n"
        "@pytest.mark.process\ndef test_leaves():\n"
        f"    subprocess.run(['sh', '-c', {leaves!r}], start_new_session=True, check=True)\n",
    )
    done = run_python(tmp_path, "-m", "tiers.processes", "-q", "-n0", "-p", "leftovers", ".")
    left = int((tmp_path / "left").read_text())
    os.kill(left, signal.SIGKILL)
    assert done.returncode == 1, done.stdout + done.stderr
    behind, flaky, _, last = done.stdout.splitlines()[-4:]
    assert behind == f"LEFT BEHIND: {left} sleep 600"
    assert flaky.startswith("FLAKY: test_planted.py::test_flaky")
    assert last == "2 passed, 0 failed, 0 skipped"


@pytest.mark.process
def test_a_flaky_test_without_processes_fails_the_gate(tmp_path: Path) -> None:
    plant(tmp_path, FLAKY.replace(START, "pass") + "\ndef test_flaky():\n    fails_once('x')\n")
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (expression,) = (
        line.partition(" = ")[2] for line in makefile.splitlines() if line.startswith("IN_PROCESS")
    )
    done = run_python(tmp_path, "-m", "pytest", "-q", "-m", expression)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


@pytest.mark.process
def test_a_mark_that_the_tier_of_processes_would_not_see_fails_the_gate(tmp_path: Path) -> None:
    plant(tmp_path, f"import helper\n@helper.MARK\ndef test_some():\n    {START}\n")
    (tmp_path / "helper.py").write_text("import pytest\nMARK = pytest.mark.process\n")
    done = run_python(tmp_path, "-m", "pytest", "-q", "-m", "not process")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "test_planted.py: tests have a mark for processes" in done.stderr + done.stdout
