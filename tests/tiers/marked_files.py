"""A faster collection of the tier of processes: only of files that name one of its marks.

To import all files of tests takes a worker longer than its share of many of them. That no mark comes
from elsewhere is checked where all files are collected, in the gate.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from tiers.process_watch import MARKS, is_of_processes

OPTION = "--marked-files"
NAMED = re.compile(rf"\bmark\.({'|'.join(sorted(MARKS))})\b")


@functools.cache
def names_mark(file: Path) -> bool:
    """Report whether a file or a conftest.py above it names a mark for processes."""
    conftests = (folder / "conftest.py" for folder in file.parents)
    return any(
        NAMED.search(each.read_text("utf-8")) for each in (file, *conftests) if each.exists()
    )


class MarkedFiles:
    """Leave out the files that name no mark."""

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        is_file = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
        return True if is_file and not names_mark(collection_path) else None


class NoOtherMarks:
    """Check that the tier of processes leaves out no test of its own."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if hidden := {item.path for item in items if is_of_processes(item)} - set(
            filter(names_mark, {item.path for item in items})
        ):
            names = ", ".join(sorted(path.name for path in hidden))
            raise pytest.UsageError(
                f"{names}: tests have a mark for processes that their files and conftest.py do not "
                "name, so `make processes` would leave them out: write the mark there"
            )
