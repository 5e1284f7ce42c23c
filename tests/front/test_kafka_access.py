"""Access control of the Kafka front: SASL, permissions, revocation and limits."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fuzz.bytes import damaged
from kio.schema.create_topics.v5 import request as create_topics
from kio.schema.metadata.v9 import request as metadata
from polling import turns, wait_for
from wire.kafka.kio_values import kio_class, random_kio
from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    batch,
    fetch_fields,
    frame,
    plain_fields,
    play,
    produce_fields,
)

from polynya.access import Access, Limits
from polynya.access.token_file import TokenFile, Wanted
from polynya.front.common.unauthenticated import AUTHENTICATION_SECONDS
from polynya.front.kafka import dispatch
from polynya.front.kafka.auth.caller import ADMINISTRATIVE, CHECKED, OPEN
from polynya.front.kafka.connection import Connection
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.kafka.errors import Error
from polynya.wire.kafka.messages import APIS


class Gate:
    """Tokens by name, and the access that knows them."""

    def __init__(self, folder: Path) -> None:
        self.tokens = TokenFile(folder)
        self.texts: dict[str, str] = {}
        self.wall = time.time()
        self.clock = 1000.0
        self.access = Access(self.tokens, wall=lambda: self.wall, clock=lambda: self.clock)

    def token(self, name: str, *scopes: str, seconds: float | None = None, **limits: Any) -> str:
        wanted = Wanted(
            name=name, scopes=list(scopes), expires_in_seconds=seconds, limits=Limits(**limits)
        )
        self.texts[name] = self.tokens.add(wanted, int(self.wall * 1000))[1]
        self.access.reload()
        return self.texts[name]

    async def wire(self, world: KafkaWorld, name: str) -> KafkaWire:
        """A connection that has authenticated with a token."""
        wire = await world.wire()
        assert await plain(wire, name, self.texts[name]) == (0, 0)
        return wire


def guarded(folder: Path, tell: Callable[[KafkaWorld, Gate], Awaitable[None]]) -> None:
    gate = Gate(folder)
    play(lambda world: tell(world, gate), KafkaProtection(gate.access))


async def handshake(wire: KafkaWire, mechanism: str, version: int = 1) -> int:
    message = await wire.ask("SaslHandshake", version, mechanism=mechanism)
    assert message.error_code.value or mechanism in message.mechanisms
    return message.error_code.value


async def authenticate(wire: KafkaWire, message: bytes) -> Any:
    return await wire.ask("SaslAuthenticate", 2, auth_bytes=message)


async def plain(wire: KafkaWire, user: str, password: str) -> tuple[int, int]:
    """Return (error, session lifetime in seconds)."""
    assert await handshake(wire, "PLAIN") == 0
    answer = await authenticate(wire, f"\0{user}\0{password}".encode())
    return answer.error_code.value, round(answer.session_lifetime.total_seconds())


async def topics_of(wire: KafkaWire, *names: str, create: bool = True) -> dict[str, int]:
    """Return the error of each topic; of all topics without names."""
    named = tuple(metadata.MetadataRequestTopic(name=name) for name in names) if names else None
    message = await wire.ask(
        "Metadata",
        9,
        topics=named,
        allow_auto_topic_creation=create,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    return {each.name: each.error_code.value for each in message.topics}


async def produced(wire: KafkaWire, topic: str) -> int:
    message = await wire.ask("Produce", 9, **produce_fields(topic, batch(b"x")))
    return message.responses[0].partition_responses[0].error_code.value


async def fetched(wire: KafkaWire, topic: str) -> int:
    message = await wire.ask("Fetch", 11, **fetch_fields(topic, 0))
    return message.responses[0].partitions[0].error_code.value


def test_each_key_has_a_rule() -> None:
    """A key without one needs `admin`: its handler checks no name."""
    assert set(APIS) == CHECKED | OPEN | ADMINISTRATIVE.keys()
    assert set(dispatch._HANDLERS) <= CHECKED | OPEN | ADMINISTRATIVE.keys()
    assert not CHECKED & ADMINISTRATIVE.keys()


def test_only_authentication_is_served_before_authentication(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("t", "all")
        wire = await world.wire()
        assert await wire.ask("ApiVersions", 0)
        wire.send("Produce", 9, **produce_fields("a", batch(b"x")))
        assert await wire.ended()
        wire = await world.wire()
        answer = await authenticate(wire, b"\0t\0x")
        assert answer.error_code.value == Error.ILLEGAL_SASL_STATE
        assert await wire.ended()
        wire = await world.wire()
        message = await wire.ask("SaslHandshake", 1, mechanism="GSSAPI")
        assert message.error_code.value == Error.UNSUPPORTED_SASL_MECHANISM
        assert await wire.ended()
        assert not world.front.context.topics.names

    guarded(tmp_path, story)


def test_a_node_without_access_control_has_no_sasl() -> None:
    async def story(world: KafkaWorld) -> None:
        wire = await world.wire()
        assert await handshake(wire, "PLAIN") == Error.ILLEGAL_SASL_STATE
        assert await produced(wire, "a") == Error.UNKNOWN_TOPIC_OR_PARTITION

    play(story)


@pytest.mark.parametrize("version", [0, 1])
def test_plain_takes_a_token_by_its_name_or_id(tmp_path: Path, version: int) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all")
        for user in ("shop", text.split("_")[1]):
            wire = await world.wire()
            assert await handshake(wire, "PLAIN", version) == 0
            message = f"\0{user}\0{text}".encode()
            if version:
                assert (await authenticate(wire, message)).error_code.value == 0
            else:  # without a header, as clients of 2016 send it
                wire.writer.write(len(message).to_bytes(4) + message)
                assert await wire.receive() == b""
            assert await topics_of(wire, "a") == {"a": 0}

    guarded(tmp_path, story)


@pytest.mark.parametrize(
    ("user", "password"), [("other", ""), ("shop", "polynya_x_y"), ("shop", "x"), ("", "")]
)
def test_a_wrong_user_or_password_closes_the_connection(
    tmp_path: Path, user: str, password: str
) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all")
        wire = await world.wire()
        error, _ = await plain(wire, user, password or text)
        assert error == Error.SASL_AUTHENTICATION_FAILED
        assert await wire.ended()
        assert gate.access.counters.denied == 1

    guarded(tmp_path, story)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_takes_a_token_that_has_a_verifier(tmp_path: Path, mechanism: str) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all")
        for password, expected in ((text, 0), ("wrong", Error.SASL_AUTHENTICATION_FAILED)):
            wire = await world.wire()
            assert await handshake(wire, mechanism) == 0
            found = await authenticate(wire, b"n,,n=shop,r=nonce")
            final = scram_final(mechanism[6:].replace("-", "").lower(), password, found.auth_bytes)
            assert (await authenticate(wire, final)).error_code.value == expected
        said, salts = set(), []
        for user in ("shop", "nobody", "nobody"):
            wire = await world.wire()
            assert await handshake(wire, mechanism) == 0
            found = await authenticate(wire, f"n,,n={user},r=nonce".encode())
            assert found.error_code.value == 0
            salts.append(found.auth_bytes.split(b",")[1])
            final = scram_final(mechanism[6:].replace("-", "").lower(), "wrong", found.auth_bytes)
            refused = await authenticate(wire, final)
            assert refused.error_code.value == Error.SASL_AUTHENTICATION_FAILED
            said.add(refused.error_message)
        (message,) = said
        assert "use PLAIN" in message
        assert salts[1] == salts[2] != salts[0]
        assert len(salts[0]) == len(salts[1])

    guarded(tmp_path, story)


def scram_final(name: str, password: str, first: bytes) -> bytes:
    """Return the client's final message to a server's first message."""
    nonce, salt, _ = (part[2:] for part in first.decode().split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(salt), 4096)
    key = hmac.digest(salted, b"Client Key", name)
    unproved = f"c=biws,r={nonce}"
    signed = f"n=shop,r=nonce,{first.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    return f"{unproved},p={base64.b64encode(proof).decode()}".encode()


def test_oauthbearer_takes_a_token(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all", seconds=3600)
        for token, expected in ((text, 0), ("x.y.z", Error.SASL_AUTHENTICATION_FAILED)):
            wire = await world.wire()
            assert await handshake(wire, "OAUTHBEARER") == 0
            answer = await authenticate(wire, f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            assert answer.error_code.value == expected
            if not expected:
                assert 3590 < answer.session_lifetime.total_seconds() <= 3600

    guarded(tmp_path, story)


def test_a_token_sees_the_topics_of_its_prefixes_alone(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        for name in ("orders", "orders2", "other"):
            await world.topic(name)
        gate.token("reads", "read:kafka/orders/")
        gate.token("writes", "append:kafka/orders", "create:kafka/orders")
        gate.token("all", "all")
        denied = int(Error.TOPIC_AUTHORIZATION_FAILED)

        reader = await gate.wire(world, "reads")
        assert await topics_of(reader) == {"orders": 0}
        assert await topics_of(reader, "orders", "orders2", "new") == {
            "orders": 0,
            "orders2": denied,
            "new": denied,
        }
        assert await produced(reader, "orders") == denied
        assert await produced(reader, "new") == denied
        assert await fetched(reader, "orders") == 0
        assert await fetched(reader, "orders2") == denied
        assert await fetched(reader, "new") == denied

        writer = await gate.wire(world, "writes")
        assert await topics_of(writer) == {"orders": 0, "orders2": 0}
        assert await topics_of(writer, "orders3", "new") == {"orders3": 0, "new": denied}
        assert await produced(writer, "orders2") == 0
        assert await fetched(writer, "orders2") == denied
        assert (await writer.ask("InitProducerId", 1, **init_fields())).error_code.value == 0
        refused = await reader.ask("InitProducerId", 1, **init_fields())
        assert refused.error_code.value == Error.CLUSTER_AUTHORIZATION_FAILED

        everything = await gate.wire(world, "all")
        assert set(await topics_of(everything)) == {"orders", "orders2", "orders3", "other"}
        assert set(world.front.context.topics.names) == {"orders", "orders2", "orders3", "other"}

    guarded(tmp_path, story)


def init_fields() -> dict[str, Any]:
    import datetime as dt

    return {"transactional_id": None, "transaction_timeout": dt.timedelta(seconds=1)}


def test_topics_are_created_and_deleted_by_those_who_may(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("makes", "create:kafka/mine", streams=5)
        gate.token("drops", "delete:kafka/mine.a/")
        maker, dropper = await gate.wire(world, "makes"), await gate.wire(world, "drops")
        denied = int(Error.TOPIC_AUTHORIZATION_FAILED)
        assert await created(maker, "theirs", 1) == denied
        assert await created(maker, "mine.a", 3) == 0
        assert await created(maker, "mine.b", 3) == Error.POLICY_VIOLATION, "over its 5 streams"
        assert await created(dropper, "mine.c", 1) == denied
        assert await created(maker, "mine.c", 2) == 0
        assert await deleted(maker, "mine.a") == denied
        assert await deleted(dropper, "mine.c") == denied
        assert await deleted(dropper, "mine.a") == 0
        assert set(world.front.context.topics.names) == {"mine.c"}

    guarded(tmp_path, story)


async def created(wire: KafkaWire, name: str, partitions: int) -> int:
    from datetime import timedelta

    from kio.static.primitive import i16, i32

    topic = create_topics.CreatableTopic(
        name=name,
        num_partitions=i32(partitions),
        replication_factor=i16(-1),
        assignments=(),
        configs=(),
    )
    message = await wire.ask(
        "CreateTopics", 5, topics=(topic,), timeout=timedelta(seconds=9), validate_only=False
    )
    return message.topics[0].error_code.value


async def deleted(wire: KafkaWire, name: str) -> int:
    from datetime import timedelta

    message = await wire.ask("DeleteTopics", 4, topic_names=(name,), timeout=timedelta(seconds=9))
    return message.responses[0].error_code.value


def test_a_revoked_token_loses_its_connections(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("gone", "all")
        gate.token("stays", "all")
        gone, stays = await gate.wire(world, "gone"), await gate.wire(world, "stays")
        assert await topics_of(gone, "a") == {"a": 0}
        gone.send("Fetch", 11, **fetch_fields("a", 0, max_wait_ms=30_000))
        await asyncio.sleep(0)
        gate.tokens.revoke("gone", int(gate.wall * 1000))
        gate.access.tick()
        with suppress(ConnectionResetError):
            assert await gone.reader.read() == b""
        assert await topics_of(stays, "a") == {"a": 0}

    guarded(tmp_path, story)


def test_a_session_ends_with_its_token_unless_the_client_authenticates_again(
    tmp_path: Path,
) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        short = gate.token("short", "all", seconds=60)
        gate.token("other", "all")
        wire = await world.wire()
        assert await plain(wire, "short", short) == (0, 60)
        gate.wall += 20
        assert await plain(wire, "short", short) == (0, 40)
        other = await gate.wire(world, "other")
        error, _ = await plain(other, "short", short)
        assert error == Error.SASL_AUTHENTICATION_FAILED, "a connection stays with its token"
        assert await other.ended()
        gate.wall += 50
        gate.access.tick()
        assert await wire.ended()

    guarded(tmp_path, story)


def test_a_token_over_its_rate_is_throttled_and_not_read(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("slow", "all", requests_per_second=2)
        wire = await gate.wire(world, "slow")
        assert await topics_of(wire, "a") == {"a": 0}
        throttled = [
            (await wire.ask("Produce", 9, **produce_fields("a", batch(b"x")))).throttle_time
            for _ in range(1)
        ]
        assert not any(throttled), "a burst of one second"
        unmute = Connection._unmute
        over: list[Connection] = []

        def note(connection: Connection) -> None:
            over.append(connection)

        with patch.object(Connection, "_unmute", note):
            message = await wire.ask("Produce", 9, **produce_fields("a", batch(b"x")))
            assert message.throttle_time.total_seconds() == pytest.approx(0.5, abs=0.01)
            wire.send("Produce", 9, **produce_fields("a", batch(b"x")))
            (connection,) = await wait_for(lambda: over, what="the end of the pause")
        await turns()
        assert gate.access.counters.limited == 1, "the answer did not wait, the next request does"
        unmute(connection)
        await wire.receive()
        assert gate.access.counters.limited == 2

    guarded(tmp_path, story)


def test_a_token_has_its_number_of_connections(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("two", "all", connections=2)
        wires = [await gate.wire(world, "two") for _ in range(2)]
        third = await world.wire()
        assert (await plain(third, "two", text))[0] == Error.SASL_AUTHENTICATION_FAILED
        assert (await plain(wires[0], "two", text))[0] == 0, "again on the same connection"
        wires[0].close()
        await wait_for(lambda: len(world.front.connections) <= 1, what="the place is free")
        await gate.wire(world, "two")

    guarded(tmp_path, story)


def test_a_connection_authenticates_in_time_or_is_closed(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("shop", "all")
        known, silent = await gate.wire(world, "shop"), await world.wire()
        assert await silent.ask("ApiVersions", 0)
        for seconds, left in ((AUTHENTICATION_SECONDS, 2), (AUTHENTICATION_SECONDS + 1, 1)):
            for connection in tuple(world.front.connections):
                connection.sweep(world.front.connections.ticks.now + seconds)
            await asyncio.sleep(0)
            assert len(world.front.connections) == left
        assert await silent.ended()
        assert await topics_of(known, "a") == {"a": 0}

    guarded(tmp_path, story)


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-256"])
def test_nonsense_authenticates_nobody(
    tmp_path: Path, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Damaged messages are refused by an answer, and nothing of them is a fault of the node."""
    chance = random.Random(mechanism)

    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all")
        whole = {
            "PLAIN": f"\0shop\0{text}",
            "OAUTHBEARER": f"n,,\x01auth=Bearer {text}\x01\x01",
            "SCRAM-SHA-256": "n,,n=shop,r=nonce",
        }[mechanism].encode()
        for _ in range(60):
            wire = await world.wire()
            assert await handshake(wire, mechanism) == 0
            answer = await authenticate(wire, damaged(chance, whole))
            if answer.error_code.value == 0 and mechanism.startswith("SCRAM"):
                answer = await authenticate(wire, damaged(chance, b"c=biws,r=nonce,p=AAAA"))
            assert answer.error_code.value in (0, Error.SASL_AUTHENTICATION_FAILED)
            wire.close()
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        assert gate.access.counters.denied > 40

    guarded(tmp_path, story)


def test_credentials_are_in_no_frame_that_is_malformed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        text = gate.token("shop", "all")
        wire = await world.wire()
        assert await handshake(wire, "PLAIN") == 0
        whole = frame("SaslAuthenticate", 2, 1, auth_bytes=f"\0shop\0{text}".encode())
        cut = whole[4:-9]
        wire.writer.write(len(cut).to_bytes(4) + cut)
        assert await wire.ended()
        assert text[:20] not in caplog.text

    guarded(tmp_path, story)


def test_a_token_is_kept_to_its_groups_and_its_topics_configs(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, gate: Gate) -> None:
        for name in ("mine", "other"):
            await world.topic(name)
        gate.token("mine", "read:kafka/mine", "subscribe:kafka/mine", "delete:kafka/mine/")
        wire = await gate.wire(world, "mine")

        async def ask(name: str, version: int, **fields: Any) -> Any:
            return await wire.ask(name, version, **plain_fields(name, version, fields))

        denied_group = int(Error.GROUP_AUTHORIZATION_FAILED)
        denied = int(Error.TOPIC_AUTHORIZATION_FAILED)
        for group, expected in (("mine.g", 0), ("other", denied_group)):
            found = await ask("FindCoordinator", 2, key=group, key_type=0)
            assert found.error_code.value == expected
            topics = [{"name": name, "partition_indexes": [0]} for name in ("mine", "other")]
            offsets = await ask("OffsetFetch", 5, group_id=group, topics=topics)
            assert offsets.error_code.value == expected
            if not expected:
                errors = [each.partitions[0].error_code.value for each in offsets.topics]
                assert errors == [0, denied]
            gone = await ask("DeleteGroups", 1, groups_names=[group])
            assert gone.results[0].error_code.value in (expected, Error.GROUP_ID_NOT_FOUND)
            assert (gone.results[0].error_code.value == denied_group) is (expected != 0)
        for topic, expected in (("mine", 0), ("other", denied)):
            resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
            shown = await ask(
                "DescribeConfigs",
                4,
                resources=[resource],
                include_synonyms=False,
                include_documentation=False,
            )
            assert shown.results[0].error_code.value == expected
            configs = [{"name": "retention.ms", "config_operation": 0, "value": "1"}]
            resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
            changed = await ask(
                "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
            )
            assert changed.responses[0].error_code.value == expected
            asked = [{"name": topic, "count": 2, "assignments": None}]
            grown = await ask(
                "CreatePartitions", 3, topics=asked, timeout=1000, validate_only=False
            )
            assert grown.results[0].error_code.value == denied, "it may not create"

    guarded(tmp_path, story)


def test_requests_that_need_admin_get_kafkas_error(tmp_path: Path) -> None:
    """Each version of each key, on one connection, which stays open."""

    async def story(world: KafkaWorld, gate: Gate) -> None:
        gate.token("shop", "all")
        wire = await gate.wire(world, "shop")
        for key in sorted(ADMINISTRATIVE):
            api = APIS[key]
            for version in api.versions:
                request = random_kio(kio_class(api, version, "request"), random.Random(key))
                fields = {each: getattr(request, each) for each in type(request).__slots__}
                answer = await wire.ask(api.name, version, **fields)
                assert "cluster_authorization_failed" in str(answer) or not any(
                    fields.get(name)
                    for name in ("creations", "filters", "topic_partitions", "dirs")
                ), (api.name, version, answer)
        assert await wire.ask("ApiVersions", 0)

    guarded(tmp_path, story)
