"""Requests, output and exit codes of `polynya group`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

ROW = {"topic": "t", "partition": 0, "offset": 1, "end": 3, "lag": 2, "metadata": ""}
UNREAD = {**ROW, "partition": 1, "offset": None, "lag": None}
MEMBER = {"id": "m-1", "instance": None, "client_id": "c", "host": "/h", "partitions": {"t": [0]}}
SHOWN = {"group": "g/h", "state": "Stable", "members": [MEMBER], "offsets": [ROW, UNREAD], "lag": 2}


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["group", *arguments], env={"POLYNYA_SERVER": url})


def answer(value: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(value).encode()


def test_groups_are_listed_page_by_page() -> None:
    listed = {"state": "Empty", "protocol_type": "", "kind": "consumer"}
    pages = [{"groups": [{"group": "a", **listed}], "next": "a"}]
    pages.append({"groups": [{"group": "b", **listed}], "next": None})
    with scripted(*map(answer, pages)) as server:
        result = ran(server.url, "ls")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()[1:3]] == [
        ["a", "Empty", "-", "consumer"],
        ["b", "Empty", "-", "consumer"],
    ]
    assert "after=a" in server.said[1].path
    with scripted(answer({"groups": [], "next": None})) as server:
        assert "no consumer groups" in ran(server.url, "ls").stderr


def test_a_group_is_described() -> None:
    with scripted(answer(SHOWN)) as server:
        result = ran(server.url, "describe", "g/h")
    assert result.exit_code == 0, result.output
    assert server.said[0].path == "/v1/groups/g%2Fh"
    rows = [line.split() for line in result.stdout.splitlines()[1:] if line]
    assert rows == [["t", "0", "1", "3", "2", "m-1"], ["t", "1", "-", "3", "-", "-"]]
    with scripted(answer(SHOWN)) as server:
        assert json.loads(ran(server.url, "describe", "g/h", "--json").stdout)["lag"] == 2


RESET = {"topic": "t", "partition": 0, "before": None, "offset": 1, "end": 3, "lag": 2}


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["--to", "7"], {"to": 7}),
        (["--to", "latest"], {"to": "latest"}),
        (["--to-earliest"], {"to": "earliest"}),
        (["--to-latest"], {"to": "latest"}),
        (["--shift-by", "-5"], {"shift_by": -5}),
        (["--to", "2026-11-01T00:00Z"], {"time": "2026-11-01T00:00:00.000Z"}),
    ],
)
def test_offsets_are_reset(options: list[str], sent: dict[str, object]) -> None:
    with scripted(answer({"group": "g", "offsets": [RESET]})) as server:
        result = ran(server.url, "reset-offsets", "g", *options, "--topic", "t:0,1")
    assert result.exit_code == 0, result.output
    assert json.loads(server.said[0].body) == {**sent, "topics": ["t:0,1"], "dry_run": False}
    assert server.said[0].path == "/v1/groups/g/offsets"
    assert result.stdout.splitlines()[1].split() == ["t", "0", "-", "1", "3", "2"]


def test_an_age_is_sent_as_a_time_and_a_dry_run_says_so() -> None:
    before = datetime.now(UTC)
    with scripted(answer({"group": "g", "offsets": [RESET]})) as server:
        result = ran(server.url, "reset-offsets", "g", "--to", "2h", "--dry-run")
    body = json.loads(server.said[0].body)
    asked = datetime.fromisoformat(body["time"]) + timedelta(hours=2)
    assert before.replace(microsecond=0) <= asked <= datetime.now(UTC)
    assert (body["topics"], body["dry_run"]) == (None, True)
    assert "nothing was changed" in result.stderr


@pytest.mark.parametrize(
    "options",
    [[], ["--to-earliest", "--to-latest"], ["--to", "yesterday"], ["--to", "-5"], ["--to", "1_0"]],
)
def test_a_reset_to_no_one_place_is_a_usage_error(options: list[str]) -> None:
    with scripted(answer({})) as server:
        result = ran(server.url, "reset-offsets", "g", *options)
    assert result.exit_code == exits.USAGE
    assert "--to" in result.stderr
    assert not server.said


def test_groups_are_deleted_and_a_refusal_names_why() -> None:
    with scripted((204, {}, b"")) as server:
        assert ran(server.url, "rm", "g").exit_code == 0
    assert (server.said[0].method, server.said[0].path) == ("DELETE", "/v1/groups/g")
    error = {"error": {"code": "GROUP_NOT_EMPTY", "message": "it has members", "request_id": "1"}}
    with scripted((409, {"Stream-Outcome": "refused"}, json.dumps(error).encode())) as server:
        result = ran(server.url, "rm", "g")
    assert result.exit_code != 0
    assert "it has members" in result.stderr
