"""Apache Kafka beside Polynya: Kafka's own producer and librdkafka's consumer against both.

    python -m bench.kafka [--nodes 1] [--rounds 3] [--megabytes 150] [--batch 131072]

Records of 1,000 bytes, 6 partitions, acks=all, the producer's defaults but 5 ms of linger and the
batch size. Polynya fsyncs; Kafka does not, as is its default. A round starts fresh servers and
warms them up. Then it produces as fast as it goes, reads everything, and produces at `--paced`
MiB/s for the latency. CPU is that of all servers. Needs java, and mvn or $KAFKA_LIBS.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Protocol

import psutil
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import _results
from bench._kafka import KafkaNodes, produce
from bench._nodes import Cluster, cpu_of, is_listening, machine
from bench._rounds import Figures, in_turn, table
from chaos.ports import keep_row

PARTITIONS = 6
RECORD = 1000
MIB = 1 << 20
KAFKA_PORT = 3  # above a node's own in `cluster dev`
WARM_RECORDS = 60_000


class Servers(Protocol):
    bootstrap: str

    def cpu(self) -> float:
        """Return the CPU seconds of all servers so far."""
        ...

    def close(self) -> None: ...


class OneNode:
    """`polynya serve` with one core."""

    def __init__(self, directory: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-one-", dir=directory))
        port = keep_row(KAFKA_PORT + 1)
        self.bootstrap = f"127.0.0.1:{port + KAFKA_PORT}"
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "polynya", "serve", "--cores", "1"]
        command += ["--listen", f"127.0.0.1:{port}", "--data", str(self.folder / "data")]
        with open(self.folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*command, "--kafka-listen", self.bootstrap], stdout=log, stderr=log
            )
        while not is_listening(port + KAFKA_PORT):
            if self._process.poll() is not None:
                sys.exit(f"the node did not come up:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.1)

    def cpus(self) -> list[float]:
        family = psutil.Process(self._process.pid)
        return cpu_of([[family, *family.children(recursive=True)]])

    def cpu(self) -> float:
        return sum(self.cpus())

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class ThreeOfOurs:
    """`polynya cluster dev`, each node with one core."""

    def __init__(self, directory: str | None) -> None:
        self._cluster = Cluster(directory=directory)
        ports = [self._cluster.port + 10 * node + KAFKA_PORT for node in range(3)]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def cpus(self) -> list[float]:
        """Return the CPU seconds of each node so far, by its number."""
        return self._cluster.cpu()

    def cpu(self) -> float:
        return sum(self.cpus())

    def close(self) -> None:
        self._cluster.close()


def started(server: str, arguments: argparse.Namespace) -> Servers:
    if server == "kafka":
        return KafkaNodes(arguments.nodes, arguments.directory)
    return (
        OneNode(arguments.directory) if arguments.nodes == 1 else ThreeOfOurs(arguments.directory)
    )


def create(servers: Servers, topic: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    deadline = time.monotonic() + 60
    while True:
        made = admin.create_topics([NewTopic(topic, PARTITIONS, replicas)])[topic]
        try:
            made.result(30)
            return
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def consume(bootstrap: str, topic: str, count: int) -> float:
    """Read that many records from the beginning; return the seconds from the first to the last."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "check.crcs": False,
            "queued.max.messages.kbytes": 65536,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    begin, got = time.monotonic(), 0
    while got < count:
        some = consumer.consume(10_000, timeout=30)
        assert some, f"only {got} of {count} records came"
        got += len(some)
    took = time.monotonic() - begin
    consumer.close()
    return took


def run_once(server: str, arguments: argparse.Namespace) -> Figures:
    servers = started(server, arguments)
    records = arguments.megabytes * 1_000_000 // RECORD
    mib = records * RECORD / MIB
    try:
        create(servers, "warm", arguments.nodes)
        produce(servers.bootstrap, "warm", WARM_RECORDS, batch=arguments.batch)
        consume(servers.bootstrap, "warm", WARM_RECORDS)
        create(servers, "load", arguments.nodes)
        before = servers.cpu()
        full = produce(servers.bootstrap, "load", records, batch=arguments.batch)
        produced = servers.cpu()
        time.sleep(arguments.pause)
        stored = servers.cpu()
        seconds = consume(servers.bootstrap, "load", records)
        consumed = servers.cpu()
        create(servers, "paced", arguments.nodes)
        rate = int(arguments.paced * MIB / RECORD)
        paced = produce(servers.bootstrap, "paced", 8 * rate, batch=arguments.batch, rate=rate)
        return {
            "mib_per_second": full.mib_per_second,
            # what is flushed afterwards belongs to it
            "produce_cpu_ms_per_mib": (stored - before) / mib * 1000,
            "produce_cpu_ms_meanwhile": (produced - before) / mib * 1000,
            "fetch_mib_per_second": mib / seconds,
            "fetch_cpu_ms_per_mib": (consumed - stored) / mib * 1000,
            "p50_ms": paced.p50_ms,
            "p99_ms": paced.p99_ms,
        }
    finally:
        servers.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    parser.add_argument("--servers", default="polynya,kafka")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=150)
    parser.add_argument("--batch", type=int, default=131_072, help="bytes of a producer's batch")
    parser.add_argument("--paced", type=float, default=10.0, help="MiB/s while latency is measured")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds before it is read")
    parser.add_argument("--directory", help="where the servers keep their data (a real disk)")
    _results.add_option(parser)
    arguments = parser.parse_args()
    print(machine())
    runs = in_turn(
        arguments.servers.split(","),
        arguments.rounds,
        lambda server: run_once(server, arguments),
    )
    print(table("server", runs))
    if arguments.save:
        _results.save(f"kafka_{arguments.nodes}", runs)


if __name__ == "__main__":
    main()
