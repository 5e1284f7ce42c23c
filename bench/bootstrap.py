"""A bootstrap beside reads of the same bytes: the newest snapshot and the records behind it in one
answer, and by a GET each.

    python -m bench.bootstrap --rounds 5

One node, one connection, one request after the other; rounds alternate. `bytes` is what the last
answers had. `ms` is the median of a round, `cpu_ms` what the server spent for each.
`--tree FOLDER` is the checkout whose node is measured.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from bench.bulk import MIB, Servers, one_node

STREAM = "/v1/stream/bench/doc"
JSON = {"Content-Type": "application/json"}


class Reader:
    """A connection to the node."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.link = http.client.HTTPConnection("127.0.0.1", servers.port, timeout=60)
        self.snapshot = self.tail = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = JSON
    ) -> bytes:
        """Return the body of an answer. Raises RuntimeError for an error."""
        self.link.request(method, path, body, {**headers})
        answer = self.link.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:200]!r}")
        self.tail = answer.headers.get("Stream-Next-Offset") or self.tail
        return data

    def fill(self, snapshot_bytes: int, records: int, record_bytes: int) -> None:
        """Publish a snapshot behind a hundred records, and append the records behind it."""
        record = b'{"text":"%b"}' % (b"x" * (record_bytes - 11))
        self.ask("PUT", STREAM)
        self.ask("POST", STREAM, b"[%b]" % b",".join([record] * 100))
        self.snapshot = self.tail
        body = b'{"text":"%b"}' % os.urandom((snapshot_bytes - 11) // 2).hex().encode()
        self.ask("PUT", f"{STREAM}/snapshot/{self.snapshot}", body)
        for begin in range(0, records, 100):
            some = min(100, records - begin)
            self.ask("POST", STREAM, b"[%b]" % b",".join([record] * some))

    def reads(self) -> int:
        """Read the snapshot and the records by a GET each."""
        body = self.ask("GET", f"{STREAM}/snapshot/{self.snapshot}", headers={})
        return len(body) + len(self.ask("GET", f"{STREAM}?offset={self.snapshot}", headers={}))

    def bootstrap(self, accept: str) -> int:
        return len(self.ask("GET", f"{STREAM}/bootstrap", headers={"Accept": accept}))

    def measured(self, work: Callable[[], int], count: int) -> Figures:
        """Repeat a read and return its figures."""
        work()
        cpu, seconds, size = self.servers.cpu(), [], 0
        for _ in range(count):
            begin = time.perf_counter()
            size = work()
            seconds.append(time.perf_counter() - begin)
        spent = (self.servers.cpu() - cpu) / count
        return {"ms": statistics.median(seconds) * 1000, "cpu_ms": spent * 1000, "bytes": size}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=100, help="reads in a round")
    parser.add_argument("--snapshot-bytes", type=int, default=MIB)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--tree", default=str(Path(__file__).parents[1]), metavar="FOLDER")
    parser.add_argument("--directory", help="where the server keeps its data (a real disk)")
    arguments = parser.parse_args()
    arguments.trees = {"node": arguments.tree}
    print(machine())
    with one_node("node", arguments) as servers:
        reader = Reader(servers)
        reader.fill(arguments.snapshot_bytes, arguments.records, arguments.record_bytes)
        lasting = [process for process in servers.processes if process.is_running()]
        reader.servers = servers._replace(processes=lasting)  # without those of the start
        works: dict[str, Callable[[], int]] = {
            "reads": reader.reads,
            "multipart": partial(reader.bootstrap, "multipart/mixed"),
            "json": partial(reader.bootstrap, "application/json"),
        }
        runs = in_turn(
            list(works),
            arguments.rounds,
            lambda name: reader.measured(works[name], arguments.count),
        )
    plain = statistics.median(run["ms"] for run in runs["reads"])
    ratios = {
        name: statistics.median(run["ms"] for run in found) / plain for name, found in runs.items()
    }
    print(table("read", runs, {"beside reads": ratios}))


if __name__ == "__main__":
    main()
