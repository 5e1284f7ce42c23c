"""Runs of several servers or request variants in alternating rounds, with a table of the results."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence

Figures = dict[str, float]
Runs = dict[str, list[Figures]]


def in_turn(names: Sequence[str], rounds: int, run: Callable[[str], Figures]) -> Runs:
    """Run each name in each round, every other round backwards: what a run leaves to the next one,
    it leaves to each of them. The figures of each run go to stderr."""
    runs: Runs = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            runs[name].append(run(name))
            print(f"round {number + 1} {name}: {json.dumps(runs[name][-1])}", file=sys.stderr)
    return runs


def table(head: str, runs: Runs, more: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """Return a Markdown table with the median, the smallest and the largest of each figure. `more`:
    columns with one number for each name."""
    keys = list(next(iter(runs.values()))[0])
    columns = {
        key: {name: _spread([run[key] for run in found]) for name, found in runs.items()}
        for key in keys
    }
    columns |= {
        key: {name: f"{value:.3f}" for name, value in values.items()}
        for key, values in (more or {}).items()
    }
    rows = [
        f"| {name} | " + " | ".join(column.get(name, "") for column in columns.values()) + " |"
        for name in runs
    ]
    return "\n".join(
        [f"| {head} | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1), *rows]
    )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})"
