"""ACLs, users and quotas by Kafka's requests: what is accepted is listed, enforced and kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from front.test_kafka_access import (
    Gate,
    authenticate,
    created,
    deleted,
    fetched,
    handshake,
    init_fields,
    produced,
    topics_of,
)
from worlds.kafka import (
    KafkaWire,
    KafkaWorld,
    plain_fields,
    play,
)

from polynya.access.kafka_acls import Kind, Operation, Pattern
from polynya.admin.token_store import FileTokens
from polynya.front.common.stream_quotas import StreamQuotas
from polynya.front.kafka.auth import acls, user_admin
from polynya.front.kafka.auth.caller import TokenCaller
from polynya.front.kafka.auth.user_admin import UserAdmin
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.kafka.errors import Error

DENIED = int(Error.TOPIC_AUTHORIZATION_FAILED)
DENY, ALLOW, ANY = 2, 3, 1
SHA_256, SHA_512 = 1, 2
NAMES = {SHA_256: ("SCRAM-SHA-256", "sha256"), SHA_512: ("SCRAM-SHA-512", "sha512")}
Lines = list[tuple[str, str, str]]


class Admin:
    """A connection with `admin`, and short forms of its requests."""

    def __init__(self, wire: KafkaWire, gate: Gate, lines: Lines) -> None:
        self.wire, self.gate, self.lines = wire, gate, lines

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        return await self.wire.ask(name, version, **plain_fields(name, version, fields))

    async def create(self, *creations: dict[str, Any]) -> list[tuple[int, str | None]]:
        answer = await self.ask("CreateAcls", 3, creations=list(creations))
        return [(each.error_code.value, each.error_message) for each in answer.results]

    async def listed(self, **wanted: Any) -> set[tuple[str, int, str, int, int]]:
        """Return (principal, kind, name, pattern, operation) of what a filter matches."""
        answer = await self.ask("DescribeAcls", 3, **filter_of(**wanted))
        assert answer.error_code.value == 0, answer.error_message
        for resource in answer.resources:
            assert all((each.host, each.permission_type) == ("*", ALLOW) for each in resource.acls)
        return {
            (
                acl.principal,
                each.resource_type,
                each.resource_name,
                each.pattern_type,
                acl.operation,
            )
            for each in answer.resources
            for acl in each.acls
        }

    async def delete(self, **wanted: Any) -> list[tuple[str, int]]:
        """Return the name and the error of each ACL that a filter matches."""
        renamed = filter_of(**wanted)
        (result,) = (await self.ask("DeleteAcls", 3, filters=[renamed])).filter_results
        assert result.error_code.value == 0, result.error_message
        return [(each.resource_name, each.error_code.value) for each in result.matching_acls]

    async def password(
        self, name: str, password: str, mechanism: int = SHA_256, *, iterations: int = 4096
    ) -> int:
        put = upsertion(name, password, mechanism, iterations)
        answer = await self.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=[put])
        return answer.results[0].error_code.value

    async def quota(
        self, kind: str | None, name: str | None, **rates: float
    ) -> tuple[int, str | None]:
        ops = [
            {"key": key, "value": float(value), "remove": value == 0}
            for key, value in rates.items()
        ]
        entity = [{"entity_type": kind, "entity_name": name}] if kind else []
        answer = await self.ask(
            "AlterClientQuotas", 1, entries=[{"entity": entity, "ops": ops}], validate_only=False
        )
        return answer.entries[0].error_code.value, answer.entries[0].error_message


def acl(  # noqa: PLR0913
    user: str,
    operation: int,
    name: str,
    kind: int = Kind.TOPIC,
    pattern: int = Pattern.LITERAL,
    **other: Any,
) -> dict[str, Any]:
    return {
        "resource_type": int(kind),
        "resource_name": name,
        "resource_pattern_type": int(pattern),
        "principal": f"User:{user}",
        "host": "*",
        "operation": int(operation),
        "permission_type": ALLOW,
        **other,
    }


def filter_of(**wanted: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **wanted,
    }


def upsertion(name: str, password: str, mechanism: int, iterations: int) -> dict[str, Any]:
    hash_ = NAMES.get(mechanism, NAMES[SHA_256])[1]
    salted = hashlib.pbkdf2_hmac(hash_, password.encode(), b"salt", max(1, iterations))
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": salted,
    }


def administered(
    folder: Path, tell: Callable[[KafkaWorld, Admin], Awaitable[None]], *scopes: str
) -> None:
    gate, lines = Gate(folder), Lines()

    def record(act: str, target: str, who: str, remote: str, outcome: str, _: str) -> None:
        assert remote
        lines.append((act, target, outcome))

    admin = UserAdmin(lambda: FileTokens(gate.tokens), gate.access, record)

    async def story(world: KafkaWorld) -> None:
        gate.token("root", *(scopes or ("admin",)))
        await tell(world, Admin(await gate.wire(world, "root"), gate, lines))

    play(story, KafkaProtection(gate.access, user_admin=admin))


async def login(world: KafkaWorld, user: str, password: str, mechanism: int = SHA_256) -> KafkaWire:
    """Return a connection of a user with a password."""
    wire = await world.wire()
    assert await handshake(wire, NAMES[mechanism][0]) == 0
    assert await scram(wire, user, password, mechanism) == 0
    return wire


async def is_closed(wire: KafkaWire) -> bool:
    """Wait for the end of a connection, which may be a reset."""
    with suppress(ConnectionResetError):
        return await wire.ended()
    return True


async def scram(wire: KafkaWire, user: str, password: str, mechanism: int = SHA_256) -> int:
    name, first = NAMES[mechanism][1], f"n={user},r=nonce"
    challenge = (await authenticate(wire, f"n,,{first}".encode())).auth_bytes.decode()
    nonce, salt, iterations = (part[2:] for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac(name, password.encode(), base64.b64decode(salt), int(iterations))
    key = hmac.digest(salted, b"Client Key", name)
    unproved = f"c=biws,r={nonce}"
    signed = f"{first},{challenge},{unproved}".encode()
    signature = hmac.digest(hashlib.new(name, key).digest(), signed, name)
    proof = bytes(one ^ other for one, other in zip(key, signature, strict=True))
    final = f"{unproved},p={base64.b64encode(proof).decode()}".encode()
    return (await authenticate(wire, final)).error_code.value


def test_an_acl_is_listed_and_enforced_and_survives_a_restart(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        for name in ("orders", "orders-2", "other"):
            await world.topic(name)
        assert await admin.password("ann", "secret") == 0
        wire = await login(world, "ann", "secret")
        assert await topics_of(wire) == {}
        assert await produced(wire, "orders") == DENIED
        made = [
            acl("ann", Operation.WRITE, "orders"),
            acl("ann", Operation.READ, "orders", pattern=Pattern.PREFIXED),
        ]
        assert await admin.create(*made) == [(0, None)] * 2
        assert await admin.create(*made) == [(0, None)] * 2, "again"
        # the same connection, at once
        assert await topics_of(wire) == {"orders": 0, "orders-2": 0}
        assert await produced(wire, "orders") == 0
        assert await produced(wire, "orders-2") == DENIED
        assert await fetched(wire, "orders-2") == 0
        assert await fetched(wire, "other") == DENIED
        assert await admin.listed(principal_filter="User:ann") == {
            ("User:ann", Kind.TOPIC, "orders", Pattern.LITERAL, Operation.WRITE),
            ("User:ann", Kind.TOPIC, "orders", Pattern.PREFIXED, Operation.READ),
        }

    async def after_a_restart(world: KafkaWorld, admin: Admin) -> None:
        for name in ("orders", "orders-2"):
            await world.topic(name)
        assert len(await admin.listed(principal_filter="User:ann")) == 2
        wire = await login(world, "ann", "secret")
        assert await produced(wire, "orders") == 0
        assert await produced(wire, "orders-2") == DENIED
        assert await admin.delete(
            resource_name_filter="orders", pattern_type_filter=Pattern.LITERAL
        ) == [("orders", 0)]
        assert await produced(wire, "orders") == DENIED
        assert await fetched(wire, "orders") == 0
        found = await admin.delete(principal_filter="User:ann")
        assert found == [("orders", 0)]
        assert await topics_of(wire) == {}
        assert await admin.listed(principal_filter="User:ann") == set()
        assert [line[::2] for line in admin.lines] == [("acl.delete", "ok")] * 2
        assert admin.lines[0][1] == "User:ann WRITE on TOPIC LITERAL orders"

    administered(tmp_path, story)
    gate = Gate(tmp_path)
    gate.tokens.revoke("root", int(gate.wall * 1000))  # its secret is not kept
    administered(tmp_path, after_a_restart)


def test_acls_of_everybody_and_of_all_names(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await world.topic("public")
        admin.gate.token("shop", "read:kafka/mine/")
        shop = await admin.gate.wire(world, "shop")
        assert await topics_of(shop) == {}
        await admin.create(acl("*", Operation.READ, "public"), acl("shop", Operation.CREATE, "*"))
        assert await topics_of(shop) == {"public": 0}
        assert await fetched(shop, "public") == 0
        assert await created(shop, "new", 1) == 0
        assert await topics_of(shop) == {"public": 0}, "Create does not imply Describe"
        assert await deleted(shop, "new") == DENIED
        await admin.create(acl("shop", Operation.ALL, "ne", pattern=Pattern.PREFIXED))
        assert await topics_of(shop) == {"new": 0, "public": 0}
        assert await deleted(shop, "new") == 0

    administered(tmp_path, story)


def test_each_operation_is_kafkas(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await world.topic("t")
        await admin.password("ann", "secret")
        ann = Admin(await login(world, "ann", "secret"), admin.gate, [])

        async def configs(kind: int, name: str) -> int:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            answer = await ann.ask(
                "DescribeConfigs", 4, resources=[resource],
                include_synonyms=False, include_documentation=False,
            )  # fmt: skip
            return answer.results[0].error_code.value

        async def alter(kind: int, name: str, key: str) -> int:
            one = [{"name": key, "config_operation": 0, "value": "60000"}]
            resource = {"resource_type": kind, "resource_name": name, "configs": one}
            answer = await ann.ask(
                "IncrementalAlterConfigs", 1, resources=[resource], validate_only=False
            )
            return answer.responses[0].error_code.value

        async def grow() -> int:
            topics = [{"name": "t", "count": 2, "assignments": None}]
            answer = await ann.ask(
                "CreatePartitions", 3, topics=topics, timeout=1000, validate_only=True
            )
            return answer.results[0].error_code.value

        async def coordinator(key: str, kind: int) -> int:
            answer = await ann.ask("FindCoordinator", 2, key=key, key_type=kind)
            return answer.error_code.value

        async def group(name: str) -> int:
            answer = await ann.ask("DeleteGroups", 2, groups_names=[name])
            return answer.results[0].error_code.value

        async def listed_groups() -> int:
            return len((await ann.ask("ListGroups", 4, states_filter=[])).groups)

        async def producer_id() -> int:
            return (await ann.wire.ask("InitProducerId", 1, **init_fields())).error_code.value

        async def log_dirs() -> int:
            answer = await ann.ask("DescribeLogDirs", 4, topics=None)
            return answer.error_code.value or answer.results[0].error_code.value

        no_group = int(Error.GROUP_AUTHORIZATION_FAILED)
        no_id = int(Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        no_cluster = int(Error.CLUSTER_AUTHORIZATION_FAILED)
        not_there = int(Error.GROUP_ID_NOT_FOUND)
        table: list[tuple[Operation, Kind, str, Callable[[], Awaitable[int]], int, int]] = [
            (Operation.DESCRIBE_CONFIGS, Kind.TOPIC, "t", lambda: configs(2, "t"), DENIED, 0),
            (
                Operation.ALTER_CONFIGS, Kind.TOPIC, "t",
                lambda: alter(2, "t", "retention.ms"), DENIED, 0,
            ),
            (Operation.ALTER, Kind.TOPIC, "t", grow, DENIED, 0),
            (Operation.DESCRIBE, Kind.GROUP, "g", lambda: coordinator("g", 0), no_group, 0),
            (Operation.DELETE, Kind.GROUP, "g", lambda: group("g"), no_group, not_there),
            (Operation.DESCRIBE_CONFIGS, Kind.GROUP, "g", lambda: configs(32, "g"), no_group, 0),
            (
                Operation.ALTER_CONFIGS, Kind.GROUP, "g",
                lambda: alter(32, "g", "consumer.session.timeout.ms"), no_group, 0,
            ),
            (Operation.DESCRIBE, Kind.TRANSACTIONAL_ID, "x", lambda: coordinator("x", 1), no_id, 0),
            (
                Operation.IDEMPOTENT_WRITE, Kind.CLUSTER, "kafka-cluster",
                producer_id, no_cluster, 0,
            ),
            (Operation.CREATE, Kind.CLUSTER, "kafka-cluster",
             lambda: created(ann.wire, "made", 1), DENIED, 0),
            (Operation.DESCRIBE, Kind.CLUSTER, "kafka-cluster", log_dirs, no_cluster, 0),
        ]  # fmt: skip
        for operation, kind, name, check, before, after in table:
            assert await check() == before, (operation, kind)
            assert await admin.create(acl("ann", operation, name, kind)) == [(0, None)]
            assert await check() == after, (operation, kind)
            assert await admin.delete(principal_filter="User:ann") == [(name, 0)]
            assert await check() == before, (operation, kind)
        assert await listed_groups() == 0

    administered(tmp_path, story)


BAD, REFUSED = int(Error.INVALID_REQUEST), int(Error.POLICY_VIOLATION)


@pytest.mark.parametrize(
    ("other", "error", "why"),
    [
        ({"permission_type": DENY}, REFUSED, "DENY is not supported"),
        ({"permission_type": ANY}, BAD, "permission type 1"),
        ({"host": "10.0.0.1"}, REFUSED, "the host is '10.0.0.1'"),
        ({"principal": "Group:ops"}, REFUSED, "expected User:NAME"),
        ({"principal": "ann"}, BAD, "expected User:NAME"),
        ({"principal": "User:"}, REFUSED, "expected User:NAME"),
        ({"principal": "User:a\nb"}, REFUSED, "expected User:NAME"),
        ({"resource_name": ""}, BAD, "1 to 1024 bytes"),
        ({"resource_name": "a" * 1025}, BAD, "1 to 1024 bytes"),
        ({"resource_pattern_type": 2}, BAD, "pattern type 2 is of filters"),
        ({"resource_pattern_type": 77}, BAD, "pattern type 77"),
        ({"resource_type": 6}, REFUSED, "no ACLs of DELEGATION_TOKEN"),
        ({"resource_type": 1}, BAD, "resource type 1"),
        ({"resource_type": -5}, BAD, "resource type -5"),
        ({"operation": 1}, BAD, "operation 1"),
        ({"operation": 99}, BAD, "operation 99"),
        ({"operation": 9}, REFUSED, "CLUSTER_ACTION has no effect on TOPIC"),
        ({"resource_type": 4}, BAD, "literal 'kafka-cluster'"),
        (
            {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 7},
            REFUSED,
            "tokens with 'admin' alone",
        ),
        (
            {"resource_type": 4, "resource_name": "kafka-cluster", "operation": 2},
            REFUSED,
            "tokens with 'admin' alone",
        ),
    ],
)
def test_what_is_not_enforced_is_refused(
    tmp_path: Path, other: dict[str, Any], error: int, why: str
) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        good = acl("ann", Operation.READ, "good")
        (refused, kept) = await admin.create({**acl("ann", Operation.READ, "t"), **other}, good)
        assert refused[0] == error
        assert why in str(refused[1])
        assert kept == (0, None)
        found = await admin.listed()
        assert {each[2] for each in found if each[0] != "User:root"} == {"good"}
        assert [line[0] + " " + line[2] for line in admin.lines] == [
            f"acl.create {Error(error).name}",
            "acl.create ok",
        ]

    administered(tmp_path, story)


def test_filters_match_as_in_kafka(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await admin.create(
            acl("ann", Operation.READ, "abc"),
            acl("ann", Operation.READ, "ab", pattern=Pattern.PREFIXED),
            acl("ann", Operation.WRITE, "*"),
            acl("bob", Operation.READ, "abc", Kind.GROUP),
            acl("bob", Operation.READ, "xyz"),
        )

        async def names(**wanted: Any) -> list[str]:
            found = await admin.listed(**wanted)
            return sorted(each[2] for each in found if each[0] != "User:root")

        match, prefixed, literal = Pattern.MATCH, Pattern.PREFIXED, Pattern.LITERAL
        by_name = "resource_name_filter"
        assert await names(**{by_name: "abc", "pattern_type_filter": match}) == [
            "*", "ab", "abc", "abc",
        ]  # fmt: skip
        assert await names(**{by_name: "abc", "pattern_type_filter": ANY}) == ["abc", "abc"]
        assert await names(**{by_name: "abc", "pattern_type_filter": prefixed}) == []
        assert await names(pattern_type_filter=prefixed) == ["ab"]
        assert await names(pattern_type_filter=literal, operation=Operation.WRITE) == ["*"]
        assert await names(resource_type_filter=Kind.GROUP) == ["abc"]
        assert await names(principal_filter="User:bob") == ["abc", "xyz"]
        assert await names(host_filter="10.0.0.1") == []
        assert await names(host_filter="*", principal_filter="User:bob") == ["abc", "xyz"]
        assert await names(permission_type=DENY) == []
        for bad in (
            {"operation": 0},
            {"operation": 99},
            {"resource_type_filter": -1},
            {"pattern_type_filter": 9},
            {"permission_type": 7},
        ):
            answer = await admin.ask("DescribeAcls", 3, **filter_of(**bad))
            assert answer.error_code.value == BAD
            (result,) = (
                await admin.ask("DeleteAcls", 3, filters=[filter_of(**bad)])
            ).filter_results
            assert result.error_code.value == BAD
        assert len(await names()) == 5, "nothing was deleted"

    administered(tmp_path, story)


def test_a_request_with_too_many_filters_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await admin.create(acl("ann", Operation.READ, "t"))
        monkeypatch.setattr(acls, "ACL_COMPARISONS_MAX", 9)  # root's scope stands for 4 ACLs
        mine = filter_of(principal_filter="User:ann")
        answer = await admin.ask("DeleteAcls", 3, filters=[mine, mine])
        for result in answer.filter_results:
            assert result.error_code.value == REFUSED
            assert "2 filters and 5 ACLs are too many" in result.error_message
        assert len(await admin.listed(principal_filter="User:ann")) == 1
        monkeypatch.setattr(acls, "ACL_COMPARISONS_MAX", 10)
        answer = await admin.ask("DeleteAcls", 3, filters=[mine, mine])
        assert [len(each.matching_acls) for each in answer.filter_results] == [1, 1]
        assert await admin.listed(principal_filter="User:ann") == set()

    administered(tmp_path, story)


def test_the_scopes_of_tokens_are_listed_and_stay(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        admin.gate.token("shop", "read,append:kafka/orders/", "subscribe:kafka/team.")
        admin.gate.token("other", "all:elsewhere/", "metrics")
        admin.gate.token("gone", "all")
        admin.gate.tokens.revoke("gone", int(admin.gate.wall * 1000))
        shop = {
            (Kind.TOPIC, "orders", Pattern.LITERAL, Operation.READ),
            (Kind.TOPIC, "orders", Pattern.LITERAL, Operation.WRITE),
            (Kind.TOPIC, "orders", Pattern.LITERAL, Operation.DESCRIBE_CONFIGS),
            (Kind.TRANSACTIONAL_ID, "orders", Pattern.LITERAL, Operation.ALL),
            (Kind.GROUP, "team.", Pattern.PREFIXED, Operation.ALL),
        }
        root = {
            *((kind, "*", Pattern.LITERAL, Operation.ALL) for kind in (2, 3, 5)),
            (Kind.CLUSTER, "kafka-cluster", Pattern.LITERAL, Operation.ALL),
        }
        found = await admin.listed()
        assert found == {("User:shop", *each) for each in shop} | {
            ("User:root", *each) for each in root
        }
        # an ACL of the same text is deleted, and the scope is answered with an error
        await admin.create(acl("shop", Operation.READ, "orders"))
        assert await admin.delete(principal_filter="User:shop", operation=Operation.READ) == [
            ("orders", REFUSED)
        ]
        assert await admin.listed() == found
        assert not admin.gate.tokens.load().kafka.acls

    administered(tmp_path, story)


def test_only_admins_change_users_and_acls(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        admin.gate.token("shop", "all")
        shop = Admin(await admin.gate.wire(world, "shop"), admin.gate, [])
        denied = int(Error.CLUSTER_AUTHORIZATION_FAILED)
        assert (await shop.create(acl("shop", Operation.ALL, "*")))[0][0] == denied
        assert await shop.password("root", "x") == denied
        assert (await shop.quota("user", "shop", producer_byte_rate=1))[0] == denied
        answer = await shop.ask("DescribeAcls", 3, **filter_of())
        assert answer.error_code.value == denied
        assert admin.lines == [
            (act, "", "CLUSTER_AUTHORIZATION_FAILED")
            for act in ("acl.create", "user.password", "user.quota")
        ]
        # Describe on the cluster shows ACLs and users, as in Kafka, and changes none
        await admin.create(acl("shop", Operation.DESCRIBE, "kafka-cluster", Kind.CLUSTER))
        assert await shop.listed(principal_filter="User:shop")
        assert (await shop.create(acl("shop", Operation.ALL, "*")))[0][0] == denied
        users = await shop.ask("DescribeUserScramCredentials", 0, users=None)
        assert [each.user for each in users.results] == ["root", "shop"]
        assert await shop.password("root", "x") == denied

    administered(tmp_path, story)


def test_a_node_without_access_control_answers_security_disabled() -> None:
    async def story(world: KafkaWorld) -> None:
        admin = Admin(await world.wire(), None, [])  # type: ignore[arg-type]
        disabled = int(Error.SECURITY_DISABLED)
        assert (await admin.create(acl("a", Operation.READ, "t")))[0][0] == disabled
        described = await admin.ask("DescribeAcls", 3, **filter_of())
        assert described.error_code.value == disabled
        (result,) = (await admin.ask("DeleteAcls", 3, filters=[filter_of()])).filter_results
        assert result.error_code.value == disabled
        assert await admin.password("ann", "x") == disabled
        users = await admin.ask("DescribeUserScramCredentials", 0, users=None)
        assert users.error_code.value == disabled
        assert (await admin.quota("user", "ann", producer_byte_rate=1))[0] == disabled

    play(story)


def test_topics_of_an_acl_count_for_the_limit_of_streams(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        admin.gate.token("shop", "read:kafka/mine/", streams=3)
        shop = await admin.gate.wire(world, "shop")
        await admin.create(acl("shop", Operation.CREATE, "shop.", pattern=Pattern.PREFIXED))
        assert await created(shop, "shop.a", 2) == 0
        assert await created(shop, "shop.b", 2) == Error.POLICY_VIOLATION
        await admin.create(acl("shop", Operation.CREATE, "kafka-cluster", Kind.CLUSTER))
        assert await created(shop, "other", 2) == Error.POLICY_VIOLATION
        assert await created(shop, "other", 1) == 0

    administered(tmp_path, story)


def test_a_subscription_matches_topics_of_acls(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        gate = admin.gate
        gate.token("shop", "read:kafka/mine/")
        caller = TokenCaller(gate.access, StreamQuotas(1), world.core.service)
        caller.bind(gate.access.identify(gate.texts["shop"]))
        assert caller.readable() == ["kafka/mine/"]
        await admin.create(
            acl("shop", Operation.READ, "a", pattern=Pattern.PREFIXED),
            acl("shop", Operation.READ, "ab"),
            acl("shop", Operation.READ, "retention"),
            acl("shop", Operation.WRITE, "z"),
        )
        assert caller.readable() == ["kafka/a", "kafka/mine/", "kafka/~retention/"]
        await admin.create(acl("*", Operation.READ, "*"))
        assert caller.readable() == ["kafka/"]

    administered(tmp_path, story)


def test_nothing_is_stored_before_all_nodes_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        before = admin.gate.tokens.load()
        monkeypatch.setattr(user_admin, "USER_RULES_LEVEL", 99)
        older = int(Error.UNSUPPORTED_VERSION)
        ((error, why),) = await admin.create(acl("ann", Operation.READ, "t"))
        assert error == older
        assert "finish the upgrade" in str(why)
        described = await admin.ask("DescribeAcls", 3, **filter_of())
        assert described.error_code.value == older
        assert await admin.password("ann", "x") == older
        assert (await admin.quota("user", "ann", producer_byte_rate=1))[0] == older
        assert admin.gate.tokens.load() == before

    administered(tmp_path, story)


def test_a_damaged_token_file_is_said_and_the_known_rules_stay(tmp_path: Path) -> None:
    async def story(world: KafkaWorld, admin: Admin) -> None:
        await world.topic("t")
        await admin.password("ann", "secret")
        await admin.create(acl("ann", Operation.WRITE, "t"))
        wire = await login(world, "ann", "secret")
        whole = admin.gate.tokens.path.read_bytes()
        admin.gate.tokens.path.write_bytes(whole[:-20])
        storage = int(Error.KAFKA_STORAGE_ERROR)
        ((error, why),) = await admin.create(acl("bob", Operation.READ, "t"))
        assert (error, "is damaged" in str(why)) == (storage, True)
        described = await admin.ask("DescribeAcls", 3, **filter_of())
        assert described.error_code.value == storage
        (result,) = (await admin.ask("DeleteAcls", 3, filters=[filter_of()])).filter_results
        assert result.error_code.value == storage
        assert await admin.password("bob", "x") == storage
        admin.gate.access.tick()
        assert await produced(wire, "t") == 0

    administered(tmp_path, story)
