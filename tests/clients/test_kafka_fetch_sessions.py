"""Kafka's Java consumer, which uses fetch sessions, and librdkafka, which does not, while their
topics change."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from clients.test_kafka_clients import JAVA, SECONDS
from clients.test_kafka_clients import libraries as libraries  # noqa: PLC0414 (a fixture)
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from polling import wait_until
from product import RunningNode

pytestmark = pytest.mark.process
CLOSE_SECONDS = 30.0
OFTEN = "metadata.max.age.ms=500"  # topics and partitions are found soon


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def sessions(node: RunningNode) -> float:
    """Fetch sessions of all cores; -1: one did not answer."""
    lines = httpx.get(f"{node.admin}/metrics").text.splitlines()

    def value(name: str) -> float:
        starts = (f"{name} ", f"{name}{{")
        return sum(float(line.split()[-1]) for line in lines if line.startswith(starts))

    is_whole = value("polynya_cores_up") == value("polynya_cores")
    return value("polynya_kafka_fetch_sessions") if is_whole else -1


def written(node: RunningNode, topic: str, partitions: int, begin: int) -> list[str]:
    """Write a value to each partition; return the values."""
    values = [str(begin + number) for number in range(partitions)]
    missing = dict(enumerate(values))

    def delivered(error: object, message: Message) -> None:
        if error is None:
            missing.pop(int(message.partition() or 0), None)

    def all_delivered() -> bool:
        """Produce again what a client did not, that did not know new partitions yet."""
        producer = Producer({"bootstrap.servers": node.kafka})
        for number, value in missing.items():
            with suppress(KafkaException):
                producer.produce(topic, value, partition=number, on_delivery=delivered)
        producer.flush(SECONDS)
        return not missing

    wait_until(all_delivered, what=f"{topic} to take {values}", seconds=SECONDS)
    return values


def close(consumer: Consumer) -> None:
    """Close a consumer, or leave it to its thread after some seconds: librdkafka may wait without end
    when a topic of the subscription was deleted before (its issue 4362, open)."""
    thread = threading.Thread(target=consumer.close, daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)


def test_consumers_with_and_without_sessions_follow_their_topics(
    node: RunningNode, libraries: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("news-a", 4)])["news-a"].result(SECONDS)
    other = Consumer({
        "bootstrap.servers": node.kafka,
        "group.id": "other",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    })  # fmt: skip
    other.subscribe(["^news-.*"])
    command = ["java", *JAVA, "-cp", f"{libraries}/*"]
    command += ["org.apache.kafka.tools.consumer.ConsoleConsumer", "--include", "news-.*"]
    command += ["--bootstrap-server", node.kafka, "--from-beginning", "--group", "java"]
    command += ["--timeout-ms", "90000", "--command-property", OFTEN]
    # it would commit positions in the deleted topic for minutes (KAFKA-13310)
    command += ["--command-property", "enable.auto.commit=false"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as java:
        try:
            assert java.stdout is not None
            lines = java.stdout

            def both(values: list[str]) -> None:
                """Wait until both consumers have got the values; a rebalance may repeat others."""
                missing = {*values}
                while missing:
                    line = lines.readline()
                    assert line, f"Java's consumer ended without {missing}"
                    missing.discard(line.strip())
                missing = {*values}

                def all_came() -> bool:
                    message = other.poll(1.0)
                    if message is not None and message.error() is None:
                        missing.discard((message.value() or b"").decode())
                    return not missing

                wait_until(all_came, what=f"librdkafka to get {values}", seconds=SECONDS)

            both(written(node, "news-a", 4, 100))
            wait_until(lambda: sessions(node) >= 1, what="a session of the Java consumer")
            admin.create_partitions([NewPartitions("news-a", 6)])["news-a"].result(SECONDS)
            both(written(node, "news-a", 6, 200))
            admin.create_topics([NewTopic("news-b", 2)])["news-b"].result(SECONDS)
            both(written(node, "news-b", 2, 300))
            admin.delete_topics(["news-b"])["news-b"].result(SECONDS)
            both(written(node, "news-a", 6, 400))
            java.terminate()
            java.wait(SECONDS)
        finally:
            java.kill()
            close(other)
    wait_until(lambda: sessions(node) == 0, what="the session to end with its client")
