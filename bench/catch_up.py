"""The CPU that a catch-up read of cold data costs with compressed packs, beside raw ones.

    PYTHONPATH=src python -m bench.catch_up [--mib 512] [--rounds 5]

Two nodes of one core hold the same stream of flights as JSON, all of it in packs, one with
`cold.compression=zstd` and one with `none`. Each round reads the stream from start to end at each, on
one connection. A figure is the CPU of the node's processes for each MiB of JSON; nothing of a round
is cached for the next one, as the stream is larger than the caches. The goal is a ratio of 2.
"""

from __future__ import annotations

import argparse
import http.client
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from bench.bulk import MIB, PAGE_BYTES, Servers, serving
from chaos.ports import keep_row
from polynya.cli.demo.flights import rows

STREAM = "/v1/stream/bench/flights"
JSON = {"Content-Type": "application/json"}
APPEND_RECORDS = 2000
FLUSH_SECONDS = 120.0
CODECS = ("none", "zstd")


@contextmanager
def node(codec: str, directory: str | None) -> Iterator[Servers]:
    """Start a node of one core that flushes all that is a second old."""
    folder = Path(tempfile.mkdtemp(prefix="bench-catch-up-", dir=directory))
    port = keep_row(2)
    line = f"-m polynya serve --cores 1 --listen 127.0.0.1:{port} --kafka-listen 127.0.0.1:0"
    settings = f"--cold-compression {codec} --cold-flush-max-age-ms 1000"
    command = [sys.executable, *line.split(), *settings.split(), "--data", str(folder / "data")]
    with serving(command, port, folder, {}) as servers:
        yield servers


class Reader:
    """A connection to a node."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self._link = http.client.HTTPConnection("127.0.0.1", servers.port, timeout=60)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[bytes, str]:
        """Return the body of an answer and the next offset. Raises RuntimeError for an error."""
        self._link.request(method, path, body, JSON)
        answer = self._link.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {data[:200]!r}")
        return data, answer.headers.get("Stream-Next-Offset") or ""

    def fill(self, size: int) -> None:
        """Append flights, and wait until all of them are in packs."""
        self.ask("PUT", STREAM)
        written = 0
        while written < size:
            some: list[bytes] = []
            for row in rows():
                some.append(msgspec.json.encode(row))
                if len(some) == APPEND_RECORDS:
                    body = b"[%b]" % b",".join(some)
                    self.ask("POST", STREAM, body)
                    written += len(body)
                    some = []
                    if written >= size:
                        break
        deadline = time.monotonic() + FLUSH_SECONDS
        while self._hot_bytes() and time.monotonic() < deadline:
            time.sleep(0.5)
        if hot := self._hot_bytes():
            raise RuntimeError(f"{hot:.0f} bytes are still in memory after {FLUSH_SECONDS:.0f} s")
        self.servers.settle()

    def _hot_bytes(self) -> float:
        text = self.ask("GET", "/metrics")[0].decode()
        return sum(
            map(float, re.findall(r"^polynya_hot_bytes(?:{[^}]*})? (\S+)", text, re.MULTILINE))
        )

    def read(self) -> Figures:
        """Read the stream from start to end."""
        cpu, begin, size, offset = self.servers.cpu(), time.perf_counter(), 0, "-1"
        while True:
            body, following = self.ask("GET", f"{STREAM}?offset={offset}&max_bytes={PAGE_BYTES}")
            if following == offset:
                break
            size, offset = size + len(body), following
        mib = size / MIB
        return {
            "cpu_ms_per_mib": (self.servers.cpu() - cpu) * 1000 / mib,
            "mib_per_second": mib / (time.perf_counter() - begin),
            "mib": mib,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=512, help="JSON in the stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where the nodes keep their data (a real disk)")
    arguments = parser.parse_args()
    print(machine())
    with ExitStack() as stack:
        readers = {
            codec: Reader(stack.enter_context(node(codec, arguments.directory))) for codec in CODECS
        }
        for reader in readers.values():
            reader.fill(arguments.mib * MIB)
            reader.read()
        runs = in_turn(CODECS, arguments.rounds, lambda codec: readers[codec].read())
    raw = statistics.median(run["cpu_ms_per_mib"] for run in runs["none"])
    ratios = {
        codec: statistics.median(run["cpu_ms_per_mib"] for run in found) / raw
        for codec, found in runs.items()
    }
    print(table("compression", runs, {"CPU beside raw": ratios}))


if __name__ == "__main__":
    main()
