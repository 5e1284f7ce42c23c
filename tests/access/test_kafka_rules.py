"""The rules of Kafka's tools in a cluster: the newest state holds on every node, and a deleted ACL
does not come back from an older copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from access.test_shared_tokens import NOW, Meta, Node, story, wanted
from front.test_kafka_access import produced, topics_of
from front.test_kafka_acls import is_closed, login
from worlds.kafka import KafkaWorld, play

from polynya.access import Access, shared_tokens
from polynya.access.kafka_acls import Acl, BadAcl, Kind, Operation, Pattern
from polynya.access.kafka_rules import (
    NO_RULES,
    BadQuota,
    KafkaRules,
    Quota,
    newer,
    with_acls,
    with_quota,
    without_acls,
)
from polynya.access.kafka_users import alter_user, checked_verifier
from polynya.access.scram import make_verifiers
from polynya.access.token_file import AtRest, TokenFile, merged
from polynya.base.limits import ACLS_MAX, ACLS_OF_USER_MAX, USER_QUOTAS_MAX
from polynya.front.kafka.auth.user_admin import with_rules
from polynya.front.kafka.connections import KafkaProtection
from polynya.front.kafka.errors import Error

READ = Acl("ann", Kind.TOPIC, "t", Pattern.LITERAL, Operation.READ)
WRITE = Acl("a/b", Kind.TOPIC, "*", Pattern.LITERAL, Operation.WRITE)


def adding(*acls: Acl) -> Callable[[AtRest], tuple[AtRest, None]]:
    return lambda known: (with_rules(known, with_acls(known.kafka, acls, NOW)), None)


def dropping(*acls: Acl) -> Callable[[AtRest], tuple[AtRest, None]]:
    return lambda known: (with_rules(known, without_acls(known.kafka, acls, NOW)), None)


def password(name: str, text: str) -> Callable[[AtRest], tuple[AtRest, None]]:
    put = {"SCRAM-SHA-256": make_verifiers(text, b"salt")["SCRAM-SHA-256"]}
    return lambda known: (
        alter_user(known, name, gone=(), put=put, new_id=f"id-{name}", now_ms=NOW),
        None,
    )


def acls_of(node: Node) -> tuple[Acl, ...]:
    return node.file.load().kafka.acls


@story
async def test_rules_hold_on_each_node_and_a_deleted_acl_stays_deleted(
    meta: Meta, one: Node, two: Node
) -> None:
    await one.tokens.change(adding(READ, WRITE), NOW)
    assert acls_of(one) == (WRITE, READ)
    assert acls_of(two) == ()
    await two.copy.look()
    assert acls_of(two) == (WRITE, READ)
    await two.tokens.change(dropping(READ), NOW)
    # the file of the first node still has it
    await one.tokens.add(wanted("shop"), NOW)
    await one.copy.look()
    await two.copy.look()
    assert acls_of(one) == acls_of(two) == (WRITE,)
    assert [key for key in meta.machine.meta.settings if "acl/" in key] == ["access/acl/a/b"]
    # a lost file comes back whole
    one.file.path.unlink()
    await one.copy.look()
    assert acls_of(one) == (WRITE,)
    assert one.names() == {"shop": "active"}


@story
async def test_a_node_that_lags_does_not_go_back(meta: Meta, one: Node, two: Node) -> None:
    await one.tokens.change(adding(READ), NOW)
    await one.tokens.change(password("ann", "one"), NOW)
    old = shared_tokens.decode(
        {key.removeprefix("access/"): each for key, each in meta.machine.meta.settings.items()
         if key.startswith("access/")}
    )  # fmt: skip
    await one.tokens.change(dropping(READ), NOW)
    await one.tokens.change(password("ann", "two"), NOW)
    now = one.file.load()
    one.file.take(old, NOW)  # its replica has not applied the last changes
    assert one.file.load() == now
    assert now.kafka.acls == ()
    assert now.tokens[0].changes == 2


@story
async def test_the_rules_of_a_single_node_go_into_a_cluster_that_has_none(
    meta: Meta, one: Node, two: Node
) -> None:
    one.file.change(adding(READ), NOW)
    for rules in (with_acls(NO_RULES, [WRITE], NOW + 1), KafkaRules(NOW + 1, 2)):
        two.file.change(lambda known, rules=rules: (with_rules(known, rules), None), NOW)  # type: ignore[misc]
    await one.copy.look()
    await two.copy.look()
    assert acls_of(two) == (READ,), "of another origin, though with more changes"


def test_another_node_enforces_what_one_was_told(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    meta = Meta()
    one, two = Node(meta, tmp_path / "1"), Node(meta, tmp_path / "2")
    access = Access(two.file)

    async def tell(world: KafkaWorld) -> None:
        async def changed(change: Callable[[AtRest], tuple[AtRest, None]]) -> None:
            await one.tokens.change(change, now_ms)
            await two.copy.look()
            access.tick()

        await world.topic("t")
        await changed(password("ann", "secret"))
        wire = await login(world, "ann", "secret")
        assert await topics_of(wire) == {}
        acls = [READ, Acl("ann", Kind.TOPIC, "t", Pattern.LITERAL, Operation.WRITE)]
        await changed(adding(*acls))
        assert await topics_of(wire) == {"t": 0}
        assert await produced(wire, "t") == 0
        await changed(dropping(*acls))
        assert await produced(wire, "t") == Error.TOPIC_AUTHORIZATION_FAILED
        await changed(password("ann", "other"))
        assert await is_closed(wire), "its password was changed"
        await login(world, "ann", "other")

    play(tell, KafkaProtection(access))


def test_rules_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    rules = with_quota(with_acls(NO_RULES, [READ, WRITE], 5), "a/b", Quota(1, 2), 6)
    rules = with_quota(rules, "", Quota(0, 2), 7)
    assert (rules.since_ms, rules.version) == (5, 3)
    known = AtRest(kafka=rules)
    assert shared_tokens.decode(shared_tokens.encode(known)) == known
    file = TokenFile(tmp_path)
    file.change(lambda _: (known, None), NOW)
    assert TokenFile(tmp_path).load() == known
    assert with_acls(rules, [READ], 9) is rules, "nothing is written for what is there"
    assert with_quota(rules, "nobody", Quota(), 9) is rules
    # a file of an older release
    assert msgspec.json.decode(b'{"tokens": []}', type=AtRest) == AtRest()


def test_the_newer_state_of_one_origin_counts_and_else_that_of_the_cluster() -> None:
    ours, later, other = KafkaRules(1, 1), KafkaRules(1, 2), KafkaRules(9, 7)
    assert newer(ours, later) is later
    assert newer(later, ours) is later
    assert newer(ours, other) is ours
    assert newer(NO_RULES, other) is other
    assert newer(other, NO_RULES) is other
    assert merged(AtRest(kafka=ours), AtRest(kafka=later)).kafka is later


def test_rules_are_bounded() -> None:
    def numbered(user: str, count: int) -> list[Acl]:
        return [
            Acl(user, Kind.TOPIC, str(number), Pattern.LITERAL, Operation.READ)
            for number in range(count)
        ]

    full = with_acls(NO_RULES, numbered("ann", ACLS_OF_USER_MAX), 1)
    with pytest.raises(BadAcl, match="User:ann may have 1000 ACLs"):
        with_acls(full, [WRITE, READ], 1)
    many = [acl for number in range(5) for acl in numbered(f"u{number}", ACLS_MAX // 5)]
    with pytest.raises(BadAcl, match="there may be 5000 ACLs"):
        with_acls(with_acls(NO_RULES, many, 1), [READ], 1)
    quotas = KafkaRules(1, 1, (), {str(number): Quota(1) for number in range(USER_QUOTAS_MAX)})
    assert with_quota(quotas, "7", Quota(2), 1).quotas["7"] == Quota(2)
    with pytest.raises(BadQuota, match="5000 users"):
        with_quota(quotas, "new", Quota(1), 1)


def test_a_salted_password_proves_the_password() -> None:
    import hashlib

    salted = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 4096)
    made = checked_verifier("SCRAM-SHA-512", b"salt", salted, 4096)
    assert made == make_verifiers("secret", b"salt")["SCRAM-SHA-512"]
