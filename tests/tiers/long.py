"""Run the tests that CI leaves out, and keep the results: `make long`, or `make long SECONDS=3600
ARGS=tests/raft`.

They run file by file, one file a core: first the files without a result, then those whose result
is the oldest. So a long run can be divided: with `--seconds` no file begins after that time.
`tests/long_result.json` says of each file when and on which commit it ran last, how many tests
passed, and which failed. The output of each file is in `.build/long/`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from tiers.outcome import Failure, Outcome, read_outcome
from tiers.processes import commit

RESULT = Path(__file__).parents[1] / "long_result.json"
OUTPUT = Path(".build/long")
SELECTIONS = (["-m", "long"], ["-m", "hypothesis and not long", "--hypothesis-profile=long"])
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
COUNTED = re.compile(r"(?m)^(tests/\S+\.py): \d+$")  # a line of `pytest --collect-only -qq`


class LongResult(msgspec.Struct):
    """The last result of the long tests of a file. `date`: with the time of its end, UTC."""

    commit: str
    date: str
    seconds: int = 0
    passed: int = 0
    skipped: int = 0
    failed: list[str] = []


class LongRun:
    """Run files, one by one on each lane, and write the results after each file."""

    def __init__(self, seconds: float) -> None:
        self.results = read_results()
        self._deadline = time.monotonic() + seconds
        self._lock = threading.Lock()

    def run(self, file: str) -> LongResult | None:
        """Run the long tests of a file; None where the time was over before."""
        began = time.monotonic()
        if began >= self._deadline:
            return None
        result = LongResult(commit(), "")
        for number, selection in enumerate(SELECTIONS):
            outcome = _outcome(file, number, selection)
            result.passed += outcome.passed
            result.skipped += outcome.skipped
            result.failed += [each.test for each in outcome.failures]
        result.seconds = round(time.monotonic() - began)
        result.date = dt.datetime.now(dt.UTC).isoformat(timespec="minutes")
        with self._lock:
            self.results[file] = result
            write_results(self.results)
            print(
                f"{file}: {result.passed} passed, {result.skipped} skipped, {result.seconds} s"
                + "".join(f"\nFAILED: {test}" for test in result.failed),
                flush=True,
            )
        return result


def _outcome(file: str, number: int, selection: list[str]) -> Outcome:
    """Run a selection of a file's tests. A run that ends otherwise than with tests that passed or
    failed counts as a failure of the file."""
    report, text = (
        OUTPUT / f"{file.replace('/', '.')}.{number}.{kind}" for kind in ("json", "txt")
    )
    report.unlink(missing_ok=True)
    ended = run_pytest(text, [f"--outcome={report}", *selection, file])
    outcome = read_outcome(report) if report.exists() else Outcome()
    if ended not in ENDED and not outcome.failures:
        line = f"pytest ended with {ended}: see {text}"
        outcome.failures.append(Failure(file, "run", line, line))
    return outcome


def run_pytest(text: Path, arguments: list[str]) -> int:
    """Run pytest in a process of its own, its output to a file; return its exit code."""
    text.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with text.open("wb") as output:
        return subprocess.run(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode


def read_results() -> dict[str, LongResult]:
    if not RESULT.exists():
        return {}
    return msgspec.json.decode(RESULT.read_bytes(), type=dict[str, LongResult])


def write_results(results: dict[str, LongResult]) -> None:
    ordered = dict(sorted(results.items()))
    RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def files_of(paths: list[str]) -> list[str]:
    """Return the files of these paths (none: all) that have long tests."""
    found: set[str] = set()
    for selection in SELECTIONS:
        text = OUTPUT / "collected.txt"
        run_pytest(text, ["--collect-only", "-qq", *selection, *paths])
        found |= {*COUNTED.findall(text.read_text())}
    return sorted(found)


def in_order(files: list[str], results: dict[str, LongResult]) -> list[str]:
    """Order files: those without a result, then the oldest result first."""
    return sorted(files, key=lambda file: results[file].date if file in results else "")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tiers.long", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("paths", nargs="*", help="files or folders of tests (default: all)")
    options = parser.parse_args()
    run = LongRun(options.seconds)
    files = in_order(files_of(options.paths), run.results)
    with ThreadPoolExecutor(os.cpu_count() or 1) as lanes:
        ran = [result for result in lanes.map(run.run, files) if result is not None]
    failed = sum(len(result.failed) for result in ran)
    print(
        f"{len(ran)} of {len(files)} files: {sum(result.passed for result in ran)} passed, "
        f"{failed} failed"
    )
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
