"""Clients that others use: Java's since 2.1, kafka-go, platformatic and Python's stream processors. Each
writes with its codecs, reads in a group that goes on at its committed offset, and most use
transactions."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import go_programs
import node_js
import pytest
from clients.test_kafka_clients import JAVA, SECONDS
from clients.test_kafka_clients import libraries as libraries  # noqa: PLC0414 (a fixture)
from long_tests import long
from missing import left_out
from product import RunningNode

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
INSTALL_SECONDS = 300
COUNT = 20
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId>
<artifactId>clients</artifactId><version>1</version><dependencies><dependency>
<groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{version}</version>
</dependency></dependencies></project>"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    running = RunningNode(tmp_path / "data", ("--cores", "1"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)


def lines_of(*command: object, cwd: Path, **more: Any) -> list[Any]:
    """Run a program; return its lines of JSON."""
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, capture_output=True, text=True,
        timeout=SECONDS, check=False, **more,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def java_client(version: str) -> Path:
    """Return a folder with the jars of a release of Java's client, fetched once."""
    folder = Path(__file__).parents[2] / ".build" / f"kafka-clients-{version}"
    maven = shutil.which("mvn")
    if not (folder / "lib").is_dir():
        if maven is None:
            left_out(f"Java's Kafka client {version}: mvn is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(POM.format(version=version))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib.new"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, timeout=INSTALL_SECONDS, check=False
        )
        if done.returncode:
            left_out(f"Java's Kafka client {version}: {done.stdout.decode()[-300:]}")
        (folder / "lib.new").rename(folder / "lib")
    return folder / "lib"


@pytest.mark.parametrize("version", ["2.1.1", *long(["2.8.2", "3.0.2", "3.9.1", "4.0.0"])])
def test_javas_clients_of_all_releases(
    node: RunningNode, libraries: Path, tmp_path: Path, version: str
) -> None:
    jars = java_client(version)
    source = HERE / "kafka_java" / "Versions.java"
    build = ["javac", "--release", "11", "-cp", f"{jars}/*", "-d", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=SECONDS)
    command = ["java", *JAVA, "-cp", f"{tmp_path}:{jars}/*", "Versions", node.kafka, "old"]
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    found = lines_of(*command, COUNT, *codecs, cwd=tmp_path)
    # two readings of a group, the partitions of two members and of the last one, a transaction and
    # the offset that it committed
    assert found == [version, [50, 50, 100], [1, 1, 2], [["committed"], 9]]


def test_platformatic(node: RunningNode) -> None:
    """Zstd needs a newer Node than the oldest that it supports."""
    folder = node_js.installed(HERE / "platformatic", "platformatic")
    command = [node_js.node(), "uses.mjs", node.kafka, "platformatic", COUNT]
    codecs = ("none", "gzip", "snappy", "lz4")
    found = lines_of(*command, *codecs, cwd=folder, env=node_js.environment())
    assert found == [[40, 40, 80], ["committed"]]


@pytest.mark.long
def test_kafka_go(node: RunningNode, tmp_path: Path) -> None:
    program = go_programs.built(HERE / "kafka_go", ".", tmp_path / "uses")
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    # all values of a reader alone, and then those of two members of its group
    assert lines_of(program, node.kafka, "go", COUNT, *codecs, cwd=tmp_path) == [[100, 20]]


FIRST = [["a", 1], ["a", 2], ["a", 3], ["b", 1], ["b", 2], ["c", 1]]
SECOND = [["a", 4], ["a", 5], ["a", 6], ["b", 3], ["b", 4], ["c", 2]]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("quix", ["quixstreams==3.28.1"]),
        ("faust", ["faust-streaming==0.15.3", "aiokafka==0.14.0"]),
        ("bytewax", ["bytewax==0.21.1", "confluent-kafka==2.16.1"]),
    ],
)
def test_stream_processors_of_python_go_on_with_their_state(
    node: RunningNode, tmp_path: Path, name: str, packages: list[str]
) -> None:
    """Quix and Faust restore it from a changelog, with exactly-once; Bytewax from its own store."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
    subprocess.run(install, check=True, timeout=INSTALL_SECONDS, stdout=sys.stderr)
    program = HERE / f"{name}_word_count.py"
    assert lines_of(python, program, node.kafka, "w", cwd=tmp_path) == [[FIRST, SECOND]]
