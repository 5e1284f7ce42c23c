"""Run the tests of processes, and repeat what failed once, alone: `python -m tiers.processes
[ARGUMENTS OF PYTEST]`.

At most three failures are repeated in a run; tests that fail because one shared fixture failed count
as one. What passes then is reported in the last lines and in `.build/flakes.json`, and the run
passes. A fourth failure, one that repeats, or a leftover process fails it. A test in quarantine
decides nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from tiers.flakes import LOCAL, Flake, read_flakes, write_flakes
from tiers.marked_files import OPTION
from tiers.outcome import Failure, Outcome, read_outcome
from tiers.quarantine import FILE, read_entries

EXPRESSION = "(process or spark or conformance) and not long"
REPEATS_MAX = 3
REPORT = Path(".build/processes-outcome.json")
AGAIN = Path(".build/repeated-outcome.json")
TAKE_VALUES = {"-k", "-m", "-n", "-p"}  # options of pytest whose value is the next argument
# a worker waits two thirds of its time: for a process to start, a leader to be missed, a client's
# poll
WORKERS_PER_CORE = 2


class Unit(NamedTuple):
    """Failures of one cause: those of one test, or of the tests whose shared fixture failed."""

    tests: tuple[str, ...]
    first: Failure


class Verdict(NamedTuple):
    """The result of a run: units that passed on repetition, that failed again, that were not
    repeated, and failures in quarantine."""

    flaky: list[Unit]
    failed: list[Unit]
    ignored: list[Failure]


def units_of(failures: list[Failure]) -> list[Unit]:
    """Group failures by cause."""
    found: dict[tuple[str, str], list[Failure]] = {}
    for each in failures:
        file = each.test.partition("::")[0]
        key = (file, each.line) if each.phase == "setup" and each.line else (each.test, "")
        found.setdefault(key, []).append(each)
    return [
        Unit(tuple(dict.fromkeys(each.test for each in some)), some[0]) for some in found.values()
    ]


def judge(
    outcome: Outcome, quarantined: frozenset[str], repeat: Callable[[tuple[str, ...]], bool]
) -> Verdict:
    """Repeat what failed, if it is not too much."""
    ignored = [each for each in outcome.failures if each.test in quarantined]
    units = units_of([each for each in outcome.failures if each.test not in quarantined])
    if len(units) > REPEATS_MAX or any(unit.first.phase == "collect" for unit in units):
        return Verdict([], units, ignored)
    verdict = Verdict([], [], ignored)
    for unit in units:
        (verdict.flaky if repeat(unit.tests) else verdict.failed).append(unit)
    return verdict


class Repeat:
    """Run some tests once more, with nothing beside them; true where all pass. `wait_alone` returns
    when what runs beside has ended."""

    def __init__(self, arguments: list[str], wait_alone: Callable[[], object]) -> None:
        self._arguments, self._wait_alone = arguments, wait_alone

    def __call__(self, tests: tuple[str, ...]) -> bool:
        self._wait_alone()
        print(f"\nREPEATED ALONE: {', '.join(tests)}", flush=True)
        AGAIN.unlink(missing_ok=True)
        status = run_pytest(AGAIN, ["-n", "0", *self._arguments, *tests])
        return status == 0 and read_outcome(AGAIN).passed == len(tests)


def without_tests(arguments: list[str]) -> list[str]:
    """Return the options among arguments of pytest, with their values."""
    return [
        each
        for before, each in pairwise(["", *arguments])
        if before in TAKE_VALUES or not Path(each.partition("::")[0]).exists()
    ]


def run_pytest(report: Path, arguments: list[str]) -> int:
    """Run pytest in a process of its own; return its exit code."""
    command = [sys.executable, "-m", "pytest", f"--outcome={report}", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env=environment, check=False).returncode


def commit() -> str:
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def tell(outcome: Outcome, verdict: Verdict) -> None:
    """Print the last lines of a run."""
    for process in outcome.left:
        print(f"LEFT BEHIND: {process}")
    for failure in verdict.ignored:
        print(f"IN QUARANTINE: {failure.test} failed: {failure.line}")
    for unit in verdict.flaky:
        for test in unit.tests:
            print(f"FLAKY: {test} failed and passed when repeated: {unit.first.line}")
    if len(verdict.failed) > REPEATS_MAX:
        print(f"{len(verdict.failed)} failures: at most {REPEATS_MAX} are repeated, so none was")
    for unit in verdict.failed:
        for test in unit.tests:
            print(f"FAILED: {test}: {unit.first.line}")
    if verdict.flaky:
        print(
            f"tests that are flaky are defects: {LOCAL} has their failures, `make flakes` keeps them"
        )
    failed = sum(len(unit.tests) for unit in verdict.failed)
    passed = outcome.passed + sum(len(unit.tests) for unit in verdict.flaky)
    print(f"{passed} passed, {failed} failed, {outcome.skipped} skipped", flush=True)


def run(
    arguments: list[str],
    wait_alone: Callable[[], object] = lambda: None,
    tell_before: Callable[[], object] = lambda: None,
) -> int:
    """Run the tier with these arguments of pytest; return the exit code. `tell_before` prints what
    is to stand above the last lines."""
    REPORT.unlink(missing_ok=True)
    count = (os.cpu_count() or 1) * WORKERS_PER_CORE
    workers = ["-n", str(count), "--dist", "loadfile", "--no-loadscope-reorder"]
    status = run_pytest(REPORT, [*workers, OPTION, "-m", EXPRESSION, *arguments])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not REPORT.exists():
        tell_before()
        return status or 1
    outcome = read_outcome(REPORT)
    entries = read_entries(FILE.read_text()) if FILE.exists() else []
    repeat = Repeat(without_tests(arguments), wait_alone)
    verdict = judge(outcome, frozenset(each.test for each in entries), repeat)
    found = [
        Flake(test, commit(), unit.first.line, unit.first.text)
        for unit in verdict.flaky
        for test in unit.tests
    ]
    if found:
        write_flakes(LOCAL, [*read_flakes(LOCAL), *found])
    tell_before()
    tell(outcome, verdict)
    unexplained = status and not outcome.failures
    return 1 if verdict.failed or outcome.left or unexplained else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
