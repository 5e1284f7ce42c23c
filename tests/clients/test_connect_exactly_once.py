"""Kafka Connect with `exactly.once.source.support`: a distributed worker copies a file into a topic and is
killed; each line is there once. (A standalone worker has no exactly-once sources: KIP-618.)"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from clients.test_kafka_clients import JAVA, kafka_jars
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from free_ports import free_ports
from long_tests import long
from missing import needed_program
from polling import wait_until
from product import RunningNode

pytestmark = pytest.mark.process
SECONDS = 120.0
LINES = 3000  # before the worker is killed, and as many behind
WORKER = """
bootstrap.servers={bootstrap}
group.id=connect
exactly.once.source.support=enabled
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
offset.storage.partitions=2
status.storage.replication.factor=1
status.storage.partitions=1
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
listeners=http://127.0.0.1:{port}
session.timeout.ms=6000
heartbeat.interval.ms=2000
scheduled.rebalance.max.delay.ms=0
plugin.discovery=service_load
"""
CONNECTOR = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
    "tasks.max": "1",
    "topic": "lines",
    "batch.size": "50",
    "exactly.once.support": "required",
    "transaction.boundary": "poll",
}


@contextmanager
def worker(folder: Path, bootstrap: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    maven = needed_program("mvn")
    jars, plugins = kafka_jars(maven, "connect-runtime"), kafka_jars(maven, "connect-file")
    config = folder / "worker.properties"
    config.write_text(WORKER.format(bootstrap=bootstrap, port=port))
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    with (folder / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            ["java", *JAVA, "-cp", f"{jars}/*:{plugins}/*", main, str(config)],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(port: int, method: str, path: str, body: object = None) -> dict[str, object] | None:
    """Return the worker's answer; None while it does not answer, or refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, method=method)
    request.add_header("content-type", "application/json")
    try:
        with urlopen(request, timeout=20) as answer:
            found: dict[str, object] = json.loads(answer.read())
            return found
    except HTTPError as refused:
        if refused.code not in (404, 409, 500, 503):  # else it starts, or rebalances
            raise AssertionError(refused.read()) from None
    except OSError:
        pass
    return None


def has_failed(port: int) -> bool:
    return "FAILED" in json.dumps(ask(port, "GET", "/connectors/lines/status"))


def write(path: Path, begin: int) -> None:
    with path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(begin, begin + LINES))


class Reader:
    """The committed lines of the topic so far."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition("lines", 0, 0)])
        self.lines: list[str] = []

    def has(self, count: int) -> bool:
        for message in self._consumer.consume(500, timeout=0.2):
            if message.error() is None:
                self.lines.append(message.value().decode())
        return len(self.lines) >= count

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize("profile", long(["replicated", "diskless"]))
def test_a_killed_worker_copies_each_line_once(tmp_path: Path, profile: str) -> None:
    node = RunningNode(tmp_path / "data", ("--cores", "1", "--diskless-interval", "50ms"))
    source, (port,) = tmp_path / "source", free_ports(1)
    reader = Reader(node.kafka)
    try:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        made = NewTopic("lines", 1, 1, config={"profile": profile})
        admin.create_topics([made])["lines"].result(SECONDS)
        write(source, 0)
        with worker(tmp_path, node.kafka, port) as process:
            config = {**CONNECTOR, "file": str(source)}
            wait_until(
                lambda: (
                    process.poll() is not None
                    or ask(port, "PUT", "/connectors/lines/config", config)
                ),
                what="the connector",
                seconds=SECONDS,
            )
            assert process.poll() is None, (tmp_path / "worker.log").read_text()[-4000:]
            wait_until(lambda: reader.has(LINES // 3), what="some lines", seconds=SECONDS)
        write(source, LINES)  # the worker is dead
        write(source, 2 * LINES)  # the connector keeps its last batches until there are more lines
        with worker(tmp_path, node.kafka, port):
            wait_until(
                lambda: reader.has(2 * LINES) or has_failed(port), what="lines", seconds=SECONDS
            )
            assert not has_failed(port), json.dumps(ask(port, "GET", "/connectors/lines/status"))
        assert reader.lines[: 2 * LINES] == [f"line {number}" for number in range(2 * LINES)]
    finally:
        reader.close()
        assert node.stop() == 0, "".join(node.log)
