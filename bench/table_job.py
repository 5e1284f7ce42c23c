"""CPU of a job of tables here and at an earlier revision: the same records into both formats, in turns.
`python -m bench.table_job [--before REVISION] [--mb 256] [--kinds json,bytes] [--rounds 3]`.

Each run has a node and a worker of its own revision. The worker's session is warm and stopped (SIGSTOP) while
the table gets its MB. The CPU is that of the worker with Java and Python's workers, from its continuation until
the table has all rows. The default of `--before` is the commit before the schema registry and the types.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from bench._lake import BYTES, LakeNode, cpu_seconds, lake_node, machine, send, wait, workers
from bench._rounds import Figures, Runs, in_turn, table
from chaos.releases import here, of_revision

BEFORE = "25639985"
TARGET = 1.1
RECORDS = 500  # of JSON in an append, of about 1 KB each
BLOB_BYTES = 64 << 10  # an append of bytes, which is one record
TEXT = "abcdefghij klmnopqrst uvwxyz 0123456789 " * 22
WARM_JOBS = 3
STREAM = "t/a"


def fill(node: LakeNode, kind: str, megabytes: int) -> int:
    """Append to the table's stream. Return the records."""
    if kind == "bytes":
        count = megabytes * 1_000_000 // BLOB_BYTES
        for number in range(count):
            body = (number.to_bytes(8, "big") + TEXT.encode() * 75)[:BLOB_BYTES]
            node.append_bytes(STREAM, body)
        return count
    appends = megabytes * 1000 // RECORDS
    for number in range(appends):
        first = number * RECORDS
        node.append(
            STREAM,
            [{"id": first + each, "ok": each % 2 == 0, "text": TEXT} for each in range(RECORDS)],
        )
    return appends * RECORDS


def run_once(sources: dict[str, Path], options: argparse.Namespace, name: str) -> Figures:
    revision, kind = name.split()
    source = sources[revision]
    with (
        lake_node(options.directory, source) as node,
        tempfile.TemporaryDirectory(prefix="polynya-bench-") as folder,
        workers(node, Path(folder), count=1, interval="1s", pinned=False, source=source) as running,
    ):
        node.create_table("t")
        node.create_stream(STREAM, "application/json" if kind == "json" else BYTES)
        rows = 0
        for _ in range(WARM_JOBS):
            rows += fill(node, kind, 1)
            wait(partial(has_rows, node, rows), f"{rows} rows")
        send(running, signal.SIGSTOP)
        rows += fill(node, kind, options.mb)
        before, begin = cpu_seconds(running[0].pid), time.perf_counter()
        send(running, signal.SIGCONT)
        wait(partial(has_rows, node, rows), f"{rows} rows")
        seconds = time.perf_counter() - begin
        return {"cpu_s": cpu_seconds(running[0].pid) - before, "seconds": seconds}


def has_rows(node: LakeNode, rows: int) -> bool:
    return node.rows()["t"] >= rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", default=BEFORE, help="a revision of this repository")
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--kinds", default="json,bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    options = parser.parse_args()
    print(machine())
    kinds = options.kinds.split(",")
    with tempfile.TemporaryDirectory(prefix="polynya-bench-") as folder:
        sources = {
            "before": of_revision(options.before, Path(folder)).source,
            "now": here().source,
        }
        names = [f"{revision} {kind}" for kind in kinds for revision in sources]
        runs: Runs = in_turn(names, options.rounds, partial(run_once, sources, options))
    print(table(f"a job of {options.mb} MB", runs))
    for kind in kinds:
        now, then = (
            statistics.median(run["cpu_s"] for run in runs[f"{revision} {kind}"])
            for revision in ("now", "before")
        )
        print(f"{kind}: {now / then:.2f} of the CPU before (at most {TARGET})")


if __name__ == "__main__":
    main()
