"""The consumer protocol (KIP-848) with unchanged clients against a real node: librdkafka, the Java
tools and franz-go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import go_programs
import pytest
from clients.test_kafka_clients import SECONDS, java, libraries, run
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from product import RunningNode

pytestmark = pytest.mark.process
GO_SECONDS = 300.0
HERE = Path(__file__).parent
__all__ = ["libraries"]  # a fixture


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("protocol") / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def made(node: RunningNode, topic: str, group: str, partitions: int) -> AdminClient:
    """Create a topic, and a group whose members send a heartbeat often."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS)
    often = ConfigEntry(
        "consumer.heartbeat.interval.ms", "200", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[often])
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    return admin


def begin_at_first(admin: AdminClient, topic: str, group: str, partitions: int) -> None:
    """Commit 0 for each partition, so that librdkafka (2.16) looks up no first offset. If the
    answer to such a look-up is late, and a rebalance pauses and resumes the partition meanwhile, it
    asks twice: by the second answer it reads from the beginning once more, in the same member."""
    partitions = [TopicPartition(topic, number, 0) for number in range(partitions)]
    wanted = ConsumerGroupTopicPartitions(group, partitions)
    admin.alter_consumer_group_offsets([wanted])[group].result(SECONDS)


def written(node: RunningNode, topic: str, partitions: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(count):
        producer.produce(topic, partition=number % partitions, value=str(number))
    assert producer.flush(SECONDS) == 0


@pytest.mark.parametrize(
    "strategy", ["consumer", pytest.param("consumer-static", marks=pytest.mark.long)]
)
def test_five_members_of_librdkafka_share_leave_and_come_back(
    node: RunningNode, strategy: str
) -> None:
    """Read each record once, although the partitions move."""
    admin = made(node, strategy, f"group-{strategy}", 10)
    begin_at_first(admin, strategy, f"group-{strategy}", 10)
    found = run("members", "confluent", strategy, node.kafka, strategy, 10)
    assert found == {"sent": 180, "seen": 180, "twice": 0, "unmoved": True}
    listed = {each.group_id: each.type for each in admin.list_consumer_groups().result().valid}
    assert listed[f"group-{strategy}"] == ConsumerGroupType.CONSUMER


def test_the_java_tools_consume_and_describe(node: RunningNode, libraries: Path) -> None:
    admin = made(node, "java", "jg", 2)
    written(node, "java", 2, 6)
    tools = "org.apache.kafka.tools"
    found = java(
        node, libraries, f"{tools}.consumer.ConsoleConsumer", "--include", "ja.a", "--group", "jg",
        "--from-beginning", "--max-messages", "6", "--timeout-ms", "60000",
        "--command-property", "group.protocol=consumer",
    )  # fmt: skip
    assert sorted(found.split()[:6]) == [str(number) for number in range(6)]
    groups = f"{tools}.consumer.group.ConsumerGroupCommand"
    described = java(node, libraries, groups, "--describe", "--group", "jg")
    rows = [line.split() for line in described.splitlines() if line.startswith("jg ")]
    assert {(row[1], row[5]) for row in rows} == {("java", "0")}, described
    listed = java(node, libraries, f"{tools}.GroupsCommand", "--list", "--consumer")
    assert ["jg", "Consumer", "consumer"] in [line.split() for line in listed.splitlines()]
    admin.delete_consumer_groups(["jg"])["jg"].result(SECONDS)


@pytest.fixture(scope="module")
def franz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of franz-go's members."""
    return go_programs.built(
        HERE / "franz", "./members", tmp_path_factory.mktemp("franz") / "members"
    )


@pytest.mark.long  # the compiler of Go takes its time
def test_members_of_franz_go_join_and_leave(node: RunningNode, franz: Path) -> None:
    made(node, "franz", "fg", 4)
    written(node, "franz", 4, 40)
    done = subprocess.run(
        [franz, node.kafka, "franz", "fg", "4", "40"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"seen": 40, "again": 0, "twice_owned": False}
