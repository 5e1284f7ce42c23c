"""Record the checksums of the simulation's traces, or compare them with a record: a refactoring
leaves them equal.

    python -m sim.checksums FILE           # seeds 0 to 49 of every world, on all cores
    python -m sim.checksums FILE --check   # the same seeds again; exit code 1 where one differs

A record is of one machine's Python: take it before the change, and check after it. `sim.traces` and
`sim.compare` then show the first event that differs. `--mishaps 5` is a quick look.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from sim.run import KINDS

HERE = Path(__file__).parents[2]
WORLDS = ("swarm", "plain", *KINDS)
SEEDS = 50
STEP = 10  # seeds of one process, each in a fork of its own
FAILED = "failed"
LINE = re.compile(r"^seed (\d+)(?:: .*; ([0-9a-f]{16})| (FAILED);.*)$", re.MULTILINE)


class Job(NamedTuple):
    """Some seeds of a world, in one process."""

    world: str
    first: int
    count: int


class Record(NamedTuple):
    """Checksums by world and seed. `mishaps`: in each episode; 0: as many as usual."""

    mishaps: int
    checksums: dict[tuple[str, int], str]


def jobs_of(seeds: Iterable[tuple[str, int]]) -> Iterator[Job]:
    """Divide seeds into jobs, of neighbours of one world."""
    job: Job | None = None
    for world, seed in seeds:
        if (
            job is not None
            and (world, seed) == (job.world, job.first + job.count)
            and job.count < STEP
        ):
            job = job._replace(count=job.count + 1)
            continue
        if job is not None:
            yield job
        job = Job(world, seed, 1)
    if job is not None:
        yield job


def checksums_in(output: str) -> dict[int, str]:
    """Return the checksum of each seed in what `sim.run` printed."""
    return {int(seed): checksum or FAILED for seed, checksum, _ in LINE.findall(output)}


def run_job(job: Job, tree: Path, mishaps: int) -> dict[tuple[str, int], str]:
    """Run a job. Raises SystemExit where a seed left no checksum."""
    command = [sys.executable, "-m", "sim.run", "--no-shrink"]
    command += [f"--seed={job.first}", f"--seeds={job.count}"]
    command += [] if job.world == "swarm" else [f"--{job.world}"]
    command += [f"--mishaps={mishaps}"] if mishaps else []
    paths = os.pathsep.join((str(tree / "src"), str(tree / "tests")))
    done = subprocess.run(
        command, cwd=tree, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    found = checksums_in(done.stdout)
    if sorted(found) != list(range(job.first, job.first + job.count)):
        raise SystemExit(f"{' '.join(command)} left no checksum of some seeds:\n{done.stderr}")
    return {(job.world, seed): checksum for seed, checksum in found.items()}


def record_of(seeds: Sequence[tuple[str, int]], tree: Path, mishaps: int) -> Record:
    """Run the seeds on all cores."""
    found: dict[tuple[str, int], str] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for some in pool.map(lambda job: run_job(job, tree, mishaps), jobs_of(seeds)):
            found |= some
    return Record(mishaps, found)


def written(record: Record) -> str:
    lines = (f"{world} {seed} {checksum}" for (world, seed), checksum in record.checksums.items())
    return "\n".join([f"mishaps {record.mishaps}", *lines, ""])


def read(text: str) -> Record:
    """Read a record. Raises ValueError for a line that is none."""
    mishaps, checksums = 0, {}
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["mishaps"] and len(words) == 2:
            mishaps = int(words[1])
        elif len(words) == 3:
            checksums[words[0], int(words[1])] = words[2]
        else:
            raise ValueError(f"expected 'WORLD SEED CHECKSUM', got {line!r}")
    return Record(mishaps, checksums)


def differences(before: Record, after: Record) -> list[str]:
    """Return a line for each seed whose checksum differs."""
    return [
        f"{world} seed {seed}: {checksum} became {after.checksums.get((world, seed), 'nothing')}"
        for (world, seed), checksum in before.checksums.items()
        if after.checksums.get((world, seed)) != checksum
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="compare with FILE, write nothing")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each world, from 0 on")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="(default: %(default)s)")
    parser.add_argument("--mishaps", type=int, default=0, help="in each episode, for a quick look")
    parser.add_argument("--tree", type=Path, default=HERE, help="the checkout whose code runs")
    options = parser.parse_args()
    worlds = options.worlds.split(",")
    if unknown := {*worlds} - {*WORLDS}:
        parser.error(f"--worlds: expected some of {', '.join(WORLDS)}, got {sorted(unknown)}")
    if not options.check:
        seeds = [(world, seed) for world in worlds for seed in range(options.seeds)]
        record = record_of(seeds, options.tree.resolve(), options.mishaps)
        options.file.write_text(written(record))
        print(f"{options.file}: {len(record.checksums)} checksums")
        return 0
    before = read(options.file.read_text())
    chosen = [key for key in before.checksums if key[0] in worlds and key[1] < options.seeds]
    before = Record(before.mishaps, {key: before.checksums[key] for key in chosen})
    found = differences(before, record_of(chosen, options.tree.resolve(), before.mishaps))
    print("\n".join(found) or f"equal: {len(chosen)} checksums")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
