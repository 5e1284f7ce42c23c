"""Requests, output and exit codes of `polynya attrs`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

TAG = '"1000000000001.1-7"'
PATH = "/v1/stream/a/b/attrs"
FOUND = (200, {"ETag": TAG}, b'{"n":1.50,"owner":"x"}')
DONE = (204, {"ETag": TAG}, b"")
STALE = (
    412,
    {"Stream-Outcome": "refused"},
    b'{"error": {"code": "PRECONDITION", "message": "no", "request_id": "1"}}',
)


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["attrs", *arguments], env={"POLYNYA_SERVER": url})


def test_they_are_printed_as_they_are_and_the_tag_beside() -> None:
    with scripted(FOUND, FOUND, FOUND) as server:
        whole = ran(server.url, "get", "a/b")
        one = ran(server.url, "get", "a/b", "owner")
        none = ran(server.url, "get", "a/b", "other")
    assert (whole.stdout, whole.stderr) == ('{"n":1.50,"owner":"x"}\n', f"ETag {TAG}\n")
    assert one.stdout == '"x"\n'
    assert none.exit_code == exits.REFUSED and "no attribute 'other'" in none.stderr
    assert [(each.method, each.path) for each in server.said] == [("GET", PATH)] * 3


@pytest.mark.parametrize(
    ("arguments", "method", "body"),
    [
        (("set", "a/b", "x=1", "y=z", 'l=["a"]'), "PATCH", {"x": 1, "y": "z", "l": ["a"]}),
        (("set", "a/b", "x=null", "e="), "PATCH", {"x": None, "e": ""}),
        (("set", "a/b", "x=1", "y=null", "--replace"), "PUT", {"x": 1}),
        (("rm", "a/b", "x", "y"), "PATCH", {"x": None, "y": None}),
        (("rm", "a/b"), "DELETE", None),
    ],
)
def test_a_change_is_one_request(
    arguments: tuple[str, ...], method: str, body: dict[str, object] | None
) -> None:
    with scripted(DONE, DONE) as server:
        plain = ran(server.url, *arguments)
        ran(server.url, *arguments, "--if-match", TAG)
    assert (plain.exit_code, plain.stderr) == (0, f"ETag {TAG}\n"), plain.output
    first, second = server.said
    for sent in (first, second):
        assert (sent.method, sent.path) == (method, PATH)
        assert (json.loads(sent.body) if sent.body else None) == body
    assert "if-match" not in first.headers and second.headers["if-match"] == TAG


def test_what_is_no_pair_is_not_sent_and_a_stale_tag_is_refused() -> None:
    with scripted(STALE) as server:
        assert ran(server.url, "set", "a/b", "x").exit_code == exits.USAGE
        assert ran(server.url, "set", "a/b").exit_code == exits.USAGE
        assert not server.said
        refused = ran(server.url, "rm", "a/b", "--if-match", TAG)
    assert refused.exit_code == exits.REFUSED
