"""Kafka clients with transactions, unchanged, each in a process of its own, against a real node:
both protocols, on replicated and on diskless topics."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import go_programs
import java_programs
import pytest
from clients.test_kafka_clients import JAVA, SCRIPTS, java, kafka_jars, libraries
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from missing import needed_program
from product import RunningNode, environment, polynya

pytestmark = pytest.mark.process
__all__ = ["libraries"]  # a fixture
SECONDS = 120
COMMITTED = ["0c0", "0c2", "1c0", "1c2", "1c6"]
ABORTED = ["0a1", "0a3", "1a1", "1a3", "1a5"]
TOOL = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    data = tmp_path_factory.mktemp("transactions") / "data"
    running = RunningNode(data, ("--cores", "2", "--diskless-interval", "50ms"))
    try:
        yield running
        verified = polynya("store", "verify", server=running.url)
        assert verified.code == 0, f"{verified.out} {verified.err}"
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def create(node: RunningNode, *topics: str, profile: str = "replicated") -> None:
    admin = AdminClient({"bootstrap.servers": node.kafka})
    made = [NewTopic(topic, 2, 1, config={"profile": profile}) for topic in topics]
    for done in admin.create_topics(made).values():
        done.result(SECONDS)


@pytest.mark.parametrize("profile", ["replicated", "diskless"])
@pytest.mark.parametrize("client", ["confluent", "aio"])
def test_a_client_commits_aborts_and_is_fenced(
    node: RunningNode, client: str, profile: str
) -> None:
    topic = f"{client}-{profile}"
    create(node, topic, profile=profile)
    script = SCRIPTS / "transactions_client.py"
    done = subprocess.run(
        [sys.executable, str(script), client, node.kafka, topic],
        capture_output=True, timeout=SECONDS, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    committed, found, offsets, error = json.loads(done.stdout)
    assert committed == COMMITTED
    assert found == sorted(COMMITTED + ABORTED)
    assert offsets == [7, 7], "the offset of an aborted transaction is dropped"
    assert error == "_FENCED"


@pytest.mark.parametrize("profile", ["replicated", "diskless"])
def test_the_java_client_speaks_the_newer_protocol(
    node: RunningNode, libraries: Path, profile: str
) -> None:
    topic = f"java-{profile}"
    create(node, topic, f"{topic}-input", profile=profile)
    source = SCRIPTS.parent / "kafka_java" / "Transactions.java"
    done = subprocess.run(
        ["java", *JAVA, *java_programs.compiled(source, libraries), node.kafka, topic],
        capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    committed = ", ".join(sorted([*COMMITTED, "0c4"]))
    found = ", ".join(sorted([*COMMITTED, *ABORTED, "0c4"]))
    assert done.stdout.decode().splitlines() == [
        "2", "7", "7", "Ongoing", "fenced", f"[{committed}]", f"[{found}]"
    ]  # fmt: skip


def test_kafka_streams_counts_each_word_once(node: RunningNode, tmp_path: Path) -> None:
    """Count words in a store whose changelog, a compacted topic, the next instance reads again."""
    maven = needed_program("mvn")
    lines = 400
    create(node, "words", "counts")
    source = SCRIPTS.parent / "kafka_java" / "WordCount.java"
    given = (node.kafka, "words", "counts", str(lines), str(tmp_path / "state"))
    jars = kafka_jars(maven, "kafka-streams")
    done = subprocess.run(
        ["java", *JAVA, *java_programs.compiled(source, jars), *given],
        capture_output=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    counts = {"a": 3 * lines, "b": 2 * lines, "c": lines}
    expected = ", ".join(f"{word}={count}" for word, count in counts.items())
    assert done.stdout.decode().splitlines()[-1] == f"{{{expected}}}"


def test_franz_go_moves_records_and_offsets_in_transactions(
    node: RunningNode, tmp_path: Path
) -> None:
    """A group's session aborts some transactions: their records come again."""
    create(node, "moved-from")
    create(node, "moved-to", profile="diskless")
    program = go_programs.built(
        SCRIPTS.parent / "franz", "./transactions", tmp_path / "franz-transactions"
    )
    done = subprocess.run(
        [str(program), node.kafka, "moved-from", "moved-to", "60"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {str(number): 1 for number in range(60)}


def test_kafkas_tool_lists_describes_and_aborts_a_transaction(
    node: RunningNode, libraries: Path
) -> None:
    create(node, "left-open")
    producer = Producer({"bootstrap.servers": node.kafka, "transactional.id": "left"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("left-open", b"x", partition=0)
    producer.flush(SECONDS)

    def tool(*arguments: str) -> list[list[str]]:
        """Return the rows of a table, without its head."""
        return [line.split() for line in java(node, libraries, TOOL, *arguments).splitlines()[1:]]

    (row,) = (row for row in tool("list") if row[0] == "left")
    assert row[-1] == "Ongoing"
    (described,) = tool("describe", "--transactional-id", "left")
    assert (described[0], described[2], described[-1]) == (row[1], row[2], "left-open-0")
    (open_,) = tool("describe-producers", "--topic", "left-open", "--partition", "0")
    assert open_[0] == row[2]
    partition = ("--topic", "left-open", "--partition", "0", "--start-offset", open_[-1])
    java(node, libraries, TOOL, "abort", *partition)
    (row,) = (row for row in tool("list") if row[0] == "left")
    assert row[-1] in ("PrepareAbort", "CompleteAbort")
