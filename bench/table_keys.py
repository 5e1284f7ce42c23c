"""CPU of jobs of a derived table with a key, by the number of its keys.
`python -m bench.table_keys [--keys 1000000]`.

One worker with a warm session on an empty node. The jobs: all keys are new; 1,000 keys all over the table
change, twice; 1,000 keys are new. The CPU is that of the worker with Java and Python's workers.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench._lake import LakeNode, cpu_seconds, lake_node, machine, send, wait, workers

APPEND = 5_000  # records
CHANGED = 1_000
NAME, STREAM = "t", "t/a"
SQL = "select id, sum(n) as n, max_by(v, offset) as v from input group by id"


def fill(node: LakeNode, keys: Sequence[int]) -> None:
    for first in range(0, len(keys), APPEND):
        some = keys[first : first + APPEND]
        node.append(STREAM, [{"id": key, "n": 1, "v": f"value of {key}"} for key in some])


def create(node: LakeNode, folder: Path) -> None:
    statement = folder / "keys.sql"
    statement.write_text(SQL)
    words = ["table", "create", NAME, "--from", f"{NAME}/", "--sql", str(statement)]
    merged = ["--key", "id", "--merge", "n:sum", "--server", node.url]
    subprocess.run([sys.executable, "-m", "polynya", *words, *merged], check=True)


def is_done(node: LakeNode, job: int) -> bool:
    table = node.table(NAME)
    return table["job"] > job and table["records_behind"] == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--directory", help="where the node keeps its data (a real disk)")
    options = parser.parse_args()
    print(machine())
    count = options.keys
    jobs: dict[str, Sequence[int]] = {
        "a first job": range(10),
        f"{count:,} new keys": range(count),
        f"{CHANGED:,} of them change": range(0, count, max(1, count // CHANGED)),
        f"{CHANGED:,} of them change again": range(0, count, max(1, count // CHANGED)),
        f"{CHANGED:,} new keys": range(count, count + CHANGED),
    }
    with (
        lake_node(options.directory) as node,
        tempfile.TemporaryDirectory(prefix="polynya-bench-") as folder,
    ):
        node.create_stream(STREAM)
        create(node, Path(folder))
        with workers(node, Path(folder), count=1, interval="1s", pinned=False) as running:
            print("| job | CPU s | seconds |\n|---|---|---|")
            for name, keys in jobs.items():
                send(running, signal.SIGSTOP)
                fill(node, keys)
                job = node.table(NAME)["job"]
                before, begin = cpu_seconds(running[0].pid), time.perf_counter()
                send(running, signal.SIGCONT)
                wait(partial(is_done, node, job), name, seconds=3600.0, pause=0.2)
                cpu, seconds = cpu_seconds(running[0].pid) - before, time.perf_counter() - begin
                print(f"| {name} | {cpu:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
