"""The tiers of `make test` with their budgets, and what they took: `python -m chaos.tiers gate.xml
processes.xml` writes both to docs/reliability.md.

`make gate ARGS=--junitxml=.build/gate.xml` leaves such a file, and `make processes` likewise; its
name is that of the tier.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec


class Tier(msgspec.Struct, frozen=True):
    """A target of the Makefile. `selected`: the expression of marks that chooses its tests, "" for
    no tests; `minutes`: at most, on two cores."""

    name: str
    what: str
    selected: str
    minutes: float


TIERS = (
    Tier("lint", "format, lint, strict types", "", 1),
    Tier(
        "gate",
        "tests that start no process, and the simulation with fixed seeds; nothing is repeated",
        "not process and not spark and not conformance and not long",
        5,
    ),
    Tier(
        "processes",
        "tests that start a process, a JVM or a browser; what fails is repeated once, at most "
        "three a run",
        "(process or spark or conformance) and not long",
        11,
    ),
)


TOGETHER_MINUTES = 12  # of `make test`, whose gate takes the time that the processes' tests wait


class Took(msgspec.Struct):
    """A tier in one run. `seconds`: from start to end; tests run in parallel."""

    name: str
    tests: int = 0
    seconds: float = 0.0
    date: str = ""


class Run(msgspec.Struct, kw_only=True):
    """Tiers that were measured on one machine."""

    machine: str
    took: list[Took] = []


def measured(junits: Sequence[Path], machine: str) -> Run:
    """Read reports of whole tiers. Raises ValueError where one is no tier's."""
    names = [tier.name for tier in TIERS if tier.selected]
    took = []
    for path in junits:
        if path.stem not in names:
            raise ValueError(f"{path}: expected a file named {' or '.join(names)}.xml")
        (suite,) = ET.parse(path).getroot().iter("testsuite")
        took.append(
            Took(
                path.stem,
                sum(1 for _ in suite.iter("testcase")),
                float(suite.get("time", 0)),
                suite.get("timestamp", "")[:10],
            )
        )
    return Run(machine=machine, took=took)


def table(run: Run | None) -> str:
    """Return the table of docs/reliability.md."""
    took = {} if run is None else {each.name: each for each in run.took}
    rows = [
        "| command | what it runs | marks of its tests | budget, minutes | tests | measured, "
        "minutes |",
        "|---|---|---|---|---|---|",
    ]
    for tier in TIERS:
        found, marks = took.get(tier.name), f"`{tier.selected}`" if tier.selected else ""
        cells = ("", "") if found is None else (f"{found.tests:,}", _minutes(found, tier))
        rows.append(
            f"| `make {tier.name}` | {tier.what} | {marks} | {tier.minutes:g} | "
            f"{' | '.join(cells)} |"
        )
    rows.append(
        "| `make test` | all of them, on every change; gate and processes at once | | "
        f"{TOGETHER_MINUTES} | | |"
    )
    return "\n".join(rows) + f"\n\n{_measured(run)}\n"


def _measured(run: Run | None) -> str:
    if run is None or not run.took:
        return "The tiers have not been measured since they were divided this way."
    dates = ", ".join(sorted({each.date for each in run.took}))
    return f"Measured on {dates}, {run.machine}."


def over(run: Run) -> list[str]:
    """Return the tiers that took longer than they may."""
    limits = {tier.name: tier.minutes for tier in TIERS}
    return [took.name for took in run.took if took.seconds / 60 > limits[took.name]]


def _minutes(took: Took, tier: Tier) -> str:
    minutes = took.seconds / 60
    return f"**{minutes:.1f}**" if minutes > tier.minutes else f"{minutes:.1f}"


def main() -> int:
    from chaos.evidence import machine, read_results, write_results

    parser = argparse.ArgumentParser(
        prog="python -m chaos.tiers", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("junits", type=Path, nargs="+", help="gate.xml, processes.xml")
    parser.add_argument("--show", action="store_true", help="print the table, and write nothing")
    options = parser.parse_args()
    run = measured(options.junits, machine())
    print(table(run))
    for name in over(run):
        print(f"over its budget: {name}", file=sys.stderr)
    if not options.show:
        results = read_results()
        results.tiers = run
        write_results(results)
    return 1 if over(run) else 0


if __name__ == "__main__":
    sys.exit(main())
