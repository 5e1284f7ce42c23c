"""Consumer groups of unchanged Kafka clients, each in a process of its own, against a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.test_kafka_clients import SECONDS, java, libraries, run
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from product import RunningNode

pytestmark = pytest.mark.process
PARTITIONS = 10
__all__ = ["libraries"]  # a fixture


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("groups") / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def made(node: RunningNode, topic: str, partitions: int = PARTITIONS) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(SECONDS)
    return admin


@pytest.mark.parametrize(
    ("library", "strategy"),
    [
        ("confluent", "cooperative"),
        ("python", "cooperative"),
        ("aio", "eager"),
        pytest.param("confluent", "static", marks=pytest.mark.long),
        pytest.param("confluent", "eager", marks=pytest.mark.long),
        pytest.param("python", "static", marks=pytest.mark.long),
        pytest.param("python", "eager", marks=pytest.mark.long),
    ],
)
def test_five_members_share_leave_and_come_back(
    node: RunningNode, library: str, strategy: str
) -> None:
    """Read each record once, although the partitions move; a returning static member moves none.
    All is committed in the end."""
    topic = f"{library}-{strategy}"
    admin = made(node, topic)
    found = run("members", library, strategy, node.kafka, topic, PARTITIONS)
    assert found == {"sent": 180, "seen": 180, "twice": 0, "unmoved": True}
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    asked = Consumer({"bootstrap.servers": node.kafka, "group.id": f"group-{topic}"})
    assert [each.offset for each in asked.committed(partitions, SECONDS)] == [18] * PARTITIONS
    asked.close()
    listed = {
        each.group_id: each.state.name for each in admin.list_consumer_groups().result().valid
    }
    assert listed[f"group-{topic}"] == ("STABLE" if strategy == "static" else "EMPTY")


def test_the_java_tools_consume_describe_and_reset(node: RunningNode, libraries: Path) -> None:
    """The console consumer is a cooperative member."""
    admin = made(node, "java-group", 2)
    tools = "org.apache.kafka.tools"
    # the number is the key, too: three records come to each partition, so that all are committed
    given = b"".join(b"%d:%d\n" % (number, number) for number in range(6))
    java(
        node, libraries, f"{tools}.ConsoleProducer", "--topic", "java-group",
        "--reader-property", "parse.key=true", "--reader-property", "key.separator=:", given=given,
    )  # fmt: skip
    found = java(
        node, libraries, f"{tools}.consumer.ConsoleConsumer", "--topic", "java-group",
        "--group", "jg", "--from-beginning", "--max-messages", "6", "--timeout-ms", "60000",
        "--command-property",
        "partition.assignment.strategy=org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    )  # fmt: skip
    assert sorted(found.split()[:6]) == [str(number) for number in range(6)]
    ends = admin.list_offsets(
        {TopicPartition("java-group", number): OffsetSpec.latest() for number in range(2)}
    )
    assert [each.result(SECONDS).offset for each in ends.values()] == [3, 3]
    groups = f"{tools}.consumer.group.ConsumerGroupCommand"
    described = java(node, libraries, groups, "--describe", "--group", "jg")
    rows = [line.split() for line in described.splitlines() if line.startswith("jg ")]
    assert {(row[1], row[5]) for row in rows} == {("java-group", "0")}, described
    reset = ("--reset-offsets", "--to-earliest", "--all-topics", "--execute")
    java(node, libraries, groups, *reset, "--group", "jg")
    partitions = [TopicPartition("java-group", number) for number in range(2)]
    asked = Consumer({"bootstrap.servers": node.kafka, "group.id": "jg"})
    assert {each.offset for each in asked.committed(partitions, SECONDS)} == {0}
    asked.close()
    admin.delete_consumer_groups(["jg"])["jg"].result(SECONDS)
