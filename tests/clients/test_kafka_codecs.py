"""Kafka clients of other languages write records in each codec that they have, read them back, and
librdkafka reads the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import go_programs
import java_programs
import node_js
import pytest
import test_kafka_clients
from missing import needed_program
from product import RunningNode
from test_kafka_clients import COUNT, expected, run

pytestmark = pytest.mark.process
libraries = test_kafka_clients.libraries
HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS = 120
GO_SECONDS = 280  # with an empty cache of Go


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path_factory.mktemp("codecs") / "data", ("--cores", "2"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def called(*command: object, **more: Any) -> list[Any]:
    """Run a program; return the lines of JSON that it prints."""
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=SECONDS, check=False, **more
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_others(node: RunningNode, prefix: str, codec: str, *, with_none: bool) -> None:
    found, ends, _ = run("confluent", "read", node.kafka, f"{prefix}-{codec}", COUNT)
    assert found == expected(codec, with_none=with_none)
    assert ends == [0, COUNT]


def test_the_java_client_has_every_codec(node: RunningNode, libraries: Path) -> None:
    program = java_programs.compiled(HERE / "kafka_java" / "Records.java", libraries)
    java = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *program)
    given = (node.kafka, "java", COUNT, *CODECS)
    called(*java, "write", *given)
    read = called(*java, "read", *given)
    assert read == [expected(codec, with_none=True) for codec in CODECS]
    for codec in CODECS:
        check_others(node, "java", codec, with_none=True)


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_has_every_codec(node: RunningNode, codec: str) -> None:
    """Lines with keys, a header, and tombstones for empty values."""
    kcat = [needed_program("kcat"), "-b", node.kafka, "-t", f"kcat-{codec}"]
    values = ["" if number % 5 == 2 else f"{codec} {number}" for number in range(COUNT)]
    lines = "".join(f"k{number}:{value}\n" for number, value in enumerate(values))
    writer = [*kcat, "-P", "-z", codec, "-K", ":", "-Z", "-H", "n=1"]
    subprocess.run(writer, input=lines, text=True, timeout=SECONDS, check=True)
    reader = [*kcat, "-C", "-o", "beginning", "-e", "-q", "-f", "%o %k %S %h %s\n"]
    read = subprocess.run(reader, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert read.stdout.splitlines() == [
        f"{number} k{number} {len(value) or -1} n=1 {value}" for number, value in enumerate(values)
    ]


def test_kafkajs_has_gzip(node: RunningNode) -> None:
    folder = node_js.installed(HERE / "kafka_js", "kafkajs")
    for codec in ("none", "gzip"):
        given = (node.kafka, f"js-{codec}", codec, COUNT)
        at: dict[str, Any] = {"cwd": folder, "env": node_js.environment()}
        called(node_js.node(), "records.mjs", "write", *given, **at)
        (found,) = called(node_js.node(), "records.mjs", "read", *given, **at)
        assert found == expected(codec, with_none=False)
        check_others(node, "js", codec, with_none=False)


@pytest.mark.long
def test_franz_go_has_every_codec(node: RunningNode, tmp_path: Path) -> None:
    program = go_programs.built(HERE / "franz", "./records", tmp_path / "records")
    given = (node.kafka, "go", COUNT, *CODECS)
    called(program, "write", *given)
    assert called(program, "read", *given) == [expected(codec, with_none=False) for codec in CODECS]
    for codec in CODECS:
        check_others(node, "go", codec, with_none=False)
