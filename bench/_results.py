"""Results of benchmarks as files: `--save` writes `bench/results/NAME.json`, and `python -m
bench.report` makes the page of them.

A file has the benchmark's name, the commit and the date, the machine, the command, the number of
rounds, the conditions (`chaos.quiet`: the load before the run, and what other processes used during
it), and for each server and each figure the median, the smallest and the largest value of all
rounds. A result of a busy machine is written to `.build/busy-results` instead, and the exit code is
1: the page shows runs with nothing beside them.
"""

from __future__ import annotations

import argparse
import atexit
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench._rounds import Runs
from chaos.checkout import source
from chaos.quiet import Conditions, Watch

FOLDER = Path(__file__).parent / "results"
BUSY = Path(__file__).parents[1] / ".build" / "busy-results"
Figures = dict[str, list[float]]
_watch: Watch | None = None  # of the benchmark of this process


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add `--save`, and begin to measure what runs beside the benchmark."""
    global _watch
    if "--save" in sys.argv[1:]:
        _watch = Watch()
        _watch.start()
        atexit.register(_watch.stop)
    parser.add_argument(
        "--save",
        action="store_true",
        help="write bench/results/NAME.json, of which `python -m bench.report` makes the page",
    )


def summary(runs: Runs) -> dict[str, Figures]:
    """Return the median, smallest and largest value of each figure, by server."""
    return {
        name: {
            key: [_short(of([run[key] for run in found])) for of in (statistics.median, min, max)]
            for key in found[0]
        }
        for name, found in runs.items()
        if found
    }


def save(
    name: str,
    runs: Runs,
    *,
    more: Mapping[str, Mapping[str, float]] | None = None,
    conditions: Conditions | None = None,
) -> None:
    """Write the result of one benchmark. `more` adds figures that were measured once: figure to
    server to value. Raises SystemExit after a run on a busy machine."""
    if conditions is None:
        assert _watch is not None, "`add_option` begins the watch where there is `--save`"
        conditions = _watch.conditions()
    figures = summary(runs)
    for key, values in (more or {}).items():
        for server, value in values.items():
            figures[server][key] = [_short(value)] * 3
    result = {
        "benchmark": name,
        "commit": commit(),
        "source": source(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "command": " ".join(
            [
                "python -m",
                f"bench.{Path(sys.argv[0]).stem}",
                *(each for each in sys.argv[1:] if each != "--save"),
            ]
        ),
        "rounds": max(map(len, runs.values())),
        "conditions": msgspec.to_builtins(conditions),
        "busy": conditions.busy,
        "figures": figures,
    }
    folder = BUSY if conditions.busy else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if conditions.busy:
        sys.exit(
            f"{name}: {conditions.busy}; the result is in {folder}, not on the page: run it again "
            "with nothing beside it"
        )


def load(name: str) -> dict[str, Any]:
    """Load the saved result of one benchmark."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def _short(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 10_000 else round(value)


def commit() -> str:
    command = ["git", "-C", str(FOLDER.parent), "describe", "--always", "--dirty"]
    return (
        subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        or "unknown"
    )


def machine() -> str:
    gib = round(psutil.virtual_memory().total / 2**30)
    python = platform.python_version()
    return (
        f"{psutil.cpu_count()} cores, {gib} GiB, {platform.system()} {platform.release()}, Python "
        f"{python}; the load generator shares the cores"
    )
