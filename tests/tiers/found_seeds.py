"""Seeds of the simulation that failed, one a line of `tests/found_seeds.txt`.

`make hunt` and `make evidence` append a line that ends in `open`. The commit that repairs its cause
writes `fixed` there instead, with what it did, and from then on the gate runs the seed.
`python -m tiers.found_seeds` runs all that are fixed, and those of a world that are open, again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

FILE = Path(__file__).parents[1] / "found_seeds.txt"


class FoundSeed(NamedTuple):
    """A failed seed: the kind of work, the seed, the commit, `open` or `fixed`, and the repair of
    its cause."""

    kind: str
    seed: int
    commit: str
    state: str
    repair: str = ""


def read_seeds(text: str) -> list[FoundSeed]:
    """Return the seeds of a file. Raises ValueError for a line that is none."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_seed(line) for line in lines]


def _seed(line: str) -> FoundSeed:
    words = line.split(maxsplit=4)
    if len(words) < 4 or not words[1].isdigit() or words[3] not in ("open", "fixed"):
        raise ValueError(f"expected 'KIND SEED COMMIT open|fixed REPAIR', got {line!r}")
    return FoundSeed(words[0], int(words[1]), words[2], words[3], *words[4:])


def append_seed(path: Path, found: FoundSeed) -> None:
    """Append a line, unless the file has the seed already."""
    known = read_seeds(path.read_text()) if path.exists() else []
    if not any(each[:2] == found[:2] for each in known):
        with path.open("a") as file:
            file.write(f"{found.kind} {found.seed} {found.commit} {found.state}\n")


class Again(msgspec.Struct):
    """A line of the file, and whether the seed passes now; None: a kind that is not run again."""

    kind: str
    seed: int
    commit: str
    state: str
    repair: str
    passes: bool | None = None


def run_again(found: FoundSeed) -> Again:
    """Run a seed of a world of the simulation in a process of its own."""
    from tiers.hunt import KINDS, WORLDS

    again = Again(*found)
    if found.kind in WORLDS:
        command = [sys.executable, *KINDS[found.kind](found.seed), "--quiet"]
        done = subprocess.run(command, capture_output=True, check=False)
        again.passes = done.returncode == 0
    return again


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tiers.found_seeds", description=__doc__)
    parser.add_argument("--add", metavar="KIND:SEED", help="add a line, and run nothing")
    parser.add_argument("--report", type=Path, help="write the outcome there, as JSON")
    options = parser.parse_args()
    if options.add:
        from tiers.hunt import commit

        kind, _, seed = options.add.partition(":")
        append_seed(FILE, FoundSeed(kind, int(seed), commit() or "unknown", "open"))
        return 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(run_again, read_seeds(FILE.read_text())))
    failed = [each for each in found if each.passes is False]
    for each in failed:
        print(f"fails: {each.kind} seed {each.seed}, {each.state}")
    print(f"{len(found)} seeds, {len(failed)} fail")
    if options.report is not None:
        options.report.write_bytes(msgspec.json.encode(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
