"""Appends at full speed for a while: memory, descriptors and the journal's disk stay flat once the
bounds are reached.

`E2E_SOAK_SECONDS` makes it longer; run with `-s` it prints what it measured.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest
from e2e_world import JSON, World, address, descriptors, file_sizes, metric, resident

pytestmark = pytest.mark.process
SECONDS = float(os.environ.get("E2E_SOAK_SECONDS", "8"))
STREAMS = 64
PIPELINED = 32
MIB = 1 << 20


class Flood(threading.Thread):
    """Pipelined appends over all streams on one connection. `taken` counts the acknowledged,
    `refused` the others."""

    def __init__(self, world: World, number: int, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        self.taken = self.refused = 0
        self._stopping = stopping
        self._connection = socket.create_connection(address(world.url), timeout=30)
        body = json.dumps([{"writer": number, "pad": "x" * 2000}]).encode()
        head = (
            f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "\r\n"
        ).encode()
        lines = [
            f"POST /v1/stream/soak/s{stream} HTTP/1.1\r\n".encode() for stream in range(STREAMS)
        ]
        self._rounds = [
            b"".join(line + head + body for line in lines[begin : begin + PIPELINED])
            for begin in range(0, STREAMS, PIPELINED)
        ]

    def run(self) -> None:
        turn = 0
        with self._connection:
            while not self._stopping.is_set():
                self._connection.sendall(self._rounds[turn % len(self._rounds)])
                turn += 1
                answers, data = 0, b""
                while answers < PIPELINED:
                    piece = self._connection.recv(65536)
                    assert piece, "the server closed the connection"
                    data += piece
                    answers = data.count(b"HTTP/1.1 ")
                    if answers == PIPELINED and not data.endswith((b"\r\n\r\n", b"}")):
                        answers = 0
                self.taken += data.count(b"HTTP/1.1 204")
                self.refused += data.count(b"HTTP/1.1 503")


@pytest.mark.timeout(600)
@pytest.mark.long
def test_memory_descriptors_and_journal_are_flat_under_full_speed(world: World) -> None:
    world.start("--cores", "2", POLYNYA_COLD_MAX_HOT_BYTES_PER_GROUP=str(8 * MIB))
    for number in range(STREAMS):
        assert world.ask("PUT", f"/v1/stream/soak/s{number}", **JSON).status == 201
    stopping = threading.Event()
    floods = [Flood(world, number, stopping) for number in range(6)]
    cores = world.cores()
    samples: list[tuple[float, int, int, int, int]] = []
    began = time.monotonic()
    for flood in floods:
        flood.start()
    while (passed := time.monotonic() - began) < SECONDS:
        stopping.wait(SECONDS / 40)
        journal = sum(
            each.st_size
            for core in range(2)
            for each in file_sizes(world.data / f"core-{core}" / "journal")
        )
        samples.append(
            (
                passed,
                sum(flood.taken for flood in floods),
                resident(cores),
                descriptors(cores),
                journal,
            )
        )
        assert all(flood.is_alive() for flood in floods)
    stopping.set()
    for flood in floods:
        flood.join(60)
    report(world, samples, sum(flood.refused for flood in floods))
    assert world.cores() == cores, "a core died"
    half = samples[len(samples) // 2 :]
    first, last = half[: len(half) // 4], half[-(len(half) // 4) :]
    for column, slack in ((2, 64 * MIB), (3, 20), (4, 4 * 64 * MIB)):
        before, after = (max(sample[column] for sample in some) for some in (first, last))
        assert after <= before * 1.15 + slack, (column, samples)
    assert sum(len(world.records(f"soak/s{number}")) for number in (0, 63)) > 0


def report(world: World, samples: list[tuple[float, int, int, int, int]], refused: int) -> None:
    print(f"\n{'s':>6} {'appends':>9} {'RSS MiB':>8} {'fds':>5} {'journal MiB':>11}")
    for passed, taken, rss, fds, journal in samples[:: max(1, len(samples) // 20)]:
        print(f"{passed:6.1f} {taken:9} {rss / MIB:8.1f} {fds:5} {journal / MIB:11.1f}")
    print(
        f"{samples[-1][1] / samples[-1][0]:.0f} appends/s, {refused} refused; packs "
        f"{metric(world, 'polynya_flush_packs_total'):.0f}"
    )
