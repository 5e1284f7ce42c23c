"""Seeds of the simulation that failed, one a line of `tests/found_seeds.txt`.

`make hunt` appends a line that ends in `open`. The commit that repairs its cause writes `fixed` there
instead, and from then on the gate runs the seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "found_seeds.txt"


class FoundSeed(NamedTuple):
    """A seed that failed: the kind of work, the seed, the commit, and `open` or `fixed`."""

    kind: str
    seed: int
    commit: str
    state: str


def read_seeds(text: str) -> list[FoundSeed]:
    """Return the seeds of a file. Raises ValueError for a line that is none."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_seed(line) for line in lines]


def _seed(line: str) -> FoundSeed:
    words = line.split()
    if len(words) != 4 or not words[1].isdigit() or words[3] not in ("open", "fixed"):
        raise ValueError(f"expected 'KIND SEED COMMIT open|fixed', got {line!r}")
    return FoundSeed(words[0], int(words[1]), words[2], words[3])


def append_seed(path: Path, found: FoundSeed) -> None:
    """Append a line, unless the file has the seed already."""
    known = read_seeds(path.read_text()) if path.exists() else []
    if not any(each[:2] == found[:2] for each in known):
        with path.open("a") as file:
            file.write(f"{found.kind} {found.seed} {found.commit} {found.state}\n")
