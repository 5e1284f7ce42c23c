"""Kafka's own tools make users, ACLs and quotas, and other clients are held to them, also after a
restart."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import go_programs
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from polling import wait_until
from product import RunningNode, polynya
from worlds.kafka_server import java

pytestmark = pytest.mark.process
SECONDS = 60
GO_SECONDS = 280  # with an empty cache of Go
FLAGS = ("--cores", "2", "--auth-required")
ACLS, CONFIGS = "org.apache.kafka.tools.AclCommand", "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


class Site:
    """A node with access control, and the tools of its administrator."""

    def __init__(self, folder: Path) -> None:
        self.data, self._config = folder / "data", folder / "root.properties"
        made = polynya(
            "token", "create", "root", "--allow", "all,admin", "--data", str(self.data),
            seconds=SECONDS,
        )  # fmt: skip
        assert made.code == 0, made
        self.token = made.out.strip()
        login = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        self._config.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config={login} username="root" password="{self.token}";\n'
        )
        self.node = RunningNode(self.data, FLAGS)

    def restart(self) -> None:
        assert self.node.stop() == 0, "".join(self.node.log)
        self.node = RunningNode(self.data, FLAGS)

    def tool(self, main: str, *arguments: str, code: int = 0) -> str:
        """Run one of Kafka's tools; return its output."""
        command = java(
            main, "--bootstrap-server", self.node.kafka, "--command-config", str(self._config),
            *arguments,
        )  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def settings(self, user: str, password: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.node.kafka,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": user,
            "sasl.password": password,
        }

    def produced(self, topic: str) -> int:
        """Return the error of a record that `ann` sends by librdkafka; 0: none."""
        errors: list[int] = []
        producer = Producer(self.settings("ann", "secret"))
        producer.produce(
            topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0)
        )
        assert producer.flush(SECONDS) == 0
        return errors[0]

    def listed(self) -> set[tuple[str, str, str, str]]:
        """Return the ACLs of `ann` as librdkafka lists them."""
        wanted = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, "User:ann", None,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        admin = AdminClient(self.settings("root", self.token))
        found: list[AclBinding] = admin.describe_acls(wanted).result(SECONDS)
        return {
            (
                each.restype.name,
                each.name,
                each.resource_pattern_type.name,
                each.operation.name,
            )
            for each in found
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = Site(tmp_path)
    try:
        yield running
        assert "a Kafka request failed" not in "".join(running.node.log)
    finally:
        running.node.close()


async def consumed(site: Site, topic: str) -> bytes | None:
    """Return the first record of a topic that `ann` reads by aiokafka; None: she may not."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka.errors import TopicAuthorizationFailedError

    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=site.node.kafka,
        group_id="team-readers",
        auto_offset_reset="earliest",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="ann",
        sasl_plain_password="secret",
    )
    try:
        await consumer.start()
        async with asyncio.timeout(SECONDS):
            return (await consumer.getone()).value
    except TopicAuthorizationFailedError:
        return None
    finally:
        await consumer.stop()


def test_acls_of_kafkas_tools_hold_for_other_clients_and_after_a_restart(site: Site) -> None:
    password = "SCRAM-SHA-256=[iterations=8192,password=secret]"
    users = ("--entity-type", "users", "--entity-name", "ann")
    site.tool(CONFIGS, "--alter", *users, "--add-config", password)
    site.tool(CONFIGS, "--alter", *users, "--add-config", "consumer_byte_rate=1048576")
    assert site.produced("orders-1") == DENIED
    site.tool(
        ACLS, "--add", "--allow-principal", "User:ann", "--producer", "--consumer",
        "--topic", "orders", "--group", "team", "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    expected = {
        *(
            ("TOPIC", "orders", "PREFIXED", each)
            for each in ("WRITE", "CREATE", "DESCRIBE", "READ")
        ),
        ("GROUP", "team", "PREFIXED", "READ"),
    }
    assert site.listed() == expected
    assert site.produced("orders-1") == 0
    assert site.produced("other") == DENIED

    site.restart()
    assert site.listed() == expected
    assert asyncio.run(consumed(site, "orders-1")) == b"x"
    assert asyncio.run(consumed(site, "other")) is None
    tokens = polynya("token", "ls", "--data", str(site.data), seconds=SECONDS)
    assert "what Kafka's ACLs allow" in tokens.out
    asked = Request(f"{site.node.admin}/v1/admin/tokens")
    asked.add_header("Authorization", f"Bearer {site.token}")
    with urlopen(asked) as answer:
        assert "User:ann READ on GROUP PREFIXED team" in json.load(answer)["acls"]
    shown = site.tool(CONFIGS, "--describe", *users)
    assert "consumer_byte_rate=1048576.0" in shown
    assert "SCRAM-SHA-256=iterations=8192" in shown

    refused = site.tool(
        ACLS, "--add", "--deny-principal", "User:ann", "--operation", "Read", "--topic", "x", code=1
    )
    assert "DENY is not supported" in refused
    site.tool(
        ACLS, "--remove", "--force", "--allow-principal", "User:ann", "--operation", "Write",
        "--topic", "orders", "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert site.listed() == expected - {("TOPIC", "orders", "PREFIXED", "WRITE")}
    assert site.produced("orders-1") == DENIED


def test_configs_of_groups_and_the_quorum_by_kafkas_tools(site: Site) -> None:
    group = ("--entity-type", "groups", "--entity-name", "readers")
    site.tool(CONFIGS, "--alter", *group, "--add-config", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in site.tool(CONFIGS, "--describe", *group)
    consumer = Consumer(
        site.settings("root", site.token) | {"group.id": "readers", "group.protocol": "consumer"}
    )
    Producer(site.settings("root", site.token)).list_topics("t", SECONDS)
    consumer.subscribe(["t"])
    wait_until(
        lambda: consumer.poll(0.1) or consumer.assignment(),
        what="the group to assign the partition",
        seconds=SECONDS,
    )
    listed = site.tool(GROUPS, "--list")
    assert ["readers", "Consumer", "consumer"] in [line.split() for line in listed.splitlines()]
    consumer.close()
    quorum = site.tool(QUORUM, "describe", "--status")
    assert re.search(r"^LeaderId: +0$", quorum, re.MULTILINE)
    assert '"id": 0' in quorum
    site.tool(CONFIGS, "--alter", *group, "--delete-config", "consumer.session.timeout.ms")
    assert "consumer.session.timeout.ms=50000" not in site.tool(CONFIGS, "--describe", *group)


@pytest.mark.long
def test_admin_clients_of_go_make_and_delete_them(site: Site, tmp_path: Path) -> None:
    """franz-go's kadm and Sarama list what they made, and nothing once it is deleted."""
    program = go_programs.built(Path(__file__).parent / "go_admin", ".", tmp_path / "go-admin")
    done = subprocess.run(
        [str(program), site.node.kafka, "root", site.token],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    for client, acls in (("franz", 2), ("sarama", 1)):
        assert output[client]["Acls"] == [acls, 0]
        assert output[client]["Users"] == output[client]["Quotas"] == [1, 0]
        assert "do not satisfy the configured policy" in output[client]["Deny"]
