"""Scaling of table workers: two of one core each against one. `python -m bench.table_workers
[--tables 8] [--mb 64] [--rounds 3] [--save]`.

Workers with warm sessions are stopped (SIGSTOP) while each table gets so many MB. The time is
from their continuation until all tables have all rows. Each worker is pinned to a core."""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path

from bench import _results
from bench._lake import LakeNode, lake_node, machine, send, wait, workers
from bench._rounds import Figures, Runs, in_turn, table

RECORDS = 500  # an append, of about 1 KB each
TEXT = "abcdefghij klmnopqrst uvwxyz 0123456789 " * 22


def fill(node: LakeNode, names: list[str], megabytes: int) -> int:
    """Append to all tables. Return the records of each."""
    appends = max(1, megabytes * 1000 // RECORDS)
    for name in names:
        for number in range(appends):
            first = number * RECORDS
            node.append(
                f"{name}/a",
                [
                    {"id": first + each, "ok": each % 2 == 0, "text": TEXT}
                    for each in range(RECORDS)
                ],
            )
    return appends * RECORDS


def run_once(count: int, options: argparse.Namespace) -> Figures:
    names = [f"t{number}" for number in range(options.tables)]
    with (
        lake_node(options.directory) as node,
        tempfile.TemporaryDirectory(prefix="polynya-bench-") as folder,
        workers(node, Path(folder), count=count, interval="1s", pinned=True) as running,
    ):
        for name in names:
            node.create_table(name)
            node.create_stream(f"{name}/a")
        # every session has run jobs
        rows = 0
        for _ in range(3):
            rows += fill(node, names, 1)
            wait_for(node, rows)
        send(running, signal.SIGSTOP)
        rows += fill(node, names, options.mb)
        begin = time.perf_counter()
        send(running, signal.SIGCONT)
        wait_for(node, rows)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "mb_per_second": options.mb * options.tables / seconds}


def wait_for(node: LakeNode, rows: int) -> None:
    wait(lambda: all(found >= rows for found in node.rows().values()), f"{rows} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--mb", type=int, default=64, help="of each table")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    _results.add_option(parser)
    options = parser.parse_args()
    print(machine())
    counts = {"one worker": 1, "two workers": 2}
    runs: Runs = in_turn(list(counts), options.rounds, lambda name: run_once(counts[name], options))
    print(table("workers", runs))
    medians = [statistics.median(run["seconds"] for run in runs[name]) for name in counts]
    print(f"two workers are {medians[0] / medians[1]:.2f} times as fast as one (goal: 1.5)")
    if options.save:
        _results.save("table_workers", runs)


if __name__ == "__main__":
    main()
