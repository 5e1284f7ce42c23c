"""The evidence page: run every method in parts and write the findings to docs/reliability.md.
`python -m chaos.evidence --seconds 1500`, or `make evidence DURATION=1500`.

`python -m chaos.evidence --seconds 1500`, or `make evidence DURATION=1500`. The time is divided
among the parts that run, by their shares. After each part the numbers are in
docs/reliability.json, so that a run that was stopped goes on with `--resume`: parts that ran on
the present source on a quiet machine stay as they are. `--write` makes the pages of the numbers
again."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chaos.checkout import commit, source
from chaos.page import appendix, written
from chaos.parts import SHARES, TAKE, Work
from chaos.quiet import Watch
from chaos.results import PARTS, Results, When

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, APPENDIX = (
    ROOT / "docs" / name
    for name in ("reliability.json", "reliability.md", "reliability-appendix.md")
)
MINUTES_BESIDE = {"seeds": "a minute", "mutations": "some minutes"}  # that are not of the time


def machine() -> str:
    """Describe this machine."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}"
    )


def read_results() -> Results:
    """Read the numbers of docs/reliability.json."""
    return (
        msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else Results()
    )


def write_results(results: Results) -> None:
    """Write the numbers, the page and its appendix."""
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    write_pages(results)


def write_pages(results: Results) -> None:
    """Write the page and its appendix."""
    PAGE.write_text(written(results))
    APPENDIX.write_text(appendix(results))
    print(f"wrote {PAGE} and {APPENDIX}")


def is_current(when: When | None, present: str) -> bool:
    """Report whether a part need not run again: same source, and a quiet machine."""
    return (
        when is not None
        and bool(present)
        and when.source == present
        and not present.endswith("-dirty")
        and when.conditions is not None
        and not when.conditions.busy
    )


def run_parts(parts: Sequence[str], options: argparse.Namespace, results: Results) -> None:
    """Run parts, one after the other, and write the pages after each."""
    whole = sum(SHARES.get(part, 0.0) for part in parts) or 1.0
    present = source()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder), options.seed, options.revision)
        for part in parts:
            seconds = options.seconds * SHARES.get(part, 0.0) / whole
            print(f"== {part}{f', {seconds:.0f} s' if seconds else ''}", flush=True)
            with Watch(load=load) as watch:
                TAKE[part](work, seconds, results)
            conditions = watch.conditions()
            results.runs[part] = When(
                date=dt.datetime.now(dt.UTC).date().isoformat(),
                command=f"python -m chaos.evidence --only {part} --seconds {seconds:.0f} "
                f"--seed {options.seed}",
                commit=commit(),
                source=present,
                conditions=conditions,
            )
            results.machine = machine()
            print(f"== {part}: {conditions.summary()}", flush=True)
            write_results(results)


def _parts(text: str) -> list[str]:
    found = [part for part in PARTS if part in text.split(",")]
    if unknown := set(text.split(",")) - {*PARTS}:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.evidence", description=__doc__.split("\n", 1)[0]
    )
    beside = ", ".join(f"{part} ({time})" for part, time in MINUTES_BESIDE.items())
    parser.add_argument(
        "--seconds",
        type=float,
        default=7200.0,
        help=f"for all parts together but {beside} (default: two hours)",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000) * 1000)
    parser.add_argument(
        "--only",
        type=_parts,
        default=list(PARTS),
        metavar="PARTS",
        help=f"some of {', '.join(PARTS)}, separated by commas; what is known of the rest stays",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="skip parts that ran on this source, on a quiet machine",
    )
    parser.add_argument(
        "--from",
        dest="revision",
        default="",
        help="the release that is upgraded from (default: the last commit below this feature level)",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="run nothing: make the pages of the numbers that there are",
    )
    options = parser.parse_args()
    results = read_results()
    if options.write:
        write_pages(results)
        return 1 if results.wrong else 0
    parts, present = options.only, source()
    if options.resume:
        parts = [part for part in parts if not is_current(results.runs.get(part), present)]
    run_parts(parts, options, results)
    return 1 if results.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
