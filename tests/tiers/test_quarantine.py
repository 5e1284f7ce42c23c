"""A quarantine is short, has reasons, and ends after 14 days."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
from pathlib import Path

import pytest
from tiers import quarantine
from tiers.quarantine import FILE, find_faults, read_entries

TODAY = dt.date(2026, 11, 29)
HERE = "tests/tiers/test_quarantine.py::test_a_test_that_is_there"
ROOT = Path(__file__).parents[2]


def test_a_test_that_is_there() -> None:
    assert (
        find_faults(read_entries(f"# text\n\n2026-11-15 {HERE}[x-1] | a port"), TODAY, ROOT) == []
    )


def test_an_entry_older_than_14_days_is_a_fault() -> None:
    (fault,) = find_faults(read_entries(f"2026-11-14 {HERE} | a port"), TODAY, ROOT)
    assert fault == f"{HERE} is in quarantine since 2026-11-14, more than 14 days: repair it"


@pytest.mark.process
@pytest.mark.parametrize(("committed", "code"), [("2026-11-29", 0), ("2026-11-30", 1)])
def test_the_day_is_that_on_which_head_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: str, code: int
) -> None:
    file = tmp_path / "tests" / "quarantine.txt"
    file.parent.mkdir()
    file.write_text("2026-11-15 tests/test_x.py::test_x | a port\n")
    (tmp_path / "tests" / "test_x.py").write_text("def test_x(): pass\n")
    monkeypatch.setattr(quarantine, "FILE", file)
    assert quarantine.main() == 0, "outside a repository no day is known"
    author = {"EMAIL": "a@example.com", "GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a"}
    dates = {
        "GIT_AUTHOR_DATE": "2027-01-01T12:00:00Z",
        "GIT_COMMITTER_DATE": f"{committed}T12:00:00Z",
    }
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "text")):
        command = ["git", "-C", str(tmp_path), *words]
        subprocess.run(command, check=True, env=os.environ | author | dates)
    assert quarantine.main() == code


@pytest.mark.parametrize("test", ["tests/none.py::test_a", "tests/conftest.py::test_a"])
def test_a_test_that_is_gone_is_a_fault(test: str) -> None:
    (fault,) = find_faults(read_entries(f"2026-11-29 {test} | a port"), TODAY, ROOT)
    assert fault == f"{test}: there is no such test"


def test_more_than_ten_are_a_fault() -> None:
    text = f"2026-11-29 {HERE} | a port\n" * 11
    (fault,) = find_faults(read_entries(text), TODAY, ROOT)
    assert fault == "11 tests are in quarantine, at most 10 may be"


@pytest.mark.parametrize(
    "line", [HERE, f"2026-11-31 {HERE} | x", f"2026-11-29 {HERE}", "2026-11-29 tests/a.py | x"]
)
def test_a_line_without_a_date_a_test_or_a_reason_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected 'YYYY-MM-DD tests/FILE::TEST \| REASON', got"):
        read_entries(line)


def test_the_file_can_be_read() -> None:
    assert len(read_entries(FILE.read_text())) <= 10
