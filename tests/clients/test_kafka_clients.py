"""Kafka clients, unchanged, each in a process of its own, against a real node."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from free_ports import free_ports, two_free_ports
from long_tests import long
from missing import left_out, needed_program
from node_js import CACHE
from product import RunningNode, environment

from polynya.stream.features.appends.commands import KAFKA_CONTENT_TYPE
from polynya.wire.headers import RECORDS

pytestmark = pytest.mark.process
SCRIPTS = Path(__file__).parent / "kafka"
PAIRS = (  # kafka-python has gzip alone
    ("confluent", "python", "none"),
    ("python", "aio", "gzip"),
    ("confluent", "aio", "lz4"),
    ("aio", "confluent", "snappy"),
    ("confluent", "aio", "zstd"),
    *long(
        [
            ("python", "confluent", "gzip"),
            ("confluent", "aio", "snappy"),
            *(("aio", "confluent", codec) for codec in ("gzip", "lz4", "zstd")),
        ]
    ),
)
COUNT = int(os.environ.get("KAFKA_RECORDS", "1000"))
SECONDS = 120
# a tool runs for a second: a JVM's second compiler would cost more than it gives
JAVA = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
FETCH_SECONDS = 150  # about 45 MB from Maven Central
JARS = CACHE / "kafka-tools-4.3.1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("kafka") / "data", ("--cores", "2"))
    try:
        assert running.kafka
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def run(client: str, *arguments: object) -> Any:
    """Return a client's output, parsed as JSON."""
    command = [sys.executable, str(SCRIPTS / f"{client}_client.py"), *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, timeout=SECONDS, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def expected(codec: str, *, with_none: bool) -> list[list[Any]]:
    """The records as every client writes them; librdkafka alone can write a header without a
    value."""
    none = [["none", None]] if with_none else []
    return [
        [
            number,
            None if number % 7 == 3 and number % 5 != 2 else f"k{number}",
            None if number % 5 == 2 else f"{codec} {number} " * 9,
            [["n", str(number)], *none] if number % 3 == 0 else [],
            1_700_000_000_000 + number,
        ]
        for number in range(COUNT)
    ]


@pytest.mark.parametrize(("writer", "reader", "codec"), PAIRS)
def test_what_one_client_writes_another_reads(
    node: RunningNode, writer: str, reader: str, codec: str
) -> None:
    """Keys, values, headers, tombstones, nulls and times come back, in each codec, in order."""
    topic = f"{writer}-{codec}"
    written = run(writer, "write", node.kafka, topic, codec, COUNT)
    assert written == ([] if writer == "confluent" else list(range(COUNT)))
    found, ends, at = run(reader, "read", node.kafka, topic, COUNT)
    assert found == expected(codec, with_none=writer == "confluent")
    assert ends == [0, COUNT]
    assert at == COUNT // 2, "the first offset of a time, also inside a compressed batch"


def test_topics_are_created_listed_and_deleted(node: RunningNode) -> None:
    before, described, after = run("python", "administer", node.kafka, "administered")
    assert "administered" in before
    assert described == [3]
    assert "administered" not in after


def kcat(node: RunningNode, *arguments: str, given: bytes = b"") -> str:
    command = [needed_program("kcat"), "-b", node.kafka, *arguments]
    done = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_kcat_writes_reads_and_lists(node: RunningNode) -> None:
    kcat(node, "-P", "-t", "kcat", "-K", ":", given=b"a:1\nb:2\n")
    found = kcat(node, "-C", "-t", "kcat", "-o", "beginning", "-e", "-q", "-f", "%o %k %s\n")
    assert found == "0 a 1\n1 b 2\n"
    assert 'topic "kcat" with 1 partitions' in kcat(node, "-L")
    assert kcat(node, "-Q", "-t", "kcat:0:-1") == "kcat [0] offset 2\n"


def test_an_old_librdkafka_keeps_its_compression(node: RunningNode) -> None:
    """Serve Produce from version 0 on: otherwise librdkafka silently turns compression off."""
    line = b"a line that compresses " * 2000 + b"\n"
    kcat(node, "-P", "-t", "canary", "-z", "gzip", "-X", "batch.num.messages=1", given=line * 3)
    with urllib.request.urlopen(f"{node.url}/v1/stream/kafka/canary/0") as response:
        assert response.read() == line.rstrip(b"\n") * 3
        stored_bytes = int(response.headers["Stream-Next-Offset"].split("_")[1])
    assert stored_bytes < len(line)


def test_over_http_a_partition_is_read_and_left_alone(node: RunningNode) -> None:
    kcat(node, "-P", "-t", "guarded", given=b"a\n")
    url = f"{node.url}/v1/stream/kafka/guarded/0"
    with urllib.request.urlopen(url) as response:
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.read() == b"a"
    for method, body in (("POST", b"no batch"), ("PUT", b"no batch"), ("DELETE", None)):
        asked = urllib.request.Request(
            url, data=body, method=method, headers={"Content-Type": KAFKA_CONTENT_TYPE}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        with refused.value as answer:
            assert answer.code == 409
            assert json.load(answer)["error"]["code"] == "KAFKA_PARTITION"
    assert kcat(node, "-C", "-t", "guarded", "-o", "beginning", "-e", "-q") == "a\n"


def test_a_consumer_waits_for_what_comes(node: RunningNode) -> None:
    """A fetch beyond the end is answered as soon as there is a record, on whichever core."""
    kcat(node, "-P", "-t", "later", given=b"first\n")
    command = [
        needed_program("kcat"),
        "-b",
        node.kafka,
        "-C",
        "-t",
        "later",
        "-o",
        "beginning",
        "-c",
        "2",
        "-q",
        "-u",
    ]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE)
    timer = threading.Timer(SECONDS, reader.kill)
    timer.start()
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"first\n"
        kcat(node, "-P", "-t", "later", given=b"second\n")
        assert reader.stdout.readline() == b"second\n"
        assert reader.wait(SECONDS) == 0
    finally:
        timer.cancel()
        reader.kill()
        reader.wait()
        reader.stdout.close()


POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>tools</artifactId><version>1</version>
<dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>4.3.1</version>
</dependency></dependencies></project>
"""


def kafka_jars(maven: str, artifact: str = "kafka-tools") -> Path:
    """Return the jars of an artifact of Kafka's, and of what it needs, from Maven Central once; the
    folder appears whole."""
    jars = JARS.with_name(JARS.name.replace("kafka-tools", artifact))
    cached = jars.with_name(f"{jars.name}.{os.getpid()}")
    if jars.is_dir():
        return jars
    shutil.rmtree(cached, ignore_errors=True)
    cached.mkdir(parents=True)
    (cached / "pom.xml").write_text(
        POM.replace("<artifactId>kafka-tools<", f"<artifactId>{artifact}<")
    )
    command = [
        maven,
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={cached}",
    ]
    try:
        done = subprocess.run(
            command, cwd=cached, capture_output=True, timeout=FETCH_SECONDS, check=False
        )
        if done.returncode or not list(cached.glob(f"{artifact}-*.jar")):
            left_out(f"Kafka's Java tools: Maven cannot fetch them: {done.stdout.decode()[-300:]}")
        with contextlib.suppress(OSError):  # another run was first
            cached.rename(jars)
    except subprocess.TimeoutExpired:
        left_out(f"Kafka's Java tools: Maven did not fetch them in {FETCH_SECONDS} s")
    finally:
        shutil.rmtree(cached, ignore_errors=True)
    return jars


@pytest.fixture(scope="module")
def libraries() -> Path:
    """Return a folder with the jars of Kafka's tools."""
    java, maven = shutil.which("java"), shutil.which("mvn")
    if java is None:
        left_out("Kafka's Java tools: java 17 or newer is not installed")
    said = subprocess.run(
        [java, "-version"], capture_output=True, timeout=SECONDS, check=False
    ).stderr.decode()
    release = re.search(r'version "(\d+)', said)
    if release is None or int(release[1]) < 17:
        left_out(f"Kafka's Java tools need java 17 or newer: {said[:80]}")
    named = os.environ.get("KAFKA_LIBS", "")
    if named:
        assert Path(named).is_dir(), (
            f"KAFKA_LIBS is {named}: expected a folder with the jars of kafka-tools"
        )
        return Path(named)
    if maven is None:
        left_out(
            "Kafka's Java tools: install mvn, which fetches them, or set KAFKA_LIBS to a folder "
            "with them"
        )
    return kafka_jars(maven)


def java(node: RunningNode, libraries: Path, tool: str, *arguments: str, given: bytes = b"") -> str:
    command = [
        "java",
        *JAVA,
        "-cp",
        f"{libraries}/*",
        tool,
        "--bootstrap-server",
        node.kafka,
        *arguments,
    ]
    done = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    return done.stdout.decode()


def test_the_java_tools_create_write_and_read(node: RunningNode, libraries: Path) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    java(node, libraries, topics, "--create", "--topic", "java", "--partitions", "1")
    assert "java" in java(node, libraries, topics, "--list").split()
    java(
        node,
        libraries,
        "org.apache.kafka.tools.ConsoleProducer",
        "--topic",
        "java",
        given=b"1\n2\n3\n",
    )
    found = java(
        node, libraries, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", "java", "--partition", "0",
        "--offset", "earliest", "--max-messages", "3", "--timeout-ms", "60000",
    )  # fmt: skip
    assert found.split() == ["1", "2", "3"]


@pytest.mark.parametrize("codec", ["none", "zstd", *long(["gzip", "snappy", "lz4"])])
def test_what_a_client_writes_reads_over_http(node: RunningNode, codec: str) -> None:
    """Page by page, as values and as whole records, in each codec."""
    topic = f"http-{codec}"
    assert run("confluent", "write", node.kafka, topic, codec, COUNT) == []
    sent = expected(codec, with_none=True)
    values = b"".join((each[2] or "").encode() for each in sent)
    assert b"".join(follow(node, topic, {})) == values
    found = [
        [each["offset"], each["key"], each["value"], each["headers"], each["timestamp"]]
        for body in follow(node, topic, {"Accept": RECORDS}, "&max_bytes=4096")
        for each in json.loads(body)
    ]
    assert found == sent


def follow(node: RunningNode, topic: str, headers: dict[str, str], more: str = "") -> list[bytes]:
    """Read a partition to its end, as pages."""
    bodies, offset = [], "-1"
    while True:
        url = f"{node.url}/v1/stream/kafka/{topic}/0?offset={offset}{more}"
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as response:
            bodies.append(response.read())
            offset = response.headers["Stream-Next-Offset"]
            if "Stream-Up-To-Date" in response.headers:
                return bodies


def test_a_topics_content_type_is_that_of_its_values(node: RunningNode) -> None:
    """Set the content type as a topic config at creation. An invalid media type is refused."""
    admin = AdminClient({"bootstrap.servers": node.kafka})
    for name, content_type in (("typed", "application/json"), ("mistyped", "no type")):
        made = NewTopic(name, 1, config={"content.type": content_type})
        created = admin.create_topics([made])[name]
        if name == "typed":
            created.result(SECONDS)
        else:
            with pytest.raises(KafkaException, match="media type"):
                created.result(SECONDS)
    kcat(node, "-P", "-t", "typed", given=b'{"a":1}\n2\n')
    assert [json.loads(each) for each in follow(node, "typed", {})] == [[{"a": 1}, 2]]


def test_the_java_tools_administer(node: RunningNode, libraries: Path, tmp_path: Path) -> None:
    """Configs, partitions, offsets, deleted records and sizes, as the tools print them."""
    topics, name = "TopicCommand", "administered-by-java"

    def tool(kind: str, *arguments: str) -> str:
        return java(node, libraries, f"org.apache.kafka.tools.{kind}", *arguments)

    made = ("--topic", name, "--partitions", "2", "--config", "retention.ms=86400000")
    assert f"Created topic {name}" in tool(topics, "--create", *made)
    tool(topics, "--alter", "--topic", name, "--partitions", "3")
    admin = AdminClient({"bootstrap.servers": node.kafka})
    resource = ConfigResource(ResourceType.TOPIC, name)
    resource.add_incremental_config(
        ConfigEntry("max.message.bytes", "4000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)
    shown = tool(topics, "--describe", "--topic", name)
    assert "PartitionCount: 3\tReplicationFactor: 1" in shown
    assert "Configs: retention.ms=86400000,max.message.bytes=4000" in shown or (
        "Configs: max.message.bytes=4000,retention.ms=86400000" in shown
    )
    producer = Producer({"bootstrap.servers": node.kafka})
    for number in range(3):
        producer.produce(name, str(number), partition=1)
        producer.flush(SECONDS)
    assert tool("GetOffsetShell", "--topic", name).split() == [
        f"{name}:0:0",
        f"{name}:1:3",
        f"{name}:2:0",
    ]
    wanted = {"version": 1, "partitions": [{"topic": name, "partition": 1, "offset": 2}]}
    (tmp_path / "offsets").write_text(json.dumps(wanted))
    deleted = tool("DeleteRecordsCommand", "--offset-json-file", str(tmp_path / "offsets"))
    assert f"partition: {name}-1\tlow_watermark: 2" in deleted
    sizes = tool("LogDirsCommand", "--describe", "--topic-list", name)
    assert f'"partition":"{name}-1","size":' in sizes
    assert '"partition":"' + name + '-0","size":0' in sizes


def test_a_topic_is_created_again_after_a_restart_under_a_running_idempotent_producer(
    tmp_path: Path,
) -> None:
    """Delete the topic first: librdkafka's producer continues after the re-creation."""
    kafka = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ("--cores", "1", "--listen", f"127.0.0.1:{two_free_ports()}", "--kafka-listen", kafka)
    fatal: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "error_cb": lambda error: fatal.append(str(error)) if error.fatal() else None,
        }
    )
    for is_first in (True, False):
        running = RunningNode(tmp_path / "data", flags)
        try:
            admin = AdminClient({"bootstrap.servers": kafka})
            admin.create_topics([NewTopic("again", 1)])["again"].result(SECONDS)
            for number in range(20):
                producer.produce("again", partition=0, value=b"%d" % number)
            assert producer.flush(SECONDS) == 0
            if is_first:
                admin.delete_topics(["again"])["again"].result(SECONDS)
        finally:
            assert running.stop() == 0, "".join(running.log)
            running.close()
    assert fatal == []


@pytest.mark.parametrize("by", ["kafka", "http"])
def test_a_topic_is_deleted_and_created_again_under_a_running_idempotent_producer(
    node: RunningNode, by: str
) -> None:
    """Continue with librdkafka's producer: a gap in its sequence would stop it."""
    topic = f"again-{by}"
    admin = AdminClient({"bootstrap.servers": node.kafka})
    fatal: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": node.kafka,
            "enable.idempotence": True,
            "error_cb": lambda error: fatal.append(str(error)) if error.fatal() else None,
        }
    )
    failed: list[str] = []

    def send(count: int) -> None:
        for number in range(count):
            producer.produce(
                topic,
                partition=0,
                value=b"%d" % number,
                on_delivery=lambda error, _: failed.append(str(error)) if error else None,
            )
            producer.poll(0.001)
        assert producer.flush(SECONDS) == 0

    for _ in range(3):
        admin.create_topics([NewTopic(topic, 1)])[topic].result(SECONDS)
        send(50)
        if by == "kafka":
            admin.delete_topics([topic])[topic].result(SECONDS)
        else:
            url = f"{node.url}/v1/topics/{topic}"
            urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()  # noqa: S310
    assert (fatal, failed) == ([], [])
