"""The evidence page: runs simulation, mutations, chaos and soak for a while, and writes what they
found to docs/reliability.md.

`python -m chaos.evidence --seconds 600`, or `make evidence DURATION=600`. The numbers are kept in
docs/reliability.json; `--write` makes the page of them again.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from chaos.page import Chaos, Mutant, Results, When, appendix, written
from chaos.run import Outcome
from chaos.totals import Simulation

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, APPENDIX = (
    ROOT / "docs" / name
    for name in ("reliability.json", "reliability.md", "reliability-appendix.md")
)
SHARES = {"sim": 0.6, "chaos": 0.25, "soak": 0.15}  # of the time; mutations are not counted
SIM_STEP = 20  # seeds of one call
CHAOS_SECONDS = 240.0  # of one run, at most


def machine() -> str:
    """This one, in words."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python "
        f"{platform.python_version()}"
    )


def commit() -> str:
    """Return the short hash of the commit that is tested; "" outside a repository."""
    asked = ("git", "rev-parse", "--short=10", "HEAD")
    return subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


class Work:
    """Commands, each of which leaves a report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    def run(self, *command: str) -> bytes:
        """Return what it reported. Raises RuntimeError when it did not get that far."""
        report = self._folder / f"report-{next(self._numbers)}.json"
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
        }
        print(f"+ {' '.join(command)}", flush=True)
        subprocess.run(
            [sys.executable, *command, f"--report={report}"], cwd=ROOT, env=environment, check=False
        )
        if not report.exists():
            raise RuntimeError(f"{command} ended without a report")
        return report.read_bytes()


def simulate(work: Work, seed: int, seconds: float) -> Simulation:
    """Run seeds from that one on, in a process for each core, until the time is over."""
    found = Simulation(first_seed=seed)
    deadline = time.monotonic() + seconds
    begins = itertools.count(seed, SIM_STEP)

    def lane(_: int) -> list[bytes]:
        reports = []
        while time.monotonic() < deadline:
            command = ["-m", "sim.run", f"--seed={next(begins)}", f"--seeds={SIM_STEP}"]
            command += ["--quiet", "--no-shrink"]  # a shrunk seed takes minutes of a lane
            reports.append(work.run(*command))
        return reports

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        for raw in itertools.chain.from_iterable(pool.map(lane, range(cores))):
            found.take(msgspec.json.decode(raw, type=Simulation))
            found.seeds += SIM_STEP
    return found


def disturb(work: Work, seed: int, seconds: float) -> list[Chaos]:
    """Runs with one core a node and with two, against a folder and an S3 server; the last one
    without namespaces. In all of them groups move, and all disks are lost in the end."""
    runs: list[Chaos] = []
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 or not runs:
        more = ["--acts=0.5", "--lose-all", *(["--cores=2"] if len(runs) % 2 else ["--s3"])]
        more += ["--loopback"] if runs and left < CHAOS_SECONDS else []
        one = max(30.0, min(CHAOS_SECONDS, left))
        runs.append(_chaos(work, f"--seed={seed + len(runs)}", f"--seconds={one:.0f}", *more))
    return runs


def _chaos(work: Work, *options: str) -> Chaos:
    outcome = msgspec.json.decode(work.run("-m", "chaos", *options), type=Outcome)
    return Chaos.of(outcome, " ".join(options))


def write_pages(results: Results) -> None:
    """Write the page and its appendix."""
    PAGE.write_text(written(results))
    APPENDIX.write_text(appendix(results))
    print(f"wrote {PAGE} and {APPENDIX}")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.evidence", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=7200.0,
        help="for simulation, chaos and soak together (default: two hours)",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000) * 1000)
    parser.add_argument(
        "--no-mutants",
        action="store_true",
        help="keep what is known of the mutations: trying them takes some minutes",
    )
    parser.add_argument(
        "--only",
        choices=("simulation", "chaos"),
        help="run one method, and keep what is known of the rest: after its findings are mended",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help="run nothing: make the page of the numbers that there are",
    )
    options = parser.parse_args()
    results = (
        msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else Results()
    )
    if options.only:
        results = _again(options, results)
    elif not options.write:
        results = _run(options, results)
    if not options.write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    write_pages(results)
    return 1 if results.wrong else 0


def _again(options: argparse.Namespace, before: Results) -> Results:
    """Run one method for the whole time."""
    command = f"python -m chaos.evidence --only {options.only} {_what(options)}"
    run = When(date=_today(), command=command, commit=commit())
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder))
        if options.only == "chaos":
            runs = disturb(work, options.seed, options.seconds)
            return msgspec.structs.replace(before, chaos=runs, chaos_run=run)
        found = simulate(work, options.seed, options.seconds)
        return msgspec.structs.replace(before, simulation=found, simulation_run=run)


def _what(options: argparse.Namespace) -> str:
    return f"--seconds {options.seconds:g} --seed {options.seed}"


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _run(options: argparse.Namespace, before: Results) -> Results:
    results = Results(
        date=_today(),
        command=f"python -m chaos.evidence {_what(options)}",
        machine=machine(),
        commit=commit(),
        mutants=before.mutants,
        mutants_date=before.mutants_date,
        tiers=before.tiers,
    )
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder))
        results.simulation = simulate(work, options.seed, options.seconds * SHARES["sim"])
        results.chaos = disturb(work, options.seed, options.seconds * SHARES["chaos"])
        soak = max(30.0, options.seconds * SHARES["soak"])
        results.soak = _chaos(
            work, "--soak", f"--seed={options.seed}", f"--seconds={soak:.0f}", "--cores=2"
        )
        if not options.no_mutants:
            results.mutants_date = results.date
            results.mutants = msgspec.json.decode(
                work.run("-m", "sim.all_mutants"), type=list[Mutant]
            )
    return results


if __name__ == "__main__":
    sys.exit(main())
