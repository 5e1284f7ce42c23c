"""A run of the long tests leaves its result; a run of some of them leaves none."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from tiers import long
from tiers.outcome import Failure, Outcome


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the result, of runs in which one test passes and one fails."""
    monkeypatch.setattr(long, "RESULT", tmp_path / "result.json")
    monkeypatch.setattr(long, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr(long, "run_pytest", failing_run)
    monkeypatch.setattr(long, "commit", lambda: "0123456789")
    return tmp_path / "result.json"


def failing_run(report: Path, arguments: list[str]) -> int:
    kind = "long" if "long" in arguments else "hypothesis"
    failure = Failure(f"tests/a.py::{kind}", "call", "AssertionError", "")
    report.write_bytes(msgspec.json.encode(Outcome(passed=1, failures=[failure])))
    return pytest.ExitCode.TESTS_FAILED


def test_the_result_has_the_commit_and_what_failed(
    result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["long"])
    assert long.main() == pytest.ExitCode.TESTS_FAILED
    kept = msgspec.json.decode(result.read_bytes(), type=long.LongResult)
    assert (kept.passed, kept.failed) == (2, ["tests/a.py::long", "tests/a.py::hypothesis"])
    assert kept.commit == "0123456789"


@pytest.mark.parametrize(("code", "status"), [(5, 0), (1, 1)])
def test_a_run_of_some_tests_leaves_no_result(
    result: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["long", "tests/a.py"])
    monkeypatch.setattr(long, "run_pytest", lambda report, arguments: code)
    assert long.main() == status
    assert not result.exists()
