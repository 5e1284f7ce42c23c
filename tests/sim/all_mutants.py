"""Apply every planted defect, one by one, and say what catches it: `make mutants`, or
`PYTHONPATH=tests:src python -m sim.all_mutants NAME …`.

Three lists: edits of the agreement's source (sim/raft_mutants.py), parts of a whole node in a
simulated cluster (sim/mutants.py), and lies in the history of a real one
(tests/chaos/test_chaos_checker.py, which a test tries).
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from sim import mutants as sim_mutants
from sim import raft_mutants
from sim.code_edits import Stale
from sim.mutant_runs import Trials


def mutants(trials: Trials) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Return (list, name, function that names the catch)."""
    for name, mutant in raft_mutants.MUTANTS.items():
        yield "raft", name, lambda mutant=mutant: raft_mutants.caught(mutant)  # type: ignore[misc]
    for name in sim_mutants.MUTANTS | sim_mutants.NOTICED:
        yield "cluster", name, lambda name=name: trials.caught(name)  # type: ignore[misc]


def _share(text: str) -> tuple[int, int]:
    number, _, parts = text.partition("/")
    if not 1 <= int(number) <= int(parts):
        raise ValueError(text)
    return int(number), int(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--only", choices=("raft", "cluster"), help="one of the lists")
    parser.add_argument("--number", type=int, help="that one alone, counted round and round")
    parser.add_argument("--share", type=_share, help="2/3: the second of three parts of the list")
    parser.add_argument("--report", type=Path, help="write what was found there, as JSON")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: list[dict[str, str]] = []
    stale = 0
    with Trials("sim.mutants") as trials:
        listed = list(mutants(trials))
        if options.number is not None:
            listed = [listed[options.number % len(listed)]]
        if options.share is not None:
            number, parts = options.share
            listed = listed[number - 1 :: parts]
        for where, name, caught in listed:
            if options.only not in (None, where):
                continue
            if options.names and not any(part in name for part in options.names):
                continue
            began, by = perf_counter(), ""
            try:
                by = caught()
                outcome = f"caught by {by}" if by else "SURVIVES"
            except Stale as fault:
                stale += 1
                outcome = f"STALE: {fault}"
            found.append({"list": where, "name": name, "by": by})
            print(f"{where}: {name}: {outcome} ({perf_counter() - began:.1f} s)", flush=True)
    alive = [each for each in found if not each["by"]]
    print(
        f"{len(found) - len(alive)} of {len(found)} "
        f"caught{f', {stale} do not fit the code any more' if stale else ''}"
    )
    if options.report is not None:
        options.report.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
