"""A quarantine is short, has reasons, and ends after 14 days."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
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
