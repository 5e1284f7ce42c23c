"""A plugin of pytest that writes the outcome of a run as JSON: how many tests passed and were
skipped, each failure with its text, and the processes that were left behind."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from leftovers import LEFT

LONGEST_TEXT = 20_000  # characters of a failure


class Failure(msgspec.Struct, frozen=True):
    """A test that failed: its name, the phase (setup, call, teardown), a line, and the whole text.

    `line` is the same for all tests that fail because a fixture that they share did."""

    test: str
    phase: str
    line: str
    text: str


class Outcome(msgspec.Struct):
    """The outcome of one run of pytest. `left`: the leftover processes, as `pid command line`."""

    passed: int = 0
    skipped: int = 0
    failures: list[Failure] = []
    left: list[str] = []


class OutcomeWriter:
    """Collect the reports of all workers, and write the outcome at the end of the run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._outcome = Outcome()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcome.failures.append(_failure(report))
        elif report.skipped:
            self._outcome.skipped += 1
        elif report.when == "call":
            self._outcome.passed += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            text = str(report.longrepr)[-LONGEST_TEXT:]
            self._outcome.failures.append(Failure(report.nodeid, "collect", "", text))

    @pytest.hookimpl(wrapper=True)  # leftovers are looked for by then
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        yield
        self._outcome.left = session.config.stash.get(LEFT, [])
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(msgspec.json.encode(self._outcome))


def _failure(report: pytest.TestReport) -> Failure:
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    line = str(report.longrepr).strip().rpartition("\n")[2] if crash is None else crash.message
    return Failure(
        report.nodeid,
        report.when or "",
        line.partition("\n")[0],
        report.longreprtext[-LONGEST_TEXT:],
    )


def read_outcome(path: Path) -> Outcome:
    """Read what a run wrote. Raises FileNotFoundError where it ended before that."""
    return msgspec.json.decode(path.read_bytes(), type=Outcome)
