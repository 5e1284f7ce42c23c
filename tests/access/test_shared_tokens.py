"""Tokens of a cluster: the authoritative set in the meta group, a copy in each node's file, and
their merge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.access import shared_tokens
from polynya.access.grants import BadScope
from polynya.access.revocations import RevokedJwt, UnwantedJwt
from polynya.access.token_file import AtRest, NoToken, TokenFile, TokenRecord, Wanted, merged
from polynya.admin.token_store import SharedTokens, TokenCopy
from polynya.base.errors import Unavailable
from polynya.stream.features.settings.commands import MetaChange
from polynya.stream.features.settings.rules import version_of
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of

NOW = int(time.time() * 1000)


def record(key: str, revoked_ms: int | None = None) -> TokenRecord:
    return TokenRecord(
        id=key,
        name=f"n-{key}",
        sha256="0" * 64,
        scopes=("read",),
        created_ms=NOW,
        revoked_ms=revoked_ms,
    )


RECORDS = st.builds(record, st.sampled_from("abcd"), st.sampled_from([None, NOW, NOW + 1]))
JWTS = st.builds(
    RevokedJwt,
    jti=st.sampled_from(["", "x"]),
    sub=st.just("s"),
    revoked_ms=st.integers(0, 3),
    expires_ms=st.integers(4, 6),
)
KNOWN = st.builds(
    lambda tokens, jwts: merged(
        AtRest(tokens=list({each.id: each for each in tokens}.values())), AtRest(revoked_jwts=jwts)
    ),
    st.lists(RECORDS, max_size=4),
    st.lists(JWTS, max_size=3),
)


@given(KNOWN, KNOWN, KNOWN)
def test_the_sum_of_what_nodes_know_does_not_depend_on_who_heard_of_what_first(
    one: AtRest, two: AtRest, three: AtRest
) -> None:
    assert shared_tokens.encode(merged(one, two)) == shared_tokens.encode(merged(two, one))
    assert shared_tokens.encode(merged(merged(one, two), three)) == shared_tokens.encode(
        merged(one, merged(two, three))
    )
    assert shared_tokens.encode(merged(one, one)) == shared_tokens.encode(one)
    both = merged(one, two)
    for known in (one, two):
        for each in known.tokens:
            (found,) = [other for other in both.tokens if other.id == each.id]
            assert each.revoked_ms is None or found.revoked_ms is not None, (
                "a revocation came undone"
            )
    assert shared_tokens.encode(
        shared_tokens.decode(shared_tokens.encode(both))
    ) == shared_tokens.encode(both)


class Meta:
    """The meta group of a cluster, without the cluster."""

    def __init__(self) -> None:
        self.machine = Machine(0, 1)
        self.away = False
        self.before: Callable[[], None] = lambda: None

    async def entries(self, scope: str) -> dict[str, bytes]:
        if self.away:
            raise Unavailable("no leader")
        return dict(self.machine.meta.settings)

    async def call(self, command: MetaChange) -> Reply:
        before, self.before = self.before, lambda: None
        before()
        return self.machine.apply(
            msgspec.msgpack.decode(msgspec.msgpack.encode(command), type=MetaChange), 1
        )


class Node:
    def __init__(self, meta: Meta, folder: Path) -> None:
        self.file = TokenFile(folder)
        self.tokens = SharedTokens(self.file, meta)  # type: ignore[arg-type]
        self.copy = TokenCopy(self.file, self.tokens, lambda: meta.machine.meta.settings)

    def names(self) -> dict[str, str]:
        return {each.name: each.state(NOW) for each in self.file.read()}


def story(tell: Callable[..., Any]) -> Callable[[Path], None]:
    def test(tmp_path: Path) -> None:
        meta = Meta()
        asyncio.run(tell(meta, Node(meta, tmp_path / "1"), Node(meta, tmp_path / "2")))

    test.__name__ = tell.__name__
    return test


def wanted(name: str) -> Wanted:
    return Wanted(name=name, scopes=["read"])


@story
async def test_what_is_made_and_revoked_anywhere_holds_everywhere(
    meta: Meta, one: Node, two: Node
) -> None:
    _, text = await one.tokens.add(wanted("shop"), NOW)
    assert one.names() == {"shop": "active"} and two.names() == {}
    await two.copy.look()
    assert two.names() == {"shop": "active"}
    with pytest.raises(BadScope, match="active token named"):
        await two.tokens.add(wanted("shop"), NOW)
    await two.tokens.revoke("shop", NOW)
    await two.tokens.revoke_jwt(UnwantedJwt(jti="x"), NOW)
    await one.copy.look()
    assert one.names() == {"shop": "revoked"} and [
        entry.jti for entry in one.file.load().revoked_jwts
    ] == ["x"]
    with pytest.raises(NoToken):
        await one.tokens.revoke("shop", NOW)
    secret = text.split("_", 2)[2].encode()
    assert not any(secret in value for value in meta.machine.meta.settings.values()), (
        "the secret is nowhere but with its holder"
    )


@story
async def test_what_is_made_in_a_data_folder_is_shared_and_a_file_that_was_lost_comes_back(
    meta: Meta, one: Node, two: Node
) -> None:
    one.file.add(wanted("root"), NOW)
    await one.copy.look()
    await two.copy.look()
    assert two.names() == {"root": "active"}
    two.file.revoke("root", NOW)
    await two.copy.look()
    await one.copy.look()
    assert one.names() == {"root": "revoked"}
    one.file.path.unlink()
    await one.copy.look()
    assert one.names() == {"root": "revoked"}, "and it is not active again"
    version = version_of(meta.machine.meta.settings, shared_tokens.SCOPE)
    for _ in range(3):
        await one.copy.look()
        await two.copy.look()
    assert version_of(meta.machine.meta.settings, shared_tokens.SCOPE) == version, (
        "nothing is said twice"
    )


@story
async def test_changes_at_the_same_moment_are_both_made(meta: Meta, one: Node, two: Node) -> None:
    def other() -> None:
        key = shared_tokens.encode(AtRest(tokens=[record("a")]))
        assert (
            meta.machine.apply(MetaChange(shared_tokens.SCOPE, 0, list(key.items())), 1).code
            == Code.OK
        )

    meta.before = other
    await one.tokens.add(wanted("shop"), NOW)
    assert sorted(each.name for each in (await two.tokens.load()).tokens) == ["n-a", "shop"]


@story
async def test_without_a_leader_nothing_is_made_and_the_file_is_shared_later(
    meta: Meta, one: Node, two: Node
) -> None:
    meta.away = True
    with pytest.raises(Unavailable):
        await one.tokens.add(wanted("shop"), NOW)
    assert one.names() == {}
    one.file.add(wanted("root"), NOW)
    await one.copy.look()
    assert one.names() == {"root": "active"} and not meta.machine.meta.settings
    meta.away, one.copy._again = False, 0.0
    await one.copy.look()
    await two.copy.look()
    assert two.names() == {"root": "active"}


def test_a_change_from_an_older_version_changes_nothing() -> None:
    machine = Machine(0, 1)
    assert machine.apply(MetaChange("a", 0, [("k", b"1")]), 1).detail == 1
    assert machine.apply(MetaChange("b", 0, [("k", b"2")]), 2).detail == 1, "each scope has its own"
    late = machine.apply(MetaChange("a", 0, [("k", b"3")]), 3)
    assert (late.code, late.detail) == (Code.NOT_YET, 1)
    again = machine_from(snapshot_of(machine), lambda position, uid: b"")
    assert (
        again.meta.settings
        == machine.meta.settings
        == {"a/k": b"1", "a": b"1", "b/k": b"2", "b": b"1"}
    )
    assert (
        machine.apply(MetaChange("a", 1, [("k", None)]), 4).code == Code.OK
        and "a/k" not in machine.meta.settings
    )
