"""What CI runs, in tiers with a budget each, and what a run of it took: `python -m chaos.tiers
junit.xml` writes both to docs/reliability.md.

`make test ARGS="--junitxml=junit.xml"` leaves that file. A test is of the first tier that it fits;
its mark is told by tests/conftest.py.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

import msgspec


class Tier(msgspec.Struct, frozen=True):
    """Tests with that mark (`@spark`), or in files that fit a pattern. `minutes`: of a whole run on
    two cores, at most."""

    what: str
    minutes: float
    tests: tuple[str, ...]


TIERS = (
    Tier("Spark: tables read and written by a JVM", 2.25, ("@spark",)),
    Tier(
        "conformance: the official test suite and the official clients",
        1.25,
        ("@conformance", "tests/clients/*"),
    ),
    Tier("chaos: each kind of fault, on real processes", 0.25, ("tests/chaos/*",)),
    Tier("mutations of the Raft implementation and of whole nodes", 0.5, ("tests/*mutants*",)),
    Tier(
        "simulation: fixed seeds, seeds that failed before, one seed in two "
        "processes; cluster scenarios",
        0.5,
        ("tests/replica/*",),
    ),
    Tier("processes: nodes, clusters and tools run as real processes", 3.5, ("@process",)),
    Tier("Raft: scripted scenarios", 0.25, ("tests/raft/*",)),
    Tier("unit tests, including file and wire formats", 1.5, ("tests/*",)),
)


class Took(msgspec.Struct):
    """A tier in one run. `seconds` of all its tests, one after the other."""

    what: str
    tests: int = 0
    seconds: float = 0.0


class Run(msgspec.Struct, kw_only=True):
    """`seconds` from the beginning to the end; tests run side by side."""

    date: str
    machine: str
    seconds: float
    tiers: list[Took]

    def minutes(self, took: Took) -> float:
        """The tier's part of the run, by the time that its tests took."""
        return self.seconds / 60 * took.seconds / (sum(tier.seconds for tier in self.tiers) or 1.0)


def tier_of(path: str, marks: Sequence[str] = ()) -> Tier:
    """`path` is from the root of the repository."""
    names = [path, *(f"@{mark}" for mark in marks)]
    return next(
        tier
        for tier in TIERS
        if any(fnmatch(name, pattern) for pattern in tier.tests for name in names)
    )


def measured(junit: Path, machine: str) -> Run:
    """Of a report of a whole run, or of parts of it. Raises ValueError where it is none of this
    repository's tests."""
    (suite,) = ET.parse(junit).getroot().iter("testsuite")
    tiers = {tier.what: Took(tier.what) for tier in TIERS}
    for case in suite.iter("testcase"):
        place = case.get("classname", "").split(".")
        if place[0] != "tests":
            raise ValueError(
                f"{case.get('classname')} is not in tests/: run pytest in the root of the "
                "repository"
            )
        module = next(number for number, part in enumerate(place) if part.startswith("test_")) + 1
        marks = [
            found.get("value", "") for found in case.iter("property") if found.get("name") == "mark"
        ]
        took = tiers[tier_of("/".join(place[:module]) + ".py", marks).what]
        took.tests += 1
        took.seconds += float(case.get("time", 0))
    return Run(
        date=suite.get("timestamp", "")[:10],
        machine=machine,
        seconds=float(suite.get("time", 0)),
        tiers=list(tiers.values()),
    )


def table(run: Run | None) -> str:
    """As docs/reliability.md has it."""
    took = {} if run is None else {tier.what: tier for tier in run.tiers}
    rows = [
        "| tier | tests | selected by | budget, minutes | measured, minutes |",
        "|---|---|---|---|---|",
    ]
    for tier in TIERS:
        where = ", ".join(
            f"`{each.removeprefix('@')}`" if each[0] != "@" else f"mark `{each[1:]}`"
            for each in tier.tests
        )
        found = took.get(tier.what)
        part = "" if run is None or found is None else _minutes(run.minutes(found), tier.minutes)
        rows.append(
            f"| {tier.what} | {found.tests if found else ''} | {where} | {tier.minutes:g} | "
            f"{part} |"
        )
    tests, whole = (
        (sum(tier.tests for tier in run.tiers), _minutes(run.seconds / 60, total()))
        if run is not None
        else ("", "")
    )
    rows.append(f"| total, on every change (`make test`) | {tests} | | {total():g} | {whole} |")
    said = (
        ""
        if run is None
        else (
            f"\nMeasured on {run.date}, {run.machine}. A tier's minutes are its share of the run, "
            "in proportion to the time that its tests took.\n"
        )
    )
    return "\n".join(rows) + "\n" + said


def total() -> float:
    return sum(tier.minutes for tier in TIERS)


def over(run: Run) -> list[str]:
    """The tiers that took longer than they may."""
    limits = {tier.what: tier.minutes for tier in TIERS}
    return [took.what for took in run.tiers if run.minutes(took) > limits.get(took.what, 0.0)]


def _minutes(found: float, limit: float) -> str:
    return f"**{found:.1f}**" if found > limit else f"{found:.1f}"


def main() -> int:
    from chaos.evidence import RESULTS, machine, write_pages
    from chaos.page import Results

    parser = argparse.ArgumentParser(
        prog="python -m chaos.tiers", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("junit", type=Path, help="what --junitxml of pytest left")
    parser.add_argument("--show", action="store_true", help="print the table, and write nothing")
    options = parser.parse_args()
    run = measured(options.junit, machine())
    print(table(run))
    for what in over(run):
        print(f"over its budget: {what}", file=sys.stderr)
    if not options.show:
        results = msgspec.json.decode(RESULTS.read_bytes(), type=Results)
        results.tiers = run
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
        write_pages(results)
    return 1 if over(run) else 0


if __name__ == "__main__":
    sys.exit(main())
