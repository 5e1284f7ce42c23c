"""Compare two folders of traces: `python -m sim.compare BEFORE AFTER [--renamed FILE]`; exits with
1 where a byte differs.

A file of renamed words has a line `old -> new` for each. They are replaced in the traces of before.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

ARROW = " -> "


def renamed_words(text: str) -> dict[str, str]:
    """Parse the map of a file; lines that begin with # are comments. Raises ValueError for a line
    that is no pair."""
    words: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        old, arrow, new = line.partition(ARROW)
        if not arrow or not old.strip() or old.strip() in words:
            raise ValueError(
                f"line {number} is {line!r}: expected 'old{ARROW}new', each old word once"
            )
        words[old.strip()] = new.strip()
    return words


def renaming(words: Mapping[str, str]) -> Callable[[str], str]:
    """Replace whole words in one pass: a replacement is not replaced again."""
    if not words:
        return lambda text: text
    longest_first = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)(?:{longest_first})(?!\w)")
    return lambda text: pattern.sub(lambda found: words[found[0]], text)


def differences(before: Path, after: Path, renamed: Callable[[str], str]) -> Iterator[str]:
    """Yield a line per differing file, with the first event that differs."""
    files = {
        path.relative_to(folder) for folder in (before, after) for path in folder.rglob("*.txt")
    }
    if not files:
        yield f"neither {before} nor {after} has a trace"
    for file in sorted(files):
        if missing := [str(folder) for folder in (before, after) if not (folder / file).exists()]:
            yield f"{file}: is not in {missing[0]}"
            continue
        old, new = renamed((before / file).read_text()), (after / file).read_text()
        if old != new:
            pairs = enumerate(
                zip_longest(old.split("\n"), new.split("\n"), fillvalue="(the end)"), 1
            )
            yield next(
                f"{file}:{number}: {one!r} became {other!r}"
                for number, (one, other) in pairs
                if one != other
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument(
        "--renamed", type=Path, metavar="FILE", help="lines 'old -> new', applied to BEFORE"
    )
    options = parser.parse_args()
    words = renamed_words(options.renamed.read_text()) if options.renamed else {}
    found = list(differences(options.before, options.after, renaming(words)))
    print("\n".join(found) or f"equal: {len(list(options.after.rglob('*.txt')))} traces")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
