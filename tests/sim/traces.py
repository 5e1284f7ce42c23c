"""Write what happens in the seeds that a move or a rename must leave as they are: `python -m
sim.traces DIR [--tree OTHER_CHECKOUT]`.

`sim.compare` compares two such folders. tests/sim/README.md shows both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]
SWARM_SEEDS = 50
OTHER_SEEDS = 10
OTHERS = (
    "moves", "readers", "returns", "copies", "planned", "kafka", "groups", "members", "leased",
    "switched", "diskless", "coordinated", "transactions", "compacted",
    "together", "reduced",
)  # fmt: skip


def write(folder: Path, tree: Path, seeds: dict[str, int], mishaps: int | None = None) -> list[str]:
    """Write a file for each seed, into a folder for each kind; return the kinds in which a seed
    fails."""
    paths = os.pathsep.join((str(tree / "src"), str(tree / "tests")))
    failed = []
    for kind, count in seeds.items():
        command = [
            sys.executable,
            "-m",
            "sim.run",
            "--quiet",
            "--no-shrink",
            f"--seeds={count}",
            f"--trace={(folder / kind).resolve()}",
        ]
        command += [] if kind == "swarm" else [f"--{kind}"]
        command += [] if mishaps is None else [f"--mishaps={mishaps}"]
        done = subprocess.run(
            command, cwd=tree, env=os.environ | {"PYTHONPATH": paths}, check=False
        )
        written = len(list((folder / kind).glob("seed-*.txt")))
        if written != count:
            raise SystemExit(
                f"{kind}: {written} of {count} traces were written by {tree}: see above"
            )
        failed += [kind] if done.returncode else []
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--tree", type=Path, default=HERE, help="the checkout whose code runs; this one without"
    )
    parser.add_argument(
        "--swarm", type=int, default=SWARM_SEEDS, help="seeds of the swarm, from 0 on"
    )
    parser.add_argument(
        "--others", type=int, default=OTHER_SEEDS, help=f"seeds of each of: {', '.join(OTHERS)}"
    )
    parser.add_argument("--mishaps", type=int, help="in each episode, for a quick look")
    options = parser.parse_args()
    if options.folder.exists() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty: name a new folder")
    seeds = {"swarm": options.swarm, **dict.fromkeys(OTHERS, options.others)}
    failed = write(
        options.folder,
        options.tree.resolve(),
        {kind: count for kind, count in seeds.items() if count},
        options.mishaps,
    )
    print(
        f"{options.folder}: {options.swarm} traces of the swarm, {options.others} of each of "
        f"{', '.join(OTHERS)}"
    )
    if failed:
        print(f"seeds failed in: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
