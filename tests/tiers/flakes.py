"""Tests that failed and passed when they were repeated: a list of defects to find.

A run adds them to `.build/flakes.json`. `make flakes` merges them into `tests/flakes.json`, which
is committed, and writes the table of `docs/design/flaky-tests.md`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LOCAL = Path(".build/flakes.json")
KEPT = ROOT / "tests" / "flakes.json"
PAGE = ROOT / "docs" / "design" / "flaky-tests.md"
TEXT_KEPT = 2_000  # characters of a first failure that are committed
HEAD = """# Flaky tests

Tests of processes that failed in a run and passed when they were repeated alone. Each is a defect, of
the test or of the product, that is not found yet. Remove a line from `tests/flakes.json` with the commit that
repairs its cause. `make flakes` adds the failures of this machine's runs and writes this page.

"""
NONE = "No test failed and passed when repeated.\n"
TABLE = "| test | times | last on commit | failure |\n|---|---|---|---|\n"


class Flake(msgspec.Struct, frozen=True):
    """A test that failed once: on which commit, in which words, and the end of the whole text."""

    test: str
    commit: str
    line: str
    text: str


def read_flakes(path: Path) -> list[Flake]:
    return msgspec.json.decode(path.read_bytes(), type=list[Flake]) if path.exists() else []


def write_flakes(path: Path, flakes: list[Flake]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(flakes), indent=1) + b"\n")


def merge(kept: list[Flake], found: list[Flake]) -> list[Flake]:
    """Merge the kept and the found, each once, in the order of the tests' names."""
    shortened = [msgspec.structs.replace(each, text=each.text[-TEXT_KEPT:]) for each in found]
    return sorted(dict.fromkeys([*kept, *shortened]), key=lambda each: each.test)


def page_of(flakes: list[Flake]) -> str:
    """Return the page with the table."""
    by_test: dict[str, list[Flake]] = defaultdict(list)
    for each in flakes:
        by_test[each.test].append(each)
    rows = [
        f"| `{test}` | {len(some)} | `{some[-1].commit}` | {_cell(some[-1].line)} |\n"
        for test, some in by_test.items()
    ]
    return HEAD + (TABLE + "".join(rows) if rows else NONE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")[:160]


def main() -> int:
    flakes = merge(read_flakes(KEPT), read_flakes(ROOT / LOCAL))
    write_flakes(KEPT, flakes)
    PAGE.write_text(page_of(flakes))
    (ROOT / LOCAL).unlink(missing_ok=True)
    print(f"{len(flakes)} failures in {KEPT.relative_to(ROOT)}; wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
