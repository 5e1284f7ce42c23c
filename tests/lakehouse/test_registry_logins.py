"""Logins for foreign schema registries: each goes to its own server alone."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from cli.scripted_server import scripted

from polynya.lakehouse.payloads.logins import VARIABLE, Login, RegistryRefused, login_for
from polynya.lakehouse.payloads.registry import SchemaReader

SCHEMA = (200, {"content-type": "application/json"}, b'{"schema": "\\"string\\""}')


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the variable names."""
    path = tmp_path / "logins.toml"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def test_a_user_and_a_token_are_sent(logins: Path) -> None:
    with scripted(SCHEMA) as server:
        logins.write_text(f'["{server.url}"]\nuser = "shop"\npassword = "s3:crët"\n')
        reader = SchemaReader(f"{server.url}/")
        assert reader.writer(1).text == '"string"'
        expected = b64encode("shop:s3:crët".encode()).decode()
        assert server.said[0].headers["authorization"] == f"Basic {expected}"
        # a changed login needs no other reader
        logins.write_text(f'["{server.url}"]\ntoken = "abc"\n')
        reader.writer(2)
        assert server.said[1].headers["authorization"] == "Bearer abc"


def test_no_other_registry_gets_it(logins: Path) -> None:
    with scripted(SCHEMA) as server:
        logins.write_text(
            f'["{server.url}/a"]\ntoken = "abc"\n["{server.url}0"]\ntoken = "def"\n'
            '["https://registry"]\ntoken = "ghi"\n'
        )
        for path in ("", "/ab", "/b/a"):
            SchemaReader(server.url + path).writer(1)
        assert not any("authorization" in each.headers for each in server.said)
        SchemaReader(f"{server.url}/a/b").writer(1)
        assert server.said[-1].headers["authorization"] == "Bearer abc"
    assert login_for("http://registry") == Login()  # not encrypted, so another server
    assert login_for("https://registry.evil") == Login()


def test_the_longest_name_applies(logins: Path) -> None:
    logins.write_text('["http://r"]\ntoken = "a"\n["http://r/b/"]\ntoken = "b"\n')
    assert [login_for(f"http://r{path}").token for path in ("", "/c", "/b", "/b/c")] == list("aabb")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_says_what_to_do(logins: Path, status: int) -> None:
    with scripted((status, {}, b"")) as server:
        logins.write_text("")
        with pytest.raises(RegistryRefused, match=f"wants a login. Put it into a file.*{VARIABLE}"):
            SchemaReader(server.url).writer(1)
        logins.write_text(f'["{server.url}"]\ntoken = "abc"\n')
        with pytest.raises(RegistryRefused, match=f"answered {status} to the login") as refused:
            SchemaReader(server.url).writer(1)
        assert "abc" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('["http://r"]\nuser = "a"\n', "expected user and password, or token"),
        ('["http://r"]\nuser = "a"\npassword = "b"\ntoken = "c"\n', "expected user and password"),
        ('["http://r"]\n', "expected user and password"),
        ('["http://r"]\npasword = "geheim"\n', "unknown field `pasword`"),
        ('["http://r"]\ntoken = 7\n', "Expected `str`, got `int`"),
        ('[shop]\ntoken = "geheim"\n', "expected the URL of a schema registry in quotes"),
        ("token", "is no TOML"),
        ('["http://r"]\nca = "/none.pem"\n', "the CA file /none.pem of the registry http://r"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(logins: Path, text: str, expected: str) -> None:
    logins.write_text(text)
    with pytest.raises(RegistryRefused) as refused:
        SchemaReader("http://r")
    assert expected in str(refused.value) and "geheim" not in str(refused.value)


def test_a_file_that_is_not_there_is_said(logins: Path) -> None:
    with pytest.raises(RegistryRefused, match=r"logins\.toml, which POLYNYA_REGISTRY_LOGINS names"):
        SchemaReader("http://r")
