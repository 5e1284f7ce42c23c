"""Tests of processes that fail by chance and are being repaired: they run, but their failures do
not decide a run.

`tests/quarantine.txt` has at most 10 lines, each with a date, the name of a test and a reason. A
line that is older than 14 days fails the gate: repair the test or take it out. `python -m
tiers.quarantine` checks the file against the committer date of HEAD.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "quarantine.txt"
ENTRIES_MAX = 10
DAYS_MAX = 14


class Entry(NamedTuple):
    """A test in quarantine, the day on which it came there, and why."""

    since: dt.date
    test: str
    reason: str


def read_entries(text: str) -> list[Entry]:
    """Return the entries of a file. Raises ValueError for a line that is none."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_entry(line) for line in lines]


def _entry(line: str) -> Entry:
    date, _, rest = line.partition(" ")
    test, separator, reason = rest.partition(" | ")
    try:
        since = dt.date.fromisoformat(date)
    except ValueError:
        separator = ""
    if not separator or "::" not in test or not reason.strip():
        raise ValueError(f"expected 'YYYY-MM-DD tests/FILE::TEST | REASON', got {line!r}")
    return Entry(since, test.strip(), reason.strip())


def find_faults(entries: list[Entry], today: dt.date, root: Path) -> list[str]:
    """Return the faults of the quarantine on this day."""
    faults = [
        f"{entry.test} is in quarantine since {entry.since}, more than {DAYS_MAX} days: repair it"
        for entry in entries
        if (today - entry.since).days > DAYS_MAX
    ]
    faults += [
        f"{entry.test}: there is no such test" for entry in entries if not _exists(entry, root)
    ]
    if len(entries) > ENTRIES_MAX:
        faults.append(f"{len(entries)} tests are in quarantine, at most {ENTRIES_MAX} may be")
    return faults


def _exists(entry: Entry, root: Path) -> bool:
    file, _, name = entry.test.partition("::")
    path, function = root / file, name.rpartition("::")[2].partition("[")[0]
    return path.exists() and f"def {function}(" in path.read_text()


def date_of_head(root: Path) -> dt.date | None:
    """Return the committer date of HEAD, or None outside a repository."""
    command = ["git", "-C", str(root), "show", "-s", "--format=%cs", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return dt.date.fromisoformat(done.stdout.strip()) if done.returncode == 0 else None


def main() -> int:
    root = FILE.parents[1]
    today = date_of_head(root)
    if today is None:
        print("quarantine: not a git repository, so the dates are not checked")
    faults = find_faults(read_entries(FILE.read_text()), today or dt.date.min, root)
    for fault in faults:
        print(f"quarantine: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
