"""Kafka clients, unchanged, against a node with access control and TLS: each mechanism of SASL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import go_programs
import node_js
import pytest
import test_kafka_clients
from long_tests import long
from missing import needed_program
from polling import wait_until
from product import RunningNode, environment, polynya

pytestmark = pytest.mark.process
libraries = test_kafka_clients.libraries
HERE = Path(__file__).parent
COUNT = 5
VALUES = [f"value {number}" for number in range(COUNT)]
SECONDS = 120
GO_SECONDS = 280  # with an empty cache of Go
CLIENTS = (
    ("confluent", "OAUTHBEARER"),
    ("python", "SCRAM-SHA-256"),
    ("aio", "PLAIN"),
    *long([("confluent", "PLAIN"), ("confluent", "SCRAM-SHA-512"), ("aio", "SCRAM-SHA-512")]),
)


class Secured(RunningNode):
    """A node that needs tokens, and one token for topics that begin with `mine`."""

    def __init__(self, data: Path) -> None:
        self.ca = data / "tls" / "self.crt"
        self.data = data
        self.token = self.minted("shop", "read,append,create,subscribe:kafka/mine")
        flags = ("--cores", "2", "--auth-required", "--tls-self")
        super().__init__(data, flags)

    def minted(self, name: str, scope: str) -> str:
        return self.called("token", "create", name, "--allow", scope, "--data", str(self.data))

    def called(self, *arguments: str, code: int = 0, **variables: str) -> str:
        ran = polynya(*arguments, seconds=SECONDS, **variables)
        assert ran.code == code, ran
        return (ran.err if code else ran.out).strip()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    running = Secured(tmp_path_factory.mktemp("secured") / "data")
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "a Kafka request failed" not in "".join(running.log), "".join(running.log)
        assert running.token.split("_")[2] not in "".join(running.log)


def run(command: list[str], *, code: int = 0, **more: object) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, **more  # type: ignore[call-overload]
    )  # fmt: skip
    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    return str(done.stdout if not code else done.stderr + done.stdout)


@pytest.mark.parametrize(("library", "mechanism"), CLIENTS)
def test_a_client_authenticates(node: Secured, library: str, mechanism: str) -> None:
    topic = f"mine.{library}.{mechanism}"
    script = str(HERE / "kafka" / "secured_client.py")
    found = run(
        [sys.executable, script, library, mechanism, node.kafka, str(node.ca), "shop", node.token,
         topic, str(COUNT)],
        env=environment(),
    )  # fmt: skip
    assert json.loads(found) == VALUES


def test_kcat_sees_the_topics_of_its_token(node: Secured) -> None:
    def kcat(
        token: str, *arguments: str, code: int = 0, given: str = "", mechanism: str = "PLAIN"
    ) -> str:
        settings = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(node.ca),
            "sasl.mechanisms": mechanism,
            "sasl.username": "shop",
            "sasl.password": token,
        }
        flags = [f"-X{name}={value}" for name, value in settings.items()]
        command = [needed_program("kcat"), "-b", node.kafka, *flags, *arguments]
        return run(command, code=code, input=given)

    kcat(node.token, "-P", "-t", "mine.kcat", given="a\n")
    assert kcat(node.token, "-C", "-t", "mine.kcat", "-o", "beginning", "-eq") == "a\n"
    refused = kcat(node.token, "-C", "-t", "theirs", "-eq", code=1)
    assert "authorization failed" in refused.lower()
    assert "theirs" not in kcat(node.token, "-L")
    old = kcat(node.token, "-L", mechanism="SCRAM-SHA-256")  # its nonce is not that of the RFC
    assert "mine.kcat" in old
    refused = kcat("wrong", "-L", "-m", "2", code=1)
    assert "the token is not known here" in refused


def test_kafkajs_authenticates(node: Secured) -> None:
    folder = node_js.installed(HERE / "kafka_js", "kafkajs")
    for mechanism in ("plain", "scram-sha-256"):
        topic = f"mine.js.{mechanism}"
        given = (node.kafka, topic, str(COUNT), mechanism, "shop", node.token, str(node.ca))
        command = [node_js.node(), "kafkajs.mjs", *given]
        output = json.loads(run(command, cwd=folder, env=node_js.environment()))
        assert output["base"] == "0"
        assert output["high"] == str(COUNT)
        assert topic in output["topics"]
        assert all(each.startswith("mine") for each in output["topics"])
        read = node.called(
            "consume", topic, "--exit", "--json", "--server", node.url,
            POLYNYA_TOKEN=node.token, POLYNYA_CA_FILE=str(node.ca),
        )  # fmt: skip
        rows = [json.loads(line) for line in read.splitlines()]
        assert [row["value"] for row in rows] == [
            None if number % 5 == 2 else value for number, value in enumerate(VALUES)
        ]
        assert rows[3]["key"] is None
        assert rows[4]["headers"] == [["n", "4"]]


@pytest.mark.long
def test_franz_go_authenticates(node: Secured) -> None:
    program = go_programs.built(HERE / "franz", ".", node.data.parent / "franz")
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        topic = f"mine.go.{mechanism}"
        given = (node.kafka, topic, str(COUNT), mechanism, "shop", node.token, str(node.ca))
        assert json.loads(run([str(program), *given])) == VALUES


def test_the_java_tools_authenticate(node: Secured, libraries: Path, tmp_path: Path) -> None:
    def java(tool: str, config: str, *arguments: str, given: str = "") -> str:
        settings = tmp_path / "client.properties"
        for mechanism, module in (("SCRAM-SHA-256", "scram.Scram"), ("PLAIN", "plain.Plain")):
            login = f'org.apache.kafka.common.security.{module}LoginModule required username="shop"'
            settings.with_suffix(f".{mechanism}").write_text(
                f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\n"
                f"ssl.truststore.type=PEM\nssl.truststore.location={node.ca}\n"
                f'sasl.jaas.config={login} password="{node.token}";\n'
            )
        return run(
            ["java", *test_kafka_clients.JAVA, "-cp", f"{libraries}/*", f"org.apache.kafka.tools.{tool}",
             "--bootstrap-server", node.kafka, "--command-config",
             str(settings.with_suffix(f".{config}")), *arguments],
            input=given,
        )  # fmt: skip

    java("ConsoleProducer", "SCRAM-SHA-256", "--topic", "mine.java", given="1\n2\n")
    found = java(
        "consumer.ConsoleConsumer", "PLAIN", "--topic", "mine.java", "--partition", "0",
        "--offset", "earliest", "--max-messages", "2", "--timeout-ms", "60000",
    )  # fmt: skip
    assert found.split() == ["1", "2"]


def test_a_revoked_token_loses_its_connection(node: Secured) -> None:
    token = node.minted("gone", "all")
    settings = f"security.protocol=SASL_SSL ssl.ca.location={node.ca} sasl.mechanisms=PLAIN"
    flags = [f"-X{each}" for each in f"{settings} sasl.username=gone".split()]
    command = [needed_program("kcat"), "-b", node.kafka, *flags, f"-Xsasl.password={token}"]
    run([*command, "-P", "-t", "gone"], input="a\n")
    reader = subprocess.Popen(
        [*command, "-C", "-t", "gone", "-o", "beginning", "-u"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "a\n"
        node.called("token", "revoke", "gone", "--data", str(node.data))
        wait_until(
            lambda: "its token has ended" in "".join(node.log),
            what="the connection to be closed",
            seconds=5.0,  # within one, on a machine that is not busy
        )
    finally:
        reader.kill()
        reader.wait()
        assert reader.stdout is not None
        reader.stdout.close()


def test_the_command_line_presents_its_token(node: Secured) -> None:
    secured = {"POLYNYA_TOKEN": node.token, "POLYNYA_CA_FILE": str(node.ca)}
    at = ("--server", node.url)
    node.called("produce", "mine.cli", "x", *at, **secured)
    assert node.called("consume", "mine.cli", "--exit", *at, **secured) == "x"
    refused = node.called("produce", "theirs", "x", *at, code=1, **secured)
    assert "authorization failed" in refused.lower()
    brokers = ("--brokers", node.kafka, *at)
    wrong = {**secured, "POLYNYA_TOKEN": "wrong"}
    refused = node.called("consume", "mine.cli", "--exit", *brokers, code=1, **wrong)
    assert "authentication failed" in refused.lower()
