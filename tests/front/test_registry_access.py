"""Tokens of the schema registry: verbs on the topic `_schemas`, and Basic credentials."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from stories.service import story
from worlds.registry import RECORD, RegistryClient, registry
from worlds.service import World

from polynya.access import Access
from polynya.access.token_file import TokenFile, Wanted
from polynya.admin.audited_requests import registry_act
from polynya.front.http.auth.authorization import Authorizer
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.extension import Request

SCOPES = {
    "reader": "read:kafka/_schemas/",
    "writer": "read,append:kafka/_schemas/",
    "owner": "read,append,delete:kafka/_schemas/",
    "other": "all:kafka/orders/",
}


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[dict[str, str], Protection]:
    """The texts of tokens by name, and the access control that knows them."""
    file = TokenFile(tmp_path)
    texts = {
        name: file.add(Wanted(name=name, scopes=[scope]), 1)[1] for name, scope in SCOPES.items()
    }
    access = Access(file)
    return texts, Protection(authorizer=Authorizer(access, audit=lambda *_: None))


ACTS = [
    ("GET", "/subjects", None, "reader writer owner"),
    ("GET", "", None, "reader writer owner"),
    ("GET", "/schemas/ids/1", None, "reader writer owner"),
    ("POST", "/subjects/a", RECORD, "reader writer owner"),
    ("POST", "/compatibility/subjects/a/versions", RECORD, "reader writer owner"),
    ("POST", "/subjects/a/versions", RECORD, "writer owner"),
    ("PUT", "/config", {"compatibility": "FULL"}, "owner"),
    ("PUT", "/mode", {"mode": "READWRITE"}, "owner"),
    ("DELETE", "/config", None, "owner"),
    ("DELETE", "/subjects/b/versions/1", None, "owner"),
    ("DELETE", "/subjects/b", None, "owner"),
]


def test_verbs_on_the_topic_allow_the_routes(tokens: tuple[dict[str, str], Protection]) -> None:
    texts, protection = tokens

    async def tell(world: World) -> None:
        async with registry(world, protection) as client:
            for method, path, body, allowed in ACTS:
                given = client.body(body) if body is RECORD else body
                for name, token in texts.items():
                    status, answer = await client.ask(
                        method, path, given, Authorization=f"Bearer {token}"
                    )
                    if name in allowed.split():
                        assert status in (200, 404), (method, path, name, answer)
                    else:
                        assert (status, answer["error_code"]) == (403, 403), (method, path, name)
                        assert answer["error"]["code"] == "FORBIDDEN"

    story(tell)()


def test_the_password_of_basic_credentials_is_a_token(
    tokens: tuple[dict[str, str], Protection],
) -> None:
    texts, protection = tokens

    async def asked(client: RegistryClient, credentials: str) -> tuple[int, str]:
        status, answer = await client.ask("GET", "/subjects", Authorization=credentials)
        return status, "" if status == 200 else answer["message"]

    async def tell(world: World) -> None:
        async with registry(world, protection) as client:
            reader = texts["reader"]
            assert (await asked(client, basic("reader", reader)))[0] == 200
            assert (await asked(client, basic("writer", reader))) == (
                401,
                "the user is not the name or the id of the token that the password is",
            )
            for bad in (
                "Basic !",
                "Basic",
                basic("reader", ""),
                basic("reader", "wrong"),
                "Token x",
            ):
                assert (await asked(client, bad))[0] == 401, bad
            assert (await client.ask("GET", "/subjects"))[0] == 401

    story(tell)()


@pytest.mark.parametrize(
    ("method", "segments", "name"),
    [
        ("DELETE", ("subjects", "a"), "schema.delete"),
        ("DELETE", ("subjects", "a", "versions", "1"), "schema.delete"),
        ("PUT", ("config",), "schema.config"),
        ("DELETE", ("config", "a"), "schema.config"),
        ("PUT", ("mode", "a"), "schema.mode"),
        ("POST", ("subjects", "a", "versions"), ""),
        ("GET", ("config",), ""),
        ("PUT", (), ""),
    ],
)
def test_deletions_and_settings_are_audited(
    method: str, segments: tuple[str, ...], name: str
) -> None:
    assert registry_act(Request(method, "/registry/", segments, {}, {}, b"", "")) == name
