"""Long tests run file by file, those with the oldest result first, and each file's result is kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from tiers import long
from tiers.long import LongResult
from tiers.outcome import Failure, Outcome

ROOT = Path(__file__).parents[2]
FILES = ("tests/a.py", "tests/b.py", "tests/c.py")


class Runs:
    """Runs of pytest: in each file one test passes; `failing` are files with one that fails, `lost`
    files whose run is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing: set[str] = set()
        self.lost: set[str] = set()
        self.ran: list[str] = []
        monkeypatch.setattr(long, "run_pytest", self.run)

    def run(self, text: Path, arguments: list[str]) -> int:
        text.parent.mkdir(parents=True, exist_ok=True)
        if "--collect-only" in arguments:
            text.write_text("".join(f"{file}: 2\n" for file in FILES))
            return 0
        file, kind = arguments[-1], "long" if "long" in arguments else "examples"
        self.ran.append(f"{file} {kind}")
        if file in self.lost:
            return -9
        outcome = Outcome(passed=1)
        if file in self.failing:
            outcome.failures.append(Failure(f"{file}::{kind}", "call", "AssertionError", ""))
        option = next(each for each in arguments if each.startswith("--outcome="))
        Path(option.partition("=")[2]).write_bytes(msgspec.json.encode(outcome))
        return int(file in self.failing)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(long, "RESULT", tmp_path / "result.json")
    monkeypatch.setattr(long, "OUTPUT", tmp_path / "output")
    monkeypatch.setattr(long, "commit", lambda: "0123456789")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    return Runs(monkeypatch)


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["long", *arguments])
    return long.main()


def test_the_result_of_each_file_has_the_commit_and_what_failed(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failing, runs.lost = {"tests/b.py"}, {"tests/c.py"}
    assert main(monkeypatch) == 1
    kept = long.read_results()
    assert [(kept[file].passed, kept[file].failed) for file in FILES] == [
        (2, []),
        (2, ["tests/b.py::long", "tests/b.py::examples"]),
        (0, ["tests/c.py", "tests/c.py"]),
    ]
    assert {each.commit for each in kept.values()} == {"0123456789"}
    output = capsys.readouterr().out
    assert "FAILED: tests/b.py::long" in output
    assert output.endswith("3 of 3 files: 4 passed, 4 failed\n")


def test_files_without_a_result_run_first_then_the_oldest(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    dates = {"tests/a.py": "2026-02-01T00:00", "tests/b.py": "2026-01-01T00:00"}
    long.write_results({file: LongResult("0", date) for file, date in dates.items()})
    assert main(monkeypatch) == 0
    assert runs.ran == [
        f"{file} {kind}"
        for file in ("tests/c.py", "tests/b.py", "tests/a.py")
        for kind in ("long", "examples")
    ]
    assert all(long.read_results()[file].date > date for file, date in dates.items())


def test_no_file_begins_when_the_time_is_over(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(monkeypatch, "--seconds", "0") == 0
    assert not runs.ran and not long.RESULT.exists()
    assert capsys.readouterr().out == "0 of 3 files: 0 passed, 0 failed\n"


def test_the_last_results_are_of_files_that_are_there_and_have_no_failure() -> None:
    results = long.read_results()
    assert results, "run `make long`"
    assert not [file for file in results if not (ROOT / file).exists()]
    assert not [test for result in results.values() for test in result.failed]
