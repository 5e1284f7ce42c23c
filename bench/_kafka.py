"""Apache Kafka for the benchmarks: its jars from Maven Central, its nodes, and its load
generator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from bench._nodes import ROW, START_SECONDS, cpu_of, is_listening
from chaos.ports import keep_row

VERSION = "4.3.1"
JARS = Path(__file__).parents[1] / ".build" / f"kafka-{VERSION}"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{version}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{version}</version></dependency>
</dependencies></project>
"""
PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}
num.partitions=6
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
default.replication.factor={replicas}
min.insync.replicas={insync}
group.initial.rebalance.delay.ms=0
"""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
HEAP = ("-Xms512m", "-Xmx1g")


def jars() -> Path:
    """Return the folder of the server's jars: $KAFKA_LIBS, or a copy that is fetched once from
    Maven Central."""
    named = os.environ.get("KAFKA_LIBS")
    if named:
        return Path(named)
    if not JARS.is_dir():
        fresh = JARS.with_name(f"{JARS.name}.{os.getpid()}")
        fresh.mkdir(parents=True)
        (fresh / "pom.xml").write_text(POM.format(version=VERSION))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*command, f"-DoutputDirectory={fresh}"], cwd=fresh, check=True)
        fresh.rename(JARS)
    return JARS


def java(main: str, *arguments: str, heap: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs a class of Kafka's."""
    return ["java", *heap, "-cp", f"{jars()}/*", main, *arguments]


class KafkaNodes:
    """Nodes that are brokers and controllers, with Kafka's defaults: without fsync."""

    def __init__(self, count: int, directory: str | None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-kafka-", dir=directory))
        self.port = keep_row(ROW)
        self._log = open(self.folder / "log", "wb")  # noqa: SIM115 (closed with the processes)
        ports = [self.port + 10 * node for node in range(count)]
        voters = ",".join(f"{node}@127.0.0.1:{port + 1}" for node, port in enumerate(ports))
        self._processes = []
        for node, port in enumerate(ports):
            config = self.folder / f"n{node}.properties"
            text = PROPERTIES.format(
                node=node,
                voters=voters,
                port=port,
                controller=port + 1,
                folder=self.folder / f"data-{node}",
                replicas=count,
                insync=count // 2 + 1,
            )
            config.write_text(text)
            storage = java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config))
            subprocess.run(storage, check=True, stdout=self._log, stderr=self._log)
        for node in range(count):
            command = java("kafka.Kafka", str(self.folder / f"n{node}.properties"), heap=HEAP)
            self._processes.append(
                subprocess.Popen(command, cwd=self.folder, stdout=self._log, stderr=self._log)
            )
        self.nodes = [[psutil.Process(process.pid)] for process in self._processes]
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        deadline = time.monotonic() + START_SECONDS
        while not all(map(is_listening, ports)):
            if time.monotonic() > deadline or any(each.poll() for each in self._processes):
                sys.exit(f"Kafka did not come up: see {self.folder / 'log'}")
            time.sleep(0.2)

    def cpu(self) -> float:
        return sum(cpu_of(self.nodes))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Produced:
    """Results of Kafka's load generator."""

    def __init__(self, output: str) -> None:
        last = output.strip().splitlines()[-1]
        rate = re.search(r"\(([0-9.]+) MB/sec\)", last)
        p50 = re.search(r"([0-9]+) ms 50th", last)
        p99 = re.search(r"([0-9]+) ms 99th", last)
        if rate is None or p50 is None or p99 is None:
            sys.exit(f"unexpected output of the load generator:\n{output[-2000:]}")
        self.mib_per_second = float(rate[1])  # its MB are 2^20 bytes
        self.p50_ms, self.p99_ms = float(p50[1]), float(p99[1])


def produce(
    bootstrap: str, topic: str, records: int, *, batch: int, rate: int = -1, size: int = 1000
) -> Produced:
    """Produce by Kafka's own load generator: acks=all, idempotent, 5 ms of linger."""
    command = java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(records), "--record-size", str(size)),
        *("--throughput", str(rate), "--producer-props", f"bootstrap.servers={bootstrap}"),
        *("acks=all", "linger.ms=5", f"batch.size={batch}"),
        heap=HEAP,
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"the load generator failed:\n{done.stdout[-1500:]}{done.stderr[-1500:]}")
    return Produced(done.stdout)
