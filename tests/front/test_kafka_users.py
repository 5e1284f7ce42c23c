"""Users and quotas by Kafka's requests: passwords, their bounds, and byte rates that hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from front.test_kafka_access import authenticate, handshake, topics_of
from front.test_kafka_acls import (
    SHA_256,
    SHA_512,
    Admin,
    acl,
    administered,
    is_closed,
    login,
    scram,
    upsertion,
)
from worlds.kafka import KafkaWire, KafkaWorld, batch, fetch_fields, produce_fields

from polynya.access.kafka_acls import Operation
from polynya.front.kafka.errors import Error

SHA = ("SCRAM-SHA-256", "SCRAM-SHA-512")


async def refused_login(world: KafkaWorld, user: str, password: str) -> int:
    wire = await world.wire()
    assert await handshake(wire, SHA[0]) == 0
    return await scram(wire, user, password)


async def users(admin: Admin, *names: str) -> dict[str, tuple[int, list[tuple[int, int]]]]:
    asked = [{"name": name} for name in names] if names else None
    answer = await admin.ask("DescribeUserScramCredentials", 0, users=asked)
    assert answer.error_code.value == 0
    return {
        each.user: (
            each.error_code.value,
            [(info.mechanism, info.iterations) for info in each.credential_infos],
        )
        for each in answer.results
    }


async def alter(admin: Admin, *, gone: list[Any], put: list[Any]) -> dict[str, int]:
    deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in gone]
    answer = await admin.ask("AlterUserScramCredentials", 0, deletions=deletions, upsertions=put)
    return {each.user: each.error_code.value for each in answer.results}


def test_a_user_logs_in_until_its_password_is_changed_or_deleted(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        assert await admin.password("ann", "one") == 0
        assert await admin.password("ann", "two", SHA_512, iterations=8192) == 0
        assert await users(admin, "ann") == {"ann": (0, [(SHA_256, 4096), (SHA_512, 8192)])}
        for password, mechanism in (("one", SHA_256), ("two", SHA_512)):
            assert await topics_of(await login(world, "ann", password, mechanism)) == {}
        failed = int(Error.SASL_AUTHENTICATION_FAILED)
        assert await refused_login(world, "ann", "two") == failed, "of the other mechanism"
        assert await admin.password("ann", "three") == 0
        assert await refused_login(world, "ann", "one") == failed
        await login(world, "ann", "three")
        assert await alter(admin, gone=[("ann", SHA_256)], put=[]) == {"ann": 0}
        assert await refused_login(world, "ann", "three") == failed
        wire = await login(world, "ann", "two", SHA_512)
        assert await alter(admin, gone=[("ann", SHA_512)], put=[]) == {"ann": 0}
        assert await is_closed(wire)
        assert await users(admin, "ann") == {"ann": (int(Error.RESOURCE_NOT_FOUND), [])}
        # a new user of that name is another token, and has the ACLs of the name
        await admin.create(acl("ann", Operation.DESCRIBE, "t"))
        await world.topic("t")
        assert await admin.password("ann", "four") == 0
        assert await topics_of(await login(world, "ann", "four")) == {"t": 0}
        assert [each[:2] for each in admin.lines if each[0] == "user.password"] == [
            ("user.password", "ann")
        ] * 6

    administered(tmp_path, story)


def test_a_user_has_no_other_credential(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await admin.password("ann", "secret")
        (record,) = [each for each in admin.gate.tokens.read() if each.name == "ann"]
        for user, password in (
            ("ann", "secret"),
            ("ann", f"polynya_{record.id}_"),
            ("ann", f"polynya_{record.id}_secret"),
            (record.id, f"polynya_{record.id}_x"),
        ):
            wire = await world.wire()
            assert await handshake(wire, "PLAIN") == 0
            answer = await authenticate(wire, f"\0{user}\0{password}".encode())
            assert answer.error_code.value == Error.SASL_AUTHENTICATION_FAILED

    administered(tmp_path, story)


def test_bad_passwords_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        before = admin.gate.tokens.load()
        unacceptable = int(Error.UNACCEPTABLE_CREDENTIAL)
        good = upsertion("ann", "x", SHA_256, 4096)
        for wrong, error in (
            ({"iterations": 4095}, unacceptable),
            ({"iterations": 16_385}, unacceptable),
            ({"iterations": -1}, unacceptable),
            ({"salt": b""}, unacceptable),
            ({"salt": b"s" * 257}, unacceptable),
            ({"salted_password": b"short"}, unacceptable),
            ({"mechanism": 3}, int(Error.UNSUPPORTED_SASL_MECHANISM)),
            ({"mechanism": 0}, int(Error.UNSUPPORTED_SASL_MECHANISM)),
            ({"name": ""}, unacceptable),
            ({"name": "a\0b"}, unacceptable),
            ({"name": "*"}, unacceptable),
            ({"name": "n" * 201}, unacceptable),
            ({"name": "root"}, unacceptable),  # a token: its password is its secret
            ({"name": before.tokens[0].id}, unacceptable),
        ):
            assert await alter(admin, gone=[], put=[{**good, **wrong}]) == {
                wrong.get("name", "ann"): error
            }, wrong
        missing, twice = int(Error.RESOURCE_NOT_FOUND), int(Error.DUPLICATE_RESOURCE)
        assert await alter(admin, gone=[("ann", SHA_256)], put=[]) == {"ann": missing}
        assert await alter(admin, gone=[("root", SHA_256)], put=[]) == {"root": unacceptable}
        assert await alter(admin, gone=[], put=[good, good]) == {"ann": twice}
        assert await alter(admin, gone=[("ann", SHA_256)], put=[good]) == {"ann": twice}
        assert admin.gate.tokens.load() == before
        # a user of the same request without a fault
        bob = upsertion("bob", "x", SHA_512, 16_384)
        assert await alter(admin, gone=[], put=[{**good, "iterations": 1}, bob]) == {
            "ann": unacceptable, "bob": 0,
        }  # fmt: skip
        found = await users(admin, "ann", "bob", "bob")
        assert found == {"ann": (missing, []), "bob": (twice, [])}
        assert await users(admin) == {
            "bob": (0, [(SHA_512, 16_384)]),
            "root": (0, [(SHA_256, 4096), (SHA_512, 4096)]),
        }

    administered(tmp_path, story)


async def quotas(admin: Admin, *components: Any, strict: bool = False) -> Any:
    listed = [
        {"entity_type": kind, "match_type": match, "match": name}
        for kind, match, name in components
    ]
    answer = await admin.ask("DescribeClientQuotas", 1, components=listed, strict=strict)
    if answer.error_code.value:
        return answer.error_code.value
    return {
        each.entity[0].entity_name: {value.key: value.value for value in each.values}
        for each in answer.entries
    }


def test_quotas_are_listed_as_they_were_set(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        rates = {"producer_byte_rate": 1024, "consumer_byte_rate": 2048}
        assert await admin.quota("user", "ann", **rates) == (0, None)
        assert await admin.quota("user", None, producer_byte_rate=99) == (0, None)
        both = {"ann": rates, None: {"producer_byte_rate": 99}}
        assert await quotas(admin) == both
        assert await quotas(admin, ("user", 2, None)) == both
        assert await quotas(admin, ("user", 0, "ann")) == {"ann": rates}
        assert await quotas(admin, ("user", 1, None)) == {None: {"producer_byte_rate": 99}}
        assert await quotas(admin, ("client-id", 2, None)) == {}
        assert await quotas(admin, ("user", 2, None), ("client-id", 2, None)) == {}
        assert await quotas(admin, strict=True) == {}
        assert await quotas(admin, ("x", 0, "ann")) == Error.UNSUPPORTED_VERSION
        assert await quotas(admin, ("user", 7, "ann")) == Error.INVALID_REQUEST
        assert await quotas(admin, ("user", 0, None)) == Error.INVALID_REQUEST
        assert await quotas(admin, ("user", 2, None), ("user", 2, None)) == Error.INVALID_REQUEST
        assert await quotas(admin, ("user", 2, None), ("ip", 2, None)) == Error.INVALID_REQUEST
        assert await admin.quota("user", "ann", producer_byte_rate=0) == (0, None)
        assert await admin.quota("user", None, producer_byte_rate=0) == (0, None)
        assert await quotas(admin) == {"ann": {"consumer_byte_rate": 2048}}
        assert [each[0] for each in admin.lines] == ["user.quota"] * 4

    administered(tmp_path, story)


@pytest.mark.parametrize(
    ("kind", "name", "rates", "error", "why"),
    [
        ("client-id", "c", {"producer_byte_rate": 1}, Error.POLICY_VIOLATION, "of client-id"),
        ("ip", "1.2.3.4", {"connection_creation_rate": 1}, Error.POLICY_VIOLATION, "not of ip"),
        ("team", "x", {"producer_byte_rate": 1}, Error.INVALID_REQUEST, "entity type 'team'"),
        (None, None, {"producer_byte_rate": 1}, Error.INVALID_REQUEST, "at least one type"),
        ("user", "a", {"request_percentage": 5}, Error.POLICY_VIOLATION, "--requests"),
        ("user", "a", {"controller_mutation_rate": 5}, Error.POLICY_VIOLATION, "--streams"),
        ("user", "a", {"rate": 5}, Error.INVALID_REQUEST, "quota 'rate' is unknown"),
        ("user", "a", {"producer_byte_rate": 1.5}, Error.INVALID_REQUEST, "whole number"),
        ("user", "a", {"producer_byte_rate": -1}, Error.INVALID_REQUEST, "whole number"),
        ("user", "a", {"producer_byte_rate": float("inf")}, Error.INVALID_REQUEST, "whole number"),
        ("user", "a", {"producer_byte_rate": float("nan")}, Error.INVALID_REQUEST, "whole number"),
        ("user", "", {"producer_byte_rate": 1}, Error.INVALID_REQUEST, "printable"),
    ],
)
def test_quotas_that_do_not_hold_are_refused(
    tmp_path: Path, kind: str, name: str, rates: dict[str, float], error: Error, why: str
) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        found, said = await admin.quota(kind, name, **rates)
        assert found == error
        assert why in str(said)
        assert await quotas(admin) == {}
        assert not admin.gate.tokens.load().kafka.version

    administered(tmp_path, story)


def test_a_quota_delays_its_user_and_nobody_else(tmp_path: Path) -> None:
    """A connection is not read while it is delayed, so each answer with a delay is its last."""

    async def story(world: KafkaWorld, admin: Admin) -> None:
        await world.topic("t")
        for user in ("ann", "bob"):
            await admin.password(user, "secret")
            await admin.create(acl(user, Operation.ALL, "t"))

        async def connected(user: str) -> KafkaWire:
            return await login(world, user, "secret")

        ann, bob = await connected("ann"), await connected("bob")
        assert await produce_delay(ann) == await fetch_delay(ann) == 0
        assert await admin.quota("user", "ann", producer_byte_rate=1000) == (0, None)
        assert await fetch_delay(ann) == 0
        assert await produce_delay(ann) > 8_000, "10,000 bytes at 1,000 a second"
        assert await produce_delay(bob) == 0
        await admin.quota("user", "ann", producer_byte_rate=0, consumer_byte_rate=1000)
        fresh = await connected("ann")
        assert await produce_delay(fresh) == 0
        assert await fetch_delay(fresh) == 0, "the bytes of an answer count for the next one"
        assert await fetch_delay(fresh) > 8_000
        other = await connected("ann")
        assert await produce_delay(other) == 0
        assert await fetch_delay(other) > 8_000, "the connections of a user share it"
        # the quota of all users who have none
        await admin.quota("user", None, producer_byte_rate=1000)
        assert await produce_delay(bob) > 8_000

    administered(tmp_path, story)


async def produce_delay(wire: KafkaWire) -> int:
    """Return the throttle time of a large Produce, in ms."""
    made = await wire.ask("Produce", 9, **produce_fields("t", batch(b"x" * 10_000)))
    assert made.responses[0].partition_responses[0].error_code.value == 0
    return round(made.throttle_time.total_seconds() * 1000)


async def fetch_delay(wire: KafkaWire) -> int:
    """Return the throttle time of a large Fetch, in ms."""
    found = await wire.ask("Fetch", 11, **fetch_fields("t", 0))
    return round(found.throttle_time.total_seconds() * 1000)
