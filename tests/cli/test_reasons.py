"""The command line says why a server refuses, also where it asks with HEAD; and a query's numbers
are data."""

from __future__ import annotations

import httpx
import pytest
from click.testing import CliRunner

from polynya.cli.app import cli
from polynya.cli.remote.client import Client
from polynya.cli.streams.lifecycle import facts_if_there
from polynya.cli.terminal import exits, output


def test_the_reason_of_a_refused_head_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def send(self: Client, method: str, path: str, **options: object) -> httpx.Response:
        asked.append(method)
        request = httpx.Request(method, f"http://x{path}")
        if method == "HEAD":
            return httpx.Response(404, request=request)
        body = {"error": {"code": "NO_ROUTE", "message": "no route of an admin port"}}
        return httpx.Response(404, json=body, request=request)

    monkeypatch.setattr(Client, "send", send)
    with Client("http://x") as client, pytest.raises(exits.Ended, match="an admin port") as ended:
        client.call("HEAD", "/v1/stream/runs", stream="runs")
    assert "admin port" in ended.value.hint and "polynya ls" not in ended.value.hint
    assert asked == ["HEAD", "GET"]


def test_the_reason_of_a_forbidden_read_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(self: Client, method: str, path: str, **options: object) -> httpx.Response:
        error = {"error": {"code": "FORBIDDEN", "message": "the token reads only under a/"}}
        request = httpx.Request(method, f"http://x{path}")
        body = None if method == "HEAD" else error
        return httpx.Response(403, json=body, request=request)

    monkeypatch.setattr(Client, "send", send)
    with Client("http://x") as client, pytest.raises(exits.Ended, match="only under a/"):
        facts_if_there(client, "runs")


def test_a_reserved_name_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of such a name may be another route, which would refuse the body of a creation."""
    monkeypatch.setattr(Client, "send", lambda *_, **__: pytest.fail("a request was sent"))
    ran = CliRunner().invoke(cli, ["create", "a/retention"])
    assert (ran.exit_code, "'retention' is a reserved segment" in ran.output) == (1, True)


def test_numbers_of_a_query_have_plain_digits(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["year"], [[2013]], grouped=False)
    output.table(["rows"], [[2013]])
    assert capsys.readouterr().out.split() == ["year", "2013", "rows", "2,013"]
