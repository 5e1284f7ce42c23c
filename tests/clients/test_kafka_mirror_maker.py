"""MirrorMaker 2 of Kafka 4.3.1 beside a node and a real Kafka: topics, records and the positions of
a group go out to Kafka and in from it at the same time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clients.test_kafka_clients import kafka_jars
from clients.test_kafka_mirror import created, ends, producer, rows
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from missing import needed_program
from polling import wait_until
from product import RunningNode, running_node
from worlds.kafka_server import running_kafka

pytestmark = [pytest.mark.process, pytest.mark.long]

SECONDS = 120.0
COUNT = 200
SETTINGS = """
clusters = here, there
here.bootstrap.servers = {here}
there.bootstrap.servers = {there}
here->there.enabled = true
here->there.topics = out
there->here.enabled = true
there->here.topics = in
replication.factor = 1
checkpoints.topic.replication.factor = 1
heartbeats.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
config.storage.replication.factor = 1
status.storage.replication.factor = 1
refresh.topics.interval.seconds = 1
refresh.groups.interval.seconds = 1
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
offset.lag.max = 0
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_kafka(tmp_path_factory.mktemp("kafka") / "kafka") as address:
        yield address


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("node") / "node", "--cores", "1") as node:
        yield node


@contextmanager
def mirror_maker(folder: Path, here: str, there: str) -> Iterator[Path]:
    """Run it; yield its log. It ends with the block."""
    jars = kafka_jars(needed_program("mvn"), "connect-mirror")
    settings, log = folder / "mm2.properties", folder / "mm2.log"
    settings.write_text(SETTINGS.format(here=here, there=there))
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    with log.open("w") as output, subprocess.Popen(
        [*command, "org.apache.kafka.connect.mirror.MirrorMaker", str(settings)],
        stdout=output, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            yield log
            assert process.poll() is None, log.read_text()[-4000:]
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def fill(address: str, topic: str) -> None:
    created(address, topic, 3)
    writer = producer(address)
    for number in range(COUNT):
        writer.produce(
            topic, f"value {number}", f"key {number % 7}", number % 3, headers=[("n", str(number))]
        )
    assert writer.flush(SECONDS) == 0


def read_all(address: str, topic: str, group: str) -> None:
    """Commit the end of each partition: MirrorMaker translates no position before its own start."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group})
    partitions = [
        TopicPartition(topic, number, end)
        for number, (_, end) in enumerate(ends(address, topic, 3))
    ]
    consumer.commit(offsets=partitions, asynchronous=False)
    consumer.close()


def position(address: str, topic: str, group: str) -> list[int]:
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, at) for at in range(3)])]
    admin = AdminClient({"bootstrap.servers": address})
    found = admin.list_consumer_group_offsets(asked)
    return [each.offset for each in found[group].result(SECONDS).topic_partitions]


def content(address: str, topic: str) -> list[object]:
    return [(row[0], row[2], row[3], row[4], row[5]) for row in rows(address, topic, 3)]


def test_topics_records_and_positions_go_both_ways(
    node: RunningNode, kafka: str, tmp_path: Path
) -> None:
    fill(node.kafka, "out")
    fill(kafka, "in")
    with mirror_maker(tmp_path, node.kafka, kafka):
        ways = ((node.kafka, "out", kafka, "here.out"), (kafka, "in", node.kafka, "there.in"))
        for source, topic, target, name in ways:

            def is_whole(target: str = target, name: str = name) -> bool:
                return sum(end for _, end in ends(target, name, 3)) >= COUNT

            wait_until(is_whole, what=f"the records of {name}", seconds=SECONDS)
            assert content(target, name) == content(source, topic)
            read_all(source, topic, f"readers-{topic}")
        for _, topic, target, name in ways:

            def is_known(topic: str = topic, target: str = target, name: str = name) -> bool:
                found = position(target, name, f"readers-{topic}")
                last = [end for _, end in ends(target, name, 3)]
                return all(0 < at <= end for at, end in zip(found, last, strict=True))

            wait_until(is_known, what=f"the positions in {name}", seconds=SECONDS)
