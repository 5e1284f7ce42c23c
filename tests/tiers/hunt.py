"""Search for defects with seeds of the commit, on every core, until the time is over: `make hunt`,
or `make hunt SECONDS=600`.

Kinds of work take turns: worlds of the simulation, planted defects, fuzzers, chaos on real nodes,
and Hypothesis with examples of its own. A seed that fails becomes a line of
`tests/found_seeds.txt`. The exit code is 1 if one did."""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tiers.found_seeds import FILE, FoundSeed, append_seed

ROOT = Path(__file__).parents[2]
WORLDS = (
    "swarm", "plain", "readers", "returns", "moves", "copies", "planned", "kafka", "groups",
    "members", "leased", "switched", "diskless", "coordinated", "transactions",
    "compacted", "together", "reduced",
)  # fmt: skip
FUZZERS = ("http", "http2", "cluster", "admin", "kafka", "peers", "stored", "text", "words")
FUZZ_SECONDS = 30
CHAOS_SECONDS = 120
TAIL_LINES = 60  # of the output of a failed seed that are printed

Command = Callable[[int], list[str]]


def _world(name: str) -> Command:
    flag = [] if name == "swarm" else [f"--{name}"]
    return lambda seed: ["-m", "sim.run", f"--seed={seed}", "--no-shrink", *flag]


def _fuzzer(name: str) -> Command:
    return lambda seed: [
        "-m", "fuzz.run", f"--seed={seed}", f"--only={name}", f"--seconds={FUZZ_SECONDS}"
    ]  # fmt: skip


KINDS: dict[str, Command] = {
    **{name: _world(name) for name in WORLDS},
    "mutant": lambda seed: ["-m", "sim.all_mutants", f"--number={seed}"],
    **{f"fuzz-{name}": _fuzzer(name) for name in FUZZERS},
    "chaos": lambda seed: ["-m", "chaos", f"--seed={seed}", f"--seconds={CHAOS_SECONDS}"],
    "hypothesis": lambda seed: [
        "-m", "pytest", "-q", "-m", "hypothesis and not long and not process and not spark",
        "--hypothesis-profile=search", f"--hypothesis-seed={seed}",
    ],
}  # fmt: skip
SHARES = dict.fromkeys(WORLDS, 6)  # turns in each round; one for every other kind


def turns(kinds: Mapping[str, Command], seed: int) -> Iterator[tuple[str, int]]:
    """Yield (kind, seed) without end: each kind as often in a round as its share."""
    for number in itertools.count():
        for kind in kinds:
            share = SHARES.get(kind, 1)
            for each in range(share):
                yield kind, seed + number * share + each


class Hunt:
    """A search: its runs and the failing seeds."""

    def __init__(self, kinds: Mapping[str, Command], seed: int, found: Path) -> None:
        self.runs: Counter[str] = Counter()
        self.failed: list[FoundSeed] = []
        self._kinds = kinds
        self._turns = turns(kinds, seed)
        self._found = found
        self._lock = threading.Lock()

    def run(self, seconds: float, lanes: int, failures: float = float("inf")) -> None:
        """Run turns on that many lanes until the time is over, or that many failed; those in
        progress finish."""

        def is_over() -> bool:
            return time.monotonic() >= deadline or len(self.failed) >= failures

        deadline = time.monotonic() + seconds
        threads = [threading.Thread(target=self._lane, args=(is_over,)) for _ in range(lanes)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    def _lane(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            with self._lock:
                kind, seed = next(self._turns)
            self._try(kind, seed)

    def _try(self, kind: str, seed: int) -> None:
        done = subprocess.run(
            [sys.executable, *self._kinds[kind](seed)],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        with self._lock:
            self.runs[kind] += 1
            if done.returncode:
                self._keep(FoundSeed(kind, seed, commit() or "unknown", "open"), done.stdout)

    def _keep(self, found: FoundSeed, output: str) -> None:
        self.failed.append(found)
        append_seed(self._found, found)
        print("\n".join(output.splitlines()[-TAIL_LINES:]))
        print(f"FAILED: {found.kind} seed {found.seed}; kept in {self._found}", flush=True)

    def summary(self) -> str:
        runs = ", ".join(f"{kind} {count}" for kind, count in self.runs.most_common())
        return f"{sum(self.runs.values())} runs, {len(self.failed)} failed: {runs}"


def commit() -> str:
    """Return the short hash of HEAD; "" outside a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tiers.hunt", description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="default: endless")
    parser.add_argument("--seed", type=int, help="default: of the commit")
    parser.add_argument(
        "--only", default="", help=f"some of {', '.join(KINDS)}, separated by commas"
    )
    parser.add_argument(
        "--lanes", type=int, default=os.cpu_count() or 1, help="default: one a core"
    )
    parser.add_argument("--found", type=Path, default=FILE, help="where failing seeds are kept")
    options = parser.parse_args()
    if unknown := set(filter(None, options.only.split(","))) - KINDS.keys():
        parser.error(
            f"--only: expected some of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}"
        )
    kinds = {name: KINDS[name] for name in options.only.split(",") if name} or KINDS
    seed = int(commit()[:7] or "0", 16) if options.seed is None else options.seed
    hunt = Hunt(kinds, seed, options.found)
    print(f"hunt from seed {seed}", flush=True)
    try:
        hunt.run(options.seconds, options.lanes)
    except KeyboardInterrupt:
        pass
    print(hunt.summary())
    return 1 if hunt.failed else 0


if __name__ == "__main__":
    sys.exit(main())
