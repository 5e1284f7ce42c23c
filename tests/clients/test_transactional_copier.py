"""Kafka's own `TransactionalMessageCopier` with random aborts, while nodes and copiers are killed:
each record is in the copy once, and in order."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import committed_numbers
import pytest
from clients.test_kafka_clients import JAVA, kafka_jars
from clients.test_kafka_failover import servers
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from long_tests import long
from missing import needed_program
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster

pytestmark = pytest.mark.process
TOOL = "org.apache.kafka.tools.TransactionalMessageCopier"
PARTITIONS, RECORDS, EACH = 2, 400, 20  # records of a partition, and of a transaction
SECONDS, STARTS_MAX = 90.0, 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("copier") / "c"
    with dev_cluster(folder, "--nodes", "3", "--cores", "1", "--groups", "6") as running:
        yield running


class Copier(threading.Thread):
    """A copier that is started again until it is done. `lines`: what the present one has
    printed."""

    def __init__(self, jars: Path, bootstrap: str, round_: str, *how: str) -> None:
        super().__init__()
        self._command = [
            "java", *JAVA, "-cp", f"{jars}/*", TOOL, "--broker-list", bootstrap,
            "--input-topic", f"{round_}-from", "--output-topic", f"{round_}-to",
            "--transaction-size", str(EACH), "--enable-random-aborts", "--use-group-metadata", *how,
        ]  # fmt: skip
        self.starts, self.lines, self.code = 0, list[str](), -1
        self.process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        while self.code != 0 and self.starts < STARTS_MAX:
            self.starts += 1
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert self.process.stdout is not None
            self.lines += self.process.stdout
            self.code = self.process.wait()


def create(bootstrap: str, profile: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = [NewTopic(topic, PARTITIONS, 3, config={"profile": profile}) for topic in topics]
    for done in admin.create_topics(made).values():
        done.result(SECONDS)


def write(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(RECORDS):
        for part in range(PARTITIONS):
            producer.produce(topic, b"%d" % number, partition=part)
    assert producer.flush(SECONDS) == 0


def committed(bootstrap: str, topic: str) -> list[list[int]]:
    return committed_numbers.committed(bootstrap, topic, PARTITIONS, SECONDS)


def are_copying(copiers: list[Copier], bootstrap: str, topic: str) -> bool:
    """Report whether some have written a few transactions, or are done."""
    if any(copier.code == 0 for copier in copiers):
        return True
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "looks"})
    try:
        partitions = [TopicPartition(topic, part) for part in range(PARTITIONS)]
        return any(
            consumer.get_watermark_offsets(each, SECONDS)[1] > 3 * EACH for each in partitions
        )
    finally:
        consumer.close()


@pytest.mark.parametrize("number", [0, *long(range(1, 20))])
def test_each_record_is_copied_once(cluster: DevCluster, number: int) -> None:
    jars, bootstrap, name = kafka_jars(needed_program("mvn")), servers(cluster), f"round{number}"
    is_group, profile = number % 2 == 1, ("replicated", "diskless")[number // 2 % 2]
    create(bootstrap, profile, f"{name}-from", f"{name}-to")
    write(bootstrap, f"{name}-from")
    first = ("--input-partition", "0")  # of which a group makes no use, but the tool demands it
    group = ("--consumer-group", f"{name}-group", "--transactional-id")
    if is_group:
        copiers = [Copier(jars, bootstrap, name, *group, name, "--group-mode", *first)]
    else:
        copiers = [
            Copier(jars, bootstrap, name, *group, f"{name}-{part}", "--input-partition", f"{part}")
            for part in range(PARTITIONS)
        ]
    for copier in copiers:
        copier.start()
    wait_until(
        lambda: are_copying(copiers, bootstrap, f"{name}-to"), what="copies", seconds=SECONDS
    )
    node = 1 + number % 3
    cluster.kill(node)
    process = copiers[0].process
    if not is_group and process is not None:  # a group would wait for the member's session
        process.kill()
    cluster.start(node)
    for copier in copiers:
        copier.join(SECONDS)
        assert copier.code == 0, "".join(copier.lines[-30:])
    expected = [list(range(RECORDS))] * PARTITIONS
    assert committed(bootstrap, f"{name}-to") == expected
