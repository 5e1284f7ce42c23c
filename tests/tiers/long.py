"""Run the tests that CI leaves out, and keep the result: `make long`.

`tests/long_result.json` says on which commit and day they ran last, how many passed, and which failed.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tiers.outcome import read_outcome
from tiers.processes import commit, run_pytest

RESULT = Path(__file__).parents[1] / "long_result.json"
REPORT = Path(".build/long-outcome.json")
RUNS = (["-m", "long"], ["-m", "hypothesis and not long", "--hypothesis-profile=long"])


class LongResult(msgspec.Struct):
    """The result of the last run."""

    commit: str
    date: str
    seconds: int = 0
    passed: int = 0
    skipped: int = 0
    failed: list[str] = []


def main() -> int:
    arguments = sys.argv[1:]
    result = LongResult(commit(), dt.datetime.now(dt.UTC).date().isoformat())
    began, status = time.monotonic(), 0
    workers = ["-n", str(os.cpu_count() or 1), "--dist", "loadfile", "--no-loadscope-reorder"]
    for some in RUNS:
        REPORT.unlink(missing_ok=True)
        ended = run_pytest(REPORT, [*workers, *some, *arguments])
        none = arguments and ended == pytest.ExitCode.NO_TESTS_COLLECTED
        status = status if none else ended or status
        if REPORT.exists():
            outcome = read_outcome(REPORT)
            result.passed += outcome.passed
            result.skipped += outcome.skipped
            result.failed += [each.test for each in outcome.failures]
    result.seconds = round(time.monotonic() - began)
    if not arguments:  # all of them ran
        RESULT.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
