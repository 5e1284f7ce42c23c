"""A real Kafka broker, from Maven's artefacts: one node that is broker and controller."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from free_ports import free_ports
from missing import left_out
from node_js import CACHE
from polling import wait_until

VERSION = "4.3.1"
JARS = CACHE / f"kafka-{VERSION}"
FETCH_SECONDS, START_SECONDS = 300.0, 120.0
HEAP = ("-Xms256m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""
PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=200
log.cleaner.threads=1
num.network.threads=1
num.io.threads=2
"""
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


def jars() -> Path:
    """Return the folder of the server's jars, from Maven Central once; it appears whole."""
    if shutil.which("java") is None:
        left_out("a Kafka broker needs java 17 or newer")
    if JARS.is_dir():
        return JARS
    maven = shutil.which("mvn")
    if maven is None:
        left_out(f"a Kafka broker: install mvn, which fetches it, or put its jars into {JARS}")
    fresh = JARS.with_name(f"{JARS.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    (fresh / "pom.xml").write_text(POM)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={fresh}"],
            cwd=fresh, capture_output=True, timeout=FETCH_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode or not list(fresh.glob("kafka_2.13-*.jar")):
            left_out(f"a Kafka broker: Maven cannot fetch it: {done.stdout.decode()[-300:]}")
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(JARS)
    except subprocess.TimeoutExpired:
        left_out(f"a Kafka broker: Maven did not fetch it in {FETCH_SECONDS} s")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return JARS


def java(main: str, *arguments: str) -> list[str]:
    """Return the command that runs a class of Kafka's."""
    return ["java", *HEAP, "-cp", f"{jars()}/*", main, *arguments]


@contextlib.contextmanager
def running_kafka(folder: Path) -> Iterator[str]:
    """Run a broker in a folder until `with` ends; yield its address. It is killed at the end."""
    folder.mkdir(parents=True)
    port, controller = free_ports(2)
    config = folder / "server.properties"
    config.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    with (folder / "log").open("wb") as log:
        storage = java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config))
        subprocess.run(storage, check=True, cwd=folder, stdout=log, stderr=log)
        process = subprocess.Popen(
            java("kafka.Kafka", str(config)), cwd=folder, stdout=log, stderr=log
        )
    try:
        wait_until(
            lambda: process.poll() is not None or _listens(port),
            what="the broker listens",
            seconds=START_SECONDS,
        )
        assert process.poll() is None, (folder / "log").read_text()[-2000:]
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
