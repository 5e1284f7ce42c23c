"""Clients that push their metrics unasked: Kafka's Java producer and librdkafka, with the tools that
make the subscriptions."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from clients.test_kafka_clients import JAVA, SECONDS, java, libraries
from confluent_kafka import Producer
from polling import wait_until
from product import RunningNode

from polynya.observability.metrics import labels_of

pytestmark = pytest.mark.process
TOOL = "org.apache.kafka.tools.ClientMetricsCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
__all__ = ["libraries"]  # a fixture


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("telemetry") / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def pushed(node: RunningNode, client: str) -> set[str]:
    """Return the names of the metrics that a client has pushed."""
    text = httpx.get(f"{node.url}/metrics", timeout=SECONDS).text
    found = (labels_of(line) for line in text.splitlines() if "polynya_kafka_client_" in line)
    return {each["metric"] for each in found if each.get("client_id") == client}


def test_java_and_librdkafka_push_what_the_tool_subscribes_to(
    node: RunningNode, libraries: Path
) -> None:
    begin = "org.apache.kafka.producer."
    java(
        node, libraries, TOOL, "--alter", "--name", "all", "--metrics", begin, "--interval", "200",
        "--match", "client_id=(java|rd)-.*",
    )  # fmt: skip
    output = java(node, libraries, TOOL, "--describe", "--name", "all")
    assert {"interval.ms=200", "match=client_id=(java|rd)-.*", f"metrics={begin}"} <= {
        line.strip() for line in output.splitlines()
    }
    producers = {
        name: Producer({"bootstrap.servers": node.kafka, "client.id": name, "linger.ms": 0})
        for name in ("rd-one", "other")
    }
    for producer in producers.values():
        producer.produce("pushed", b"x")
        assert producer.flush(SECONDS) == 0
    command = ["java", *JAVA, "-cp", f"{libraries}/*", PRODUCER, "--bootstrap-server", node.kafka]
    command += ["--topic", "pushed", "--command-property", "client.id=java-one"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        for name, metric in (
            ("java-one", "record.send.total"),
            ("rd-one", "record.queue.time.max"),
        ):
            wait_until(
                lambda name=name, metric=metric: begin + metric in pushed(node, name),
                what=f"{name} to push {metric}",
                seconds=SECONDS,
            )
        assert all(each.startswith(begin) for each in pushed(node, "java-one"))
        assert pushed(node, "other") == set(), "no subscription matches it"
        running.communicate(b"a record\n", SECONDS)
    finally:
        running.kill()
        running.wait()
    java(node, libraries, TOOL, "--delete", "--name", "all")
    assert java(node, libraries, TOOL, "--list").strip() == ""
