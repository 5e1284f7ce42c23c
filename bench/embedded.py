"""Throughput of the embedded log, beside walrus-rust where cargo can build it.

`python -m bench.embedded [--folder F] [--seconds S] [--bytes B] [--rounds R] [--no-walrus]`

Each thread appends to its own topic. The two sides take turns within a round, on the same disk;
the table has the median of the rounds. `bench/walrus` is the program for walrus-rust 0.2.0 from
crates.io."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from time import perf_counter

from polynya.embedded import Every, Log, Schedule

CRATE = Path(__file__).parent / "walrus"
CASES = [  # schedule, threads, records at once
    ("each", 1, 1),
    ("each", 10, 1),
    ("200", 1, 1),
    ("never", 1, 1),
    ("never", 10, 1),
    ("each", 1, 1000),
    ("never", 1, 1000),
]
Found = dict[str, float]


def ours(
    folder: Path, schedule: str, threads: int, batch: int, *, seconds: float, size: int
) -> Found:
    """Append for some seconds, then read everything once."""
    sync: Schedule = Every(int(schedule)) if schedule.isdigit() else schedule  # type: ignore[assignment]
    record = os.urandom(size)
    times: list[list[float]] = [[] for _ in range(threads)]
    with Log(folder, sync=sync) as log:
        begin = perf_counter()

        def work(mine: int) -> None:
            topic, taken, records = f"t{mine}", times[mine], [record] * batch
            while (started := perf_counter()) - begin < seconds:
                if batch == 1:
                    log.append(topic, record)
                else:
                    log.append_batch(topic, records)
                taken.append(perf_counter() - started)

        workers = [threading.Thread(target=work, args=(mine,)) for mine in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = perf_counter() - begin
        taken = sorted(each for some in times for each in some)
        begin = perf_counter()
        count = sum(1 for mine in range(threads) for _ in log.iterate(f"t{mine}"))
        reading = perf_counter() - begin
    assert count == len(taken) * batch, "every append is read"
    return {
        "appends/s": count / elapsed,
        "p50 us": taken[len(taken) // 2] * 1e6,
        "p99 us": taken[len(taken) * 99 // 100] * 1e6,
        "reads/s": count / reading,
    }


def build(target: Path) -> Path | None:
    """Build the program for walrus-rust; None, with the reason, where that cannot be done."""
    cargo = shutil.which("cargo")
    if cargo is None:
        print("without walrus-rust: cargo is not installed", file=sys.stderr)
        return None
    command = [cargo, "build", "--release", "--quiet", "--target-dir", str(target)]
    done = subprocess.run(command, cwd=CRATE, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"without walrus-rust: {done.stderr.strip()}", file=sys.stderr)
        return None
    return target / "release" / "walrus-appends"


def theirs(
    program: Path,
    folder: Path,
    schedule: str,
    threads: int,
    batch: int,
    *,
    seconds: float,
    size: int,
) -> Found:
    """Measure the same with walrus-rust."""
    arguments = [schedule, threads, max(1, int(seconds)), size, batch]
    command = [str(program), str(folder), *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder.parent)
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, schedule: str, threads: int, batch: int, found: Found) -> str:
    return (
        f"{name:<8} {schedule:>6} {threads:>7} {batch:>6} {found['appends/s']:>12,.0f} "
        f"{found['p50 us']:>10,.1f} {found['p99 us']:>10,.1f} {found['reads/s']:>12,.0f}"
    )


def median(rounds: list[Found]) -> Found:
    return {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("."), help="where the disk to measure is"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each case, whole seconds")
    parser.add_argument("--bytes", type=int, default=1000, dest="size", help="of a record")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-walrus", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="embedded-bench-", dir=options.folder.absolute()))
    program = None if options.no_walrus else build(CRATE.parents[1] / ".build" / "walrus")
    print(
        f"{'':<8} {'sync':>6} {'threads':>7} {'batch':>6} {'appends/s':>12} {'p50 us':>10} "
        f"{'p99 us':>10} {'reads/s':>12}"
    )
    try:
        for case in CASES:
            sides: dict[str, list[Found]] = {"polynya": [], "walrus": []}
            for _ in range(options.rounds):
                for name, found in sides.items():
                    folder = root / name
                    folder.mkdir()
                    if name == "polynya":
                        found.append(
                            ours(folder, *case, seconds=options.seconds, size=options.size)
                        )
                    elif program is not None:
                        found.append(
                            theirs(
                                program, folder, *case, seconds=options.seconds, size=options.size
                            )
                        )
                    shutil.rmtree(folder)
            medians = {name: median(found) for name, found in sides.items() if found}
            for name, figures in medians.items():
                print(row(name, *case, figures), flush=True)
            if "walrus" in medians:
                ratio = medians["polynya"]["appends/s"] / medians["walrus"]["appends/s"]
                print(f"{'':<8} ratio {ratio:.2f}", flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
