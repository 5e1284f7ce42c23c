"""The parts of an evidence run: each runs commands that leave a report, and adds their findings to
the results."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from chaos.results import Again, Chaos, Fuzzed, Mutant, Results, Simulation, Upgraded
from chaos.run import Outcome

ROOT = Path(__file__).parent.parent
SHARES = {
    "simulation": 0.2, "worlds": 0.28, "chaos": 0.24, "soak": 0.08, "fuzz": 0.08, "upgrades": 0.12
}  # fmt: skip
WORLDS = (
    "plain", "moves", "readers", "returns", "copies", "planned", "diskless", "switched", "leased",
    "groups", "members", "kafka", "transactions", "coordinated", "compacted", "together",
    "reduced",
)  # fmt: skip
SIM_STEP = 20  # seeds of one call …
WORLD_STEP = 4  # … of a world, which has less time
CHAOS_SECONDS = 240.0  # of faults in one run, at most
CHAOS_BESIDE = 100.0  # for the start of a cluster, recovery after faults, and the loss of all disks
CHAOS_LEAST = 30.0
UPGRADE_PARTS = "commands,wipes,back,again,transactions,store"
UPGRADE_MORE = ",readers,leads"  # where there is more time
UPGRADE_SECONDS, UPGRADE_MORE_SECONDS = 150.0, 300.0  # that they take without `--hold`
HOLD_SHARE = 8.0  # seconds for each second of `--hold`


class Work:
    """Commands, each of which leaves a report."""

    def __init__(self, folder: Path, seed: int, revision: str) -> None:
        self.seed, self.revision = seed, revision
        self._folder = folder
        self._numbers = itertools.count()

    def run(self, *command: str) -> bytes:
        """Run the commands and return the report. Raises RuntimeError when there is none."""
        report = self._folder / f"report-{next(self._numbers)}.json"
        print(f"+ {' '.join(command)}", flush=True)
        _python(*command, f"--report={report}")
        if not report.exists():
            raise RuntimeError(f"{command} ended without a report")
        return report.read_bytes()

    def keep_seeds(self, kind: str, seeds: Sequence[int]) -> None:
        """Add seeds that failed to tests/found_seeds.txt."""
        for seed in seeds:
            _python("-m", "tiers.found_seeds", f"--add={kind}:{seed}")


def _python(*command: str) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests"), str(ROOT)))
    }
    subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False)


def simulate(work: Work, seconds: float, results: Results) -> None:
    """Run seeds of the swarm in a process for each core, until the time is over."""
    results.simulation = _simulated(work, "swarm", SIM_STEP, seconds)


def simulate_worlds(work: Work, seconds: float, results: Results) -> None:
    """Run the same time of each other world."""
    results.worlds = {
        world: _simulated(work, world, WORLD_STEP, seconds / len(WORLDS)) for world in WORLDS
    }


def _simulated(work: Work, world: str, step: int, seconds: float) -> Simulation:
    found = Simulation(first_seed=work.seed)
    deadline = time.monotonic() + seconds
    begins = itertools.count(work.seed, step)
    flags = [] if world == "swarm" else [f"--{world}"]

    def lane(_: int) -> list[bytes]:
        reports: list[bytes] = []
        while not reports or time.monotonic() < deadline:
            command = ["-m", "sim.run", f"--seed={next(begins)}", f"--seeds={step}", *flags]
            # a shrunk seed takes minutes of a lane
            reports.append(work.run(*command, "--quiet", "--no-shrink"))
        return reports

    cores = os.cpu_count() or 1
    with ThreadPoolExecutor(cores) as pool:
        for raw in itertools.chain.from_iterable(pool.map(lane, range(cores))):
            found.take(msgspec.json.decode(raw, type=Simulation))
            found.seeds += step
    work.keep_seeds(world, found.failed)
    return found


def disturb(work: Work, seconds: float, results: Results) -> None:
    """Run real nodes, alternating between one core a node with an S3 server and two cores with a
    folder. Of three runs or more the last one has no namespaces. In all of them groups move,
    and all disks are lost in the end."""
    count = max(1, round(seconds / (CHAOS_SECONDS + CHAOS_BESIDE) + 0.4))
    one = min(CHAOS_SECONDS, max(CHAOS_LEAST, seconds / count - CHAOS_BESIDE))
    results.chaos = []
    for number in range(count):
        more = ["--acts=0.5", "--lose-all", *(["--cores=2"] if number % 2 else ["--s3"])]
        more += ["--loopback"] if number == count - 1 >= 2 else []
        results.chaos.append(
            _chaos(work, f"--seed={work.seed + number}", f"--seconds={one:.0f}", *more)
        )


def soak(work: Work, seconds: float, results: Results) -> None:
    """Run real nodes with slower writers and quiet times: nothing of them may grow."""
    wanted = max(CHAOS_LEAST, seconds)
    results.soak = _chaos(
        work, "--soak", f"--seed={work.seed}", f"--seconds={wanted:.0f}", "--cores=2"
    )


def _chaos(work: Work, *options: str) -> Chaos:
    outcome = msgspec.json.decode(work.run("-m", "chaos", *options), type=Outcome)
    return Chaos.of(outcome, " ".join(options))


def fuzz(work: Work, seconds: float, results: Results) -> None:
    """Run all fuzzers, each for its part of the time."""
    raw = work.run("-m", "fuzz.run", f"--seed={work.seed}", f"--seconds={seconds:.0f}")
    results.fuzz = msgspec.json.decode(raw, type=list[Fuzzed])
    for each in results.fuzz:
        if each.wrong:
            work.keep_seeds(f"fuzz-{each.name}", [each.seed])


def upgrade(work: Work, seconds: float, results: Results) -> None:
    """Upgrade three nodes one by one, with the way back: by SIGTERM, and with enough time also by
    SIGKILL on an S3 server, and with read replicas and leaders that move."""
    revision = work.revision or older_revision()
    ways: list[list[str]] = [[], ["--kill", "--s3"]]
    ways = ways[: 1 if seconds < 2 * UPGRADE_SECONDS else 2]
    one = seconds / len(ways)
    is_long = one >= UPGRADE_MORE_SECONDS
    some = UPGRADE_PARTS + (UPGRADE_MORE if is_long else "")
    beside = UPGRADE_MORE_SECONDS if is_long else UPGRADE_SECONDS
    hold = min(16.0, max(1.0, (one - beside) / HOLD_SHARE))
    results.upgrades = []
    for way in ways:
        command = ["-m", "chaos.upgrade", "--from", revision, f"--hold={hold:.1f}", *way]
        command += [f"--only={some}", f"--seed={work.seed}"]
        found = msgspec.json.decode(work.run(*command), type=Upgraded)
        found.command = f"python {' '.join(command)}"
        results.upgrades.append(found)


def older_revision() -> str:
    """Return the last commit whose feature level is below that of this checkout."""
    path = "src/polynya/base/levels.py"
    level = re.search(r"^LEVEL = \d+", (ROOT / path).read_text(), re.MULTILINE)
    assert level is not None, f"{path} has no LEVEL"
    command = ["git", "log", "--reverse", "--format=%h", f"-G^{level[0]}\\b", "--", path]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return f"{found.split()[0]}^"


def run_again(work: Work, seconds: float, results: Results) -> None:
    """Run each seed that failed once, and was repaired, again."""
    raw = work.run("-m", "tiers.found_seeds")
    results.again = msgspec.json.decode(raw, type=list[Again])


def mutate(work: Work, seconds: float, results: Results) -> None:
    """Try every planted defect, a share of them on each core."""
    lanes = os.cpu_count() or 1
    with ThreadPoolExecutor(lanes) as pool:
        raws = pool.map(
            lambda lane: work.run("-m", "sim.all_mutants", f"--share={lane + 1}/{lanes}"),
            range(lanes),
        )
        found = [each for raw in raws for each in msgspec.json.decode(raw, type=list[Mutant])]
    results.mutants = sorted(found, key=lambda each: (each.list, each.name))


TAKE: dict[str, Callable[[Work, float, Results], None]] = {
    "simulation": simulate,
    "worlds": simulate_worlds,
    "chaos": disturb,
    "soak": soak,
    "fuzz": fuzz,
    "upgrades": upgrade,
    "seeds": run_again,
    "mutations": mutate,
}
