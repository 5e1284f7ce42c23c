"""Contexts: their content, their permissions, and the precedence of flag, variable, context and
default."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.remote.client import Client
from polynya.cli.remote.targets import Context, Contexts, find_target, load_contexts, save_contexts
from polynya.cli.terminal import exits
from polynya.client import http

EMPTY_LIST = (200, {"content-type": "application/json"}, b'{"streams":[]}')


def ran(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env=dict(variables))


def test_a_context_is_added_used_listed_and_forgotten(own_contexts: Path) -> None:
    assert ran("context", "add", "one", "--server", "http://one:1").exit_code == 0
    assert "polynya context use two" in ran("context", "add", "two", "--server", "two:2").stderr
    rows = {row["name"]: row for row in json.loads(ran("context", "ls", "--json").stdout)}
    assert {name: (row["server"], row["current"]) for name, row in rows.items()} == {
        "one": ("http://one:1", True),
        "two": ("http://two:2", False),
    }
    assert ran("context", "use", "two").exit_code == 0
    assert ran("context", "ls").stdout.splitlines()[2].split() == ["*", "two", "http://two:2"]
    assert "there is no current context" in ran("context", "rm", "two").stderr
    assert ran("context", "use", "two").exit_code == exits.USAGE
    file = own_contexts / "contexts.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in own_contexts.iterdir()] == ["contexts.toml"]


def test_the_token_of_a_context_goes_to_its_server_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "token").chmod(0o600)
    with scripted(EMPTY_LIST) as mine, scripted(EMPTY_LIST) as other:
        assert (
            ran(
                "context",
                "add",
                "mine",
                "--server",
                mine.url,
                "--token-file",
                str(tmp_path / "token"),
            ).stderr.count("\n")
            == 1
        )
        assert ran("ls").exit_code == 0
        assert mine.said[0].headers["authorization"] == "Bearer s3cret"
        assert ran("ls", "--server", other.url).exit_code == 0
        assert ran("ls", POLYNYA_SERVER=other.url).exit_code == 0
        assert [said.headers.get("authorization") for said in other.said] == [None, None]
        assert ran("ls", POLYNYA_SERVER=other.url, POLYNYA_TOKEN="mine").exit_code == 0
        assert other.said[2].headers["authorization"] == "Bearer mine"


def test_flags_go_before_variables_before_contexts_before_the_default(tmp_path: Path) -> None:
    variables = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert find_target(None, None, variables).server == "http://127.0.0.1:4437"
    save_contexts(
        tmp_path / "polynya" / "contexts.toml",
        Contexts("a", {"a": Context("http://a"), "b": Context("http://b")}),
    )
    assert find_target(None, None, variables).server == "http://a"
    variables["POLYNYA_CONTEXT"] = "b"
    assert find_target(None, None, variables).server == "http://b"
    variables["POLYNYA_SERVER"] = "http://c"
    assert find_target(None, None, variables).server == "http://c"
    assert find_target(None, "a", variables).server == "http://a"
    assert find_target("http://d", None, variables).server == "http://d"
    with pytest.raises(exits.Misused):
        find_target("http://d", "a", variables)


def test_a_context_that_is_not_there_is_answered_with_its_nearest() -> None:
    ran("context", "add", "production", "--server", "http://x:1")
    result = ran("ls", "--context", "prodution")
    assert result.exit_code == exits.USAGE and "Did you mean production?" in result.stderr
    assert "POLYNYA_CONTEXT" in ran("ls", POLYNYA_CONTEXT="nope").stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a b", "--server", "http://x"], "is not a context name"),
        (["a", "--server", "ftp://x"], "is not a URL"),
        (["a", "--server", "http://x:99999"], "is not a URL"),
        (["a", "--server", "%"], "is not a URL"),
        (["a", "--server", "http://x", "--token-file", "/nowhere/token"], "cannot be read"),
        (["a", "--server", "http://x", "--token-file", "/dev/null"], "holds no token"),
        (["a", "--server", "http://x", "--ca-file", "/nowhere/ca"], "no file"),
    ],
)
def test_a_wrong_context_is_not_kept(
    own_contexts: Path, arguments: list[str], message: str
) -> None:
    result = ran("context", "add", *arguments)
    assert result.exit_code == exits.USAGE and message in result.stderr
    assert not own_contexts.exists()


@pytest.mark.parametrize(
    "text",
    [
        "current = 1",
        "contexts = 2",
        "[contexts.a]",
        "[contexts.a]\nserver = 'x'\npassword = 'y'",
        "a =",
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    file = tmp_path / "contexts.toml"
    file.write_text(text)
    with pytest.raises(exits.Misused, match=r"contexts\.toml"):
        load_contexts(file)


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_what_is_kept_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    file = tmp_path_factory.mktemp("contexts") / "contexts.toml"
    kept = Contexts(
        "a.b", {"a.b": Context("http://x", token_file=path), "c": Context("http://y", ca_file=path)}
    )
    save_contexts(file, kept)
    assert load_contexts(file) == kept


def test_the_tools_of_tables_send_the_token_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "token").chmod(0o600)
    with scripted((200, {"content-type": "application/json"}, b'{"tables":[]}')) as server:
        ran(
            "context",
            "add",
            "lake",
            "--server",
            server.url,
            "--token-file",
            str(tmp_path / "token"),
        )
        for arguments in (["table", "ls"], ["sql", "select 1"], ["compact"]):
            ran(*arguments)
        assert len(server.said) >= 4
        assert {said.headers.get("authorization") for said in server.said} == {"Bearer s3cret"}


def test_a_token_over_plain_http_to_another_machine_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.05)
    result = ran("ls", "--server", "http://192.0.2.1:1", POLYNYA_TOKEN="abc", NO_PROXY="*")
    assert "unencrypted" in result.stderr


def test_no_certificates_are_loaded_for_http_on_this_machine() -> None:
    """Trust no certificate for local HTTP: any would be refused."""
    with Client("http://127.0.0.1:1,http://localhost:2") as client:
        trusted = client.options.verify
    assert isinstance(trusted, ssl.SSLContext)
    assert trusted.verify_mode == ssl.CERT_REQUIRED and not trusted.get_ca_certs()
    for server in (
        "https://127.0.0.1:1",
        "http://10.0.0.1:1",
        "http://127.0.0.1:1,http://10.0.0.1:1",
    ):
        with Client(server) as client:
            assert client.options.verify is True
