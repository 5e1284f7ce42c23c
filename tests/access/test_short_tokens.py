"""Short tokens: what their minter allows, for a while, and nothing that anybody could forge."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polynya.access import Access, BadScope, Denied
from polynya.access.short_tokens import PREFIX, Claims, Wanted, claims_of, sign
from polynya.access.token_file import TokenFile
from polynya.access.token_file import Wanted as WantedToken
from polynya.base.limits import SHORT_TOKEN_SECONDS_MAX

NOW = 1_700_000_000_000


class World:
    """A minter of `read,append:runs/` and a stranger, and the access that knows both."""

    def __init__(self, folder: Path) -> None:
        self.now = NOW / 1000
        self.tokens = TokenFile(folder)
        self.minter, self.text = self.add("minter", "read,append,create:runs/")
        self.stranger, self.stranger_text = self.add("stranger", "read:other/")
        self.access = Access(self.tokens, wall=lambda: self.now, clock=lambda: self.now)

    def add(self, name: str, *scopes: str, seconds: float | None = None) -> Any:
        return self.tokens.add(
            WantedToken(name=name, scopes=list(scopes), expires_in_seconds=seconds), NOW
        )

    def claims(self, **changes: Any) -> Claims:
        known: dict[str, Any] = {
            "by": self.minter.id,
            "verbs": ("read",),
            "at": "runs/7",
            "exact": True,
            "issued_ms": NOW,
            "expires_ms": NOW + 60_000,
        }
        return Claims(**(known | changes))

    def denied(self, token: str) -> str:
        with pytest.raises(Denied) as raised:
            self.access.identify(token, short=True)
        return str(raised.value)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_token_for_one_stream_has_that_stream_and_none_that_begins_so(world: World) -> None:
    found = world.access.identify(sign(world.claims(), world.text), short=True)
    assert found.may("read", "runs/7")
    for verb, name in (
        ("read", "runs/70"),
        ("read", "runs/7/x"),
        ("read", "runs/"),
        ("append", "runs/7"),
    ):
        assert not found.may(verb, name)
    assert found.prefixes("read") == []
    assert not found.covers("read", "runs/7")  # a table of the names that begin so
    assert not found.is_admin


def test_a_token_for_a_prefix_has_all_below_it(world: World) -> None:
    token = sign(world.claims(at="runs/7/", exact=False, verbs=("read", "append")), world.text)
    found = world.access.identify(token, short=True)
    assert found.may("append", "runs/7/steps") and not found.may("read", "runs/8")
    assert found.prefixes("read") == ["runs/7/"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"at": "other/1"}, "does not allow 'read'"),
        ({"at": "run", "exact": False}, "does not allow 'read'"),
        ({"at": "", "exact": False}, "at a place"),
        ({"verbs": ("delete",)}, "some of the verbs"),
        ({"verbs": ("admin",)}, "some of the verbs"),
        ({"verbs": ("read", "subscribe")}, "some of the verbs"),
        ({"verbs": ()}, "some of the verbs"),
        ({"expires_ms": NOW + SHORT_TOKEN_SECONDS_MAX * 1000 + 1}, "lives for up to"),
        ({"issued_ms": NOW + 3_000_000, "expires_ms": NOW + 3_060_000}, "in the future"),
        ({"issued_ms": NOW - 100, "expires_ms": NOW}, "expired"),
        ({"issued_ms": -(1 << 62)}, "lives for up to"),
        ({"by": "nobody"}, "not known here"),
    ],
    ids=[
        "a-stream-outside-the-minters",
        "a-prefix-wider-than-the-minters",
        "every-stream",
        "delete",
        "admin",
        "subscribe",
        "no-verb",
        "a-life-of-years",
        "minted-for-later",
        "expired",
        "issued-before-time",
        "an-unknown-minter",
    ],
)
def test_a_holder_of_the_key_that_signs_more_than_it_has_gets_nothing(
    world: World, changes: dict[str, Any], said: str
) -> None:
    assert said in world.denied(sign(world.claims(**changes), world.text))


def test_a_token_signed_by_another_token_is_refused(world: World) -> None:
    assert "not signed by" in world.denied(sign(world.claims(), world.stranger_text))


def test_a_reader_of_the_token_file_can_sign_nothing(world: World) -> None:
    for secret in (world.minter.sha256, world.minter.short_key, world.minter.id):
        assert "not signed by" in world.denied(sign(world.claims(), secret))


def _flip(token: str, at: int) -> str:
    return token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]


@pytest.mark.parametrize(
    "change",
    [
        lambda token: _flip(token, len(PREFIX) + 40),
        lambda token: _flip(token, len(token) - 10),
        lambda token: token + "A",
        lambda token: token[:-1],
        lambda token: token + "=",
        lambda token: token + ".x",
        lambda token: token.rpartition(".")[0],
        lambda token: token.rpartition(".")[0] + ".",
        lambda token: PREFIX,
        lambda token: PREFIX + "....",
        lambda token: PREFIX + "\xff\u20ac.\xff",
        lambda token: PREFIX + "A" * 8000,
    ],
)
def test_a_changed_token_is_refused(world: World, change: Callable[[str], str]) -> None:
    assert world.denied(change(sign(world.claims(), world.text)))


def test_claims_with_a_field_more_or_of_another_type_are_refused(world: World) -> None:
    known = msgspec.to_builtins(world.claims())
    for value in (
        known | {"admin": True},
        known | {"verbs": "read"},
        [known],
        known | {"exact": 1},
    ):
        payload = base64.urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()
        assert "damaged" in world.denied(f"{PREFIX}{payload}.AAAA")


def test_it_ends_with_its_minter(world: World) -> None:
    token = sign(world.claims(), world.text)
    principal = world.access.identify(token, short=True)
    world.tokens.revoke("minter", NOW)
    world.access.tick()
    assert not principal.alive
    assert "revoked" in world.denied(token)


def test_it_ends_when_its_minter_expires_and_by_itself(world: World) -> None:
    brief, text = world.add("brief", "read:runs/", seconds=30)
    world.access.tick()
    short = sign(world.claims(by=brief.id), text)
    principal = world.access.identify(short, short=True)
    assert principal.expires_ms == NOW + 30_000
    world.now += 31
    world.access.tick()
    assert not principal.alive
    assert "expired" in world.denied(short)
    other = world.access.identify(sign(world.claims(), world.text), short=True)
    world.now += 30
    world.access.tick()
    assert not other.alive


def test_kafka_and_the_text_protocol_take_none(world: World) -> None:
    token = sign(world.claims(), world.text)
    world.access.identify(token, short=True)  # known from HTTP
    with pytest.raises(Denied, match="HTTP alone"):
        world.access.identify(token)


def test_a_token_of_an_older_release_signs_nothing(world: World) -> None:
    old = msgspec.structs.replace(world.minter, short_key="")
    world.access._records[old.id] = old
    assert "create a new one" in world.denied(sign(world.claims(), world.text))


@pytest.mark.parametrize(
    "wanted",
    [
        Wanted(),
        Wanted(stream="runs/7", prefix="runs/"),
        Wanted(prefix=""),
        Wanted(stream="runs//7"),
        Wanted(stream="runs/7", verbs=()),
        Wanted(stream="runs/7", verbs=("read", "admin")),
        Wanted(stream="runs/7", expires_in_seconds=0),
        Wanted(stream="runs/7", expires_in_seconds=float("nan")),
        Wanted(stream="runs/7", expires_in_seconds=SHORT_TOKEN_SECONDS_MAX + 1),
    ],
)
def test_a_request_that_means_nothing_is_refused(wanted: Wanted) -> None:
    with pytest.raises(BadScope):
        claims_of(wanted, "id", NOW, None)


def test_it_does_not_outlive_its_minter_by_its_own_claims() -> None:
    assert claims_of(Wanted(stream="runs/7"), "id", NOW, NOW + 5).expires_ms == NOW + 5
