"""The freshness of tables: how long from an append to its row in SQL, with many tables and streams that
trickle, one worker and one node on this machine?
`python -m bench.table_freshness [--tables 100] [--streams 10000] [--interval 60] [--seconds 600] [--save]`.

Each stream gets a record an interval, spread evenly. A probe is a record with a number of its own in a
random table; it is there when `POST /v1/sql` has its row. The first two intervals do not count.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import _results
from bench._lake import LakeNode, lake_node, machine, workers
from bench._rounds import Figures, Runs, table

POLL_SECONDS = 0.5
MAKERS = 8  # threads that create streams
PROBES_PER_INTERVAL = 60
WARM_INTERVALS = 2
BATCH = 50  # streams that get their record at once


class Probes:
    """Records whose rows are awaited."""

    def __init__(self, node: LakeNode, tables: list[str]) -> None:
        self.node = node
        self.tables = tables
        self.waiting: dict[str, dict[int, float]] = {name: {} for name in tables}
        self.seconds: list[float] = []
        self._rows: dict[str, int] = {}
        self._next = 1

    def send(self, draw: random.Random) -> None:
        name = draw.choice(self.tables)
        number, self._next = self._next, self._next + 1
        self.waiting[name][number] = time.perf_counter()
        self.node.append(f"{name}/probe", [{"probe": number}])

    def look(self) -> None:
        """Ask SQL for the probes of the tables that have grown."""
        rows = self.node.rows()
        for name, count in rows.items():
            wanted = self.waiting.get(name)
            if wanted and self._rows.get(name) != count:
                for number in self._found(name, min(wanted)):
                    if (sent := wanted.pop(number, None)) is not None:
                        self.seconds.append(time.perf_counter() - sent)
        self._rows = rows

    def _found(self, name: str, least: int) -> list[int]:
        question = {
            "sql": f"select probe from {name} where probe >= {least}",
            "rows": 1000,
        }
        answer = self.node.http.post("/v1/sql", json=question)
        if answer.status_code != 200:
            return []
        return [int(row[0]) for row in rows_of(answer.text)]

    def left(self) -> int:
        return sum(len(each) for each in self.waiting.values())


def rows_of(text: str) -> list[list[str]]:
    """Return the rows of an SQL answer."""
    answer = json.loads(text)
    return [list(row.values()) if isinstance(row, dict) else row for row in answer["rows"]]


def trickle(node: LakeNode, streams: list[str], interval: float, over: threading.Event) -> None:
    """Append a record to each stream every interval."""
    pause = interval * BATCH / len(streams)
    with ThreadPoolExecutor(4) as pool:
        begin, turn = time.perf_counter(), 0
        while not over.is_set():
            first = turn * BATCH % len(streams)
            some = streams[first : first + BATCH]
            record = {"n": turn, "text": "x" * 100}
            list(pool.map(node.append, some, [[record]] * len(some)))
            turn += 1
            over.wait(max(0.0, begin + turn * pause - time.perf_counter()))


def run_once(options: argparse.Namespace) -> Figures:
    tables = [f"t{number}" for number in range(options.tables)]
    streams = [f"{tables[number % options.tables]}/s{number}" for number in range(options.streams)]
    draw, over = random.Random(7), threading.Event()
    with (
        lake_node(options.directory) as node,
        tempfile.TemporaryDirectory(prefix="polynya-bench-") as folder,
    ):
        for name in tables:
            node.create_table(name)
        with ThreadPoolExecutor(MAKERS) as pool:
            list(pool.map(node.create_stream, [*streams, *(f"{name}/probe" for name in tables)]))
        for name in tables:
            node.append(f"{name}/probe", [{"probe": 0}])
        interval = float(options.interval)
        writer = threading.Thread(target=trickle, args=(node, streams, interval, over))
        writer.start()
        try:
            with workers(node, Path(folder), count=1, interval=f"{interval:g}s", pinned=False):
                probes = Probes(node, tables)
                _observe(probes, draw, options)
        finally:
            over.set()
            writer.join()
    found = sorted(probes.seconds)
    if not found:
        raise SystemExit("no probe became a row")
    return {
        "probes": float(len(found)),
        "p50_s": found[len(found) // 2],
        "p99_s": found[min(len(found) - 1, len(found) * 99 // 100)],
        "worst_s": found[-1],
    }


def _observe(probes: Probes, draw: random.Random, options: argparse.Namespace) -> None:
    begin = time.perf_counter()
    pause, due = options.interval / PROBES_PER_INTERVAL, begin
    warm_until = begin + WARM_INTERVALS * options.interval
    end = warm_until + options.seconds
    is_warm = False
    while (now := time.perf_counter()) < end or (
        probes.left() and now < end + 3 * options.interval
    ):
        if not is_warm and now >= warm_until:
            is_warm = True
            for waiting in probes.waiting.values():
                waiting.clear()
            probes.seconds.clear()
        if now >= due and now < end:
            probes.send(draw)
            due += pause
        probes.look()
        time.sleep(min(POLL_SECONDS, pause))
    if probes.left():
        print(f"{probes.left()} probes have no row after {3 * options.interval} s more")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--interval", type=int, default=60, help="of the worker, in seconds")
    parser.add_argument("--seconds", type=int, default=600, help="that are measured")
    parser.add_argument("--directory", help="where the node keeps its data (a real disk)")
    _results.add_option(parser)
    options = parser.parse_args()
    print(machine())
    name = f"{options.tables} tables, {options.streams:,} streams, every {options.interval} s"
    runs: Runs = {name: [run_once(options)]}
    print(table("tables", runs))
    goal = 1.5 * options.interval + 5
    print(f"p99 {runs[name][0]['p99_s']:.1f} s (goal: {goal:g})")
    if options.save:
        _results.save("table_freshness", runs)


if __name__ == "__main__":
    main()
