"""Compacted topics and streams of a real node: every reader gets the last value of each key, and
reaches the end."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import java_programs
import node_js
import pytest
import test_kafka_clients
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from missing import needed_program
from polling import wait_until
from product import RunningNode, polynya
from test_kafka_codecs import CODECS, HERE, called

from polynya.client import Client, NewRecord
from polynya.wire.headers import RECORDS

pytestmark = pytest.mark.process
libraries = test_kafka_clients.libraries
KEYS, COUNT = 50, 1000
LAST = {f"k{at % KEYS}": None if at % KEYS == 7 else f"v{at}" for at in range(COUNT)}
SECONDS = 60.0
TOPICS: dict[str, dict[str, str]] = {
    **{codec: {} for codec in CODECS},
    "diskless": {"profile": "diskless"},
    "leased": {"profile": "leased"},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("compaction") / "data", ("--cores", "2"))
    try:
        fill(running)
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def fill(node: RunningNode) -> None:
    """Write a topic for each codec, and compact it. The first batches are small, the last large."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    topics = [
        NewTopic(f"c-{topic}", 1, config={"cleanup.policy": "compact", **config})
        for topic, config in TOPICS.items()
    ]
    for made in admin.create_topics(topics).values():
        made.result(SECONDS)
    errors: list[Any] = []
    for topic in TOPICS:
        codec = topic if topic in CODECS else "none"
        producer = Producer({"bootstrap.servers": node.kafka, "compression.type": codec})
        for at in range(COUNT):
            value = None if at % KEYS == 7 else f"v{at}"
            producer.produce(
                f"c-{topic}", value, f"k{at % KEYS}", 0,
                on_delivery=lambda error, message: errors.append(error) if error else None,
            )  # fmt: skip
            if at in (10, 300):
                assert producer.flush(SECONDS) == 0
        assert producer.flush(SECONDS) == 0
    assert not errors
    for topic in TOPICS:
        compact(node, f"kafka/c-{topic}/0")


def compact(node: RunningNode, stream: str) -> dict[str, Any]:
    """Let passes run until all of a stream is compacted. The marker of a transaction may come after its
    producer was answered, and behind a pass."""
    path = f"{node.url}/v1/compaction/{stream}"

    def asked(method: str) -> dict[str, Any]:
        with urllib.request.urlopen(urllib.request.Request(path, method=method)) as answer:
            assert answer.status == (202 if method == "POST" else 200)
            found: dict[str, Any] = json.load(answer)
        return found

    def ended() -> dict[str, Any] | None:
        seen = asked("GET")
        if seen["passes"] and not seen["dirty_bytes"] and not seen["held_by"]:
            return seen
        if not seen["due"]:
            asked("POST")
        return None

    return wait_until(ended, what=f"passes of {stream}")


def restored(node: RunningNode, topic: str, isolation: str) -> tuple[dict[str, str | None], int]:
    """Read a topic by librdkafka to its end; return the last value of each key, and the records."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.kafka,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": isolation,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[str, str | None] = {}
    count = 0
    while True:
        message = consumer.poll(SECONDS)
        assert message is not None, "the consumer does not reach the end"
        if message.error():
            break
        count += 1
        value, key = message.value(), message.key()
        assert key is not None
        found[key.decode()] = None if value is None else value.decode()
    consumer.close()
    return found, count


@pytest.mark.parametrize("topic", TOPICS)
def test_librdkafka_restores_a_compacted_topic(node: RunningNode, topic: str) -> None:
    assert restored(node, f"c-{topic}", "read_committed") == (LAST, KEYS)


@pytest.mark.parametrize("profile", ["replicated", "diskless"])
def test_aborted_transactions_win_no_key(node: RunningNode, profile: str) -> None:
    topic, servers = f"t-{profile}", {"bootstrap.servers": node.kafka}
    configs = {"cleanup.policy": "compact", "profile": profile}
    admin = AdminClient(servers)
    admin.create_topics([NewTopic(topic, 1, config=configs)])[topic].result(SECONDS)
    producer = Producer({**servers, "transactional.id": topic})
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        for key in ("a", "b"):
            producer.produce(topic, f"v{number}", key, 0)
        if number % 3 == 2:
            producer.flush(SECONDS)
            producer.abort_transaction(SECONDS)
        else:
            producer.commit_transaction(SECONDS)
    compact(node, f"kafka/{topic}/0")
    for isolation in ("read_committed", "read_uncommitted"):
        found, count = restored(node, topic, isolation)
        assert (found, count) == ({"a": "v4", "b": "v4"}, 2)


def test_java_restores_a_compacted_topic(node: RunningNode, libraries: Path) -> None:
    program = java_programs.compiled(HERE / "kafka_java" / "Compacted.java", libraries)
    java = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *program)
    found = called(*java, node.kafka, *(f"c-{topic}" for topic in TOPICS))
    assert found == [[KEYS, dict(sorted(LAST.items())), COUNT]] * len(TOPICS)


@pytest.mark.parametrize("topic", ["none", "gzip", "diskless"])
def test_kafkajs_reads_a_compacted_topic_to_its_end(node: RunningNode, topic: str) -> None:
    folder = node_js.installed(HERE / "kafka_js", "kafkajs")
    done = subprocess.run(
        [node_js.node(), "compacted.mjs", node.kafka, f"c-{topic}"],
        cwd=folder, env=node_js.environment(), capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [KEYS, LAST, COUNT]


def test_streams_restores_its_state_from_a_compacted_changelog(
    node: RunningNode, tmp_path: Path
) -> None:
    """Update 20 keys 5,000 times; an instance without its folder restores one record of each key."""
    maven = needed_program("mvn")
    updates, keys = 5000, 20
    admin = AdminClient({"bootstrap.servers": node.kafka})
    admin.create_topics([NewTopic("updates", 2)])["updates"].result(SECONDS)
    jars = test_kafka_clients.kafka_jars(maven, "kafka-streams")
    program = java_programs.compiled(HERE / "kafka_java" / "Restored.java", jars)
    java = ("java", *test_kafka_clients.JAVA, *program)

    def run(written: int, folder: str) -> tuple[int, str]:
        """Return the records of which the store was restored, and its counts."""
        done = subprocess.run(
            [*java, node.kafka, "updates",
             str(written), str(updates), str(keys), str(tmp_path / folder)],
            capture_output=True, text=True, timeout=2 * SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        restored, _, counts = done.stdout.splitlines()[-1].partition(" ")
        return int(restored), counts

    restored, counts = run(updates, "first")
    expected = ", ".join(
        f"{key}={updates // keys}" for key in sorted(f"k{at}" for at in range(keys))
    )
    assert (restored, counts) == (0, f"{{{expected}}}")
    for partition in range(2):
        compact(node, f"kafka/restored-counts-changelog/{partition}")
    assert run(0, "second") == (keys, counts)


@pytest.mark.parametrize("topic", ["zstd", "diskless"])
def test_http_reads_a_compacted_topic(node: RunningNode, topic: str) -> None:
    request = urllib.request.Request(
        f"{node.url}/v1/stream/kafka/c-{topic}/0?offset=-1", headers={"Accept": RECORDS}
    )
    with urllib.request.urlopen(request) as answer:
        records = json.load(answer)
        assert answer.headers["Stream-Up-To-Date"] == "true"
    assert {each["key"]: each["value"] for each in records} == LAST


def test_http_reads_a_compacted_stream_and_its_fork(node: RunningNode) -> None:
    with Client(node.url) as client:
        stream = client.stream("settings")
        stream.create()
        for at in range(20):
            stream.append(NewRecord(value={"n": at}, key=f"k{at % 3}"))
        stream.set_retention(compact=True)
        assert compact(node, "settings")["cleaned_offset"] == 20
        last = [{"n": at} for at in (17, 18, 19)]
        assert [record.value for record in stream.read()] == last
        stream.fork("settings-copy")
        for name in ("settings", "settings-copy"):
            with client.stream(name).tail("-1", live="sse") as reader:
                assert [next(reader).value for _ in last] == last
        with client.tail_many("settings", "settings-copy", offset="-1") as many:
            values = [next(many).value for _ in range(6)]
        assert sorted(values, key=str) == sorted(last * 2, key=str)


def test_the_command_line_shows_it_and_begins_passes(node: RunningNode) -> None:
    shown = polynya("topic", "describe", "c-gzip", server=node.url).out
    assert "cleaned offset" in shown and " dropped " in shown
    begun = polynya("topic", "compact", "c-gzip", server=node.url)
    assert (begun.code, begun.err) == (0, "a pass begins on 1 partition\n")
    absent = polynya("retention", "compact", "absent", server=node.url)
    assert absent.code and "there is no stream 'absent'" in absent.err
    assert polynya("create", "plain", server=node.url).code == 0
    plain = polynya("retention", "compact", "plain", server=node.url)
    assert plain.code and "no keys are compacted in plain" in plain.err
    both = polynya("retention", "set", "plain", "--compact", "--keep-age", "7d", server=node.url)
    assert both.err == "plain keeps records for 7 d, the newest record of each key\n"
    assert polynya("retention", "compact", "plain", server=node.url).code == 0
    wrong = polynya("retention", "set", "--bucket", "b", "--compact", server=node.url)
    assert wrong.code and "--compact is for a stream" in wrong.err
