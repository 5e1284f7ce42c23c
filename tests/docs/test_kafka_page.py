"""The blocks of docs/kafka.md are run as they stand, against a node of this test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import node_js
import pytest
from clients.test_kafka_clients import JAVA, libraries
from missing import needed_program
from product import RunningNode, environment

from polynya.wire.kafka.messages import APIS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "kafka.md").read_text("utf-8")
SECONDS = 120
COMPILER_SECONDS = 600
TOOLS = {  # the scripts of a release of Kafka, and their classes
    "topics": "org.apache.kafka.tools.TopicCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
}
LIBRARIES = ("confluent-kafka", "kafka-python", "aiokafka")

__all__ = ["libraries"]  # a fixture


class Reader:
    """A reader of the page, with `polynya` and the addresses of one node."""

    def __init__(self, folder: Path, node: RunningNode) -> None:
        self.node, self.folder = node, folder
        tools = folder / "bin"
        tools.mkdir()
        (tools / "polynya").write_text(f'#!/bin/sh\nexec {sys.executable} -m polynya "$@"\n')
        (tools / "polynya").chmod(0o755)
        self.variables = environment(POLYNYA_SERVER=node.url)
        self.variables["PATH"] = f"{tools}:{self.variables['PATH']}"

    def block(self, after: str, kind: str) -> str:
        """Return the first block of this kind behind a text, with the addresses of the node."""
        found = re.search(rf"{re.escape(after)}.*?```{kind}\n(.*?)```", PAGE, re.DOTALL)
        assert found, f"no block of {kind} behind {after!r}"
        here = found[1].replace("http://127.0.0.1:4437", self.node.url)
        return here.replace("127.0.0.1:9092", self.node.kafka)

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("kafka-page")
    node = RunningNode(folder / "data", ("--cores", "1"))
    try:
        yield Reader(folder, node)
    finally:
        assert node.stop() == 0, "".join(node.log)


@pytest.mark.process
def test_kcat_writes_and_reads_as_the_page_begins(reader: Reader) -> None:
    needed_program("kcat")
    start, *lines = reader.block("# Kafka clients", "sh").splitlines()
    assert start.startswith("polynya serve &"), "the node of this test is there already"
    assert reader.run("bash", "-ec", "\n".join(lines)) == "1\n"


@pytest.mark.process
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_writes_and_reads(reader: Reader, library: str) -> None:
    assert "1" in reader.run(sys.executable, "-c", reader.block(f"**{library}**", "python"))


@pytest.mark.process
def test_kafkajs_writes(reader: Reader) -> None:
    folder = node_js.installed(ROOT / "tests" / "clients" / "kafka_js", "kafkajs")
    done = subprocess.run(
        [node_js.node(), "--input-type=module", "-e", reader.block("**kafkajs**", "js")],
        cwd=folder, env=node_js.environment(), capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit(), done.stdout


@pytest.mark.process
def test_java_writes_and_reads(reader: Reader, libraries: Path) -> None:
    (reader.folder / "Orders.java").write_text(reader.block("**Java**", "java"))
    command = ("java", *JAVA, "-cp", f"{libraries}/*", "Orders.java")
    assert "1" in reader.run(*command).splitlines()


@pytest.mark.process
@pytest.mark.long  # four starts of Java; tests/clients runs the same tools
def test_the_java_tools_write_and_read(reader: Reader, libraries: Path) -> None:
    scripts = reader.folder / "bin"
    for name, tool in TOOLS.items():
        script = scripts / f"kafka-{name}.sh"
        script.write_text(f'#!/bin/sh\nexec java -Xmx256m -cp "{libraries}/*" {tool} "$@"\n')
        script.chmod(0o755)
    output = reader.run("bash", "-ec", reader.block("**Java console tools**", "sh"))
    # the other blocks of the page write to the same topic
    found = re.search(r"tools +orders +\d+ +1 +(\d+) +(\d+)", output)
    assert found and int(found[1]) == int(found[2]) + 1, output


@pytest.mark.process
@pytest.mark.long  # the compiler of Go takes its time; tests/clients runs franz-go, too
def test_franz_go_writes_and_reads(reader: Reader) -> None:
    go = needed_program("go")
    module = reader.folder / "franz"
    module.mkdir()
    for name in ("go.mod", "go.sum"):
        (module / name).write_text((ROOT / "tests/clients/franz" / name).read_text())
    # a topic of its own: the program polls once, and other blocks of the page write to theirs
    body = reader.block("**franz-go**", "go").replace('"orders"', '"franz"')
    (module / "main.go").write_text(
        'package main\n\nimport (\n\t"context"\n\t"github.com/twmb/franz-go/pkg/kgo"\n)\n\n'
        f"func main() {{\n{body}\n"
        "\tif err != nil {\n\t\tpanic(err)\n\t}\n"
        "\tfetches.EachRecord(func(record *kgo.Record) { println(string(record.Value)) })\n}\n"
    )
    done = subprocess.run(
        [go, "run", "-mod=mod", "."], cwd=module, capture_output=True, text=True, timeout=COMPILER_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "1" in done.stderr.splitlines()


@pytest.mark.process
def test_the_shell_produces_and_consumes(reader: Reader) -> None:
    output = reader.run("bash", "-ec", reader.block("## Produce and consume from the shell", "sh"))
    lines = output.splitlines()
    assert 'shop-1 {"item": 7}' in lines
    assert "b 2" in lines
    assert '"key":"b","headers":[],"value":"2"' in lines[-1]


@pytest.mark.process
def test_a_stream_is_adopted_as_the_page_says(reader: Reader) -> None:
    lines = reader.run("bash", "-ec", reader.block("### Adopt streams", "sh")).splitlines()
    assert lines[:2] == ['{"item": 7}', '{"item": 8}']
    assert [json.loads(line)["key"] for line in lines[2:]] == [None, "a"]


def test_the_table_of_keys_is_that_of_the_front() -> None:
    table = PAGE.partition("## Keys and versions")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (\d+) \| (\w+) \| (\S+) \|", table, re.MULTILINE)
    served = sorted(APIS.values(), key=lambda api: api.key)
    assert documented == [(str(api.key), api.name, _spelled(api.versions)) for api in served]


def test_each_client_that_works_is_named_with_its_test() -> None:
    table = PAGE.partition("\n| client | tried | test |\n")[2].partition("\n\n")[0]
    tests = re.findall(r"\| `(tests/\S+)` \|$", table, re.MULTILINE)
    assert len(tests) == table.count("\n") > 5
    assert all((ROOT / each).is_file() for each in tests)


def _spelled(versions: range) -> str:
    first, last = versions[0], versions[-1]
    return str(first) if first == last else f"{first}–{last}"
