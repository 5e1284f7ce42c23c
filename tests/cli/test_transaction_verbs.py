"""Requests, output and exit codes of `polynya txn`."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

ROW = {"state": "Ongoing", "producer": 7, "epoch": 1, "number": 3, "open_ms": 1500, "timeout_ms": 9}
IDLE = {**ROW, "state": "Empty", "open_ms": None}
PARTITION = {"topic": "orders", "partition": 2, "stream": "kafka/orders/2"}


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["txn", *arguments], env={"POLYNYA_SERVER": url})


def answer(value: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(value).encode()


def test_ids_are_listed_page_by_page() -> None:
    pages = [{"transactions": [{"id": "a", **ROW}], "next": "a"}]
    pages.append({"transactions": [{"id": "b", **IDLE}], "next": None})
    with scripted(*map(answer, pages)) as server:
        result = ran(server.url, "ls", "--state", "ongoing", "--state", "Empty", "--open-for", "1m")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()[1:3]] == [
        ["a", "Ongoing", "7", "1", "1.5", "s"],
        ["b", "Empty", "7", "1", "-"],
    ]
    assert "state=Ongoing%2CEmpty" in server.said[0].path
    assert "open_seconds=60" in server.said[0].path
    assert "after=a" in server.said[1].path
    with scripted(answer({"transactions": [], "next": None})) as server:
        assert "no transactional ids" in ran(server.url, "ls").stderr


def test_an_id_is_described() -> None:
    shown = {"id": "a/b", **ROW, "partitions": [PARTITION], "groups": ["g"]}
    with scripted(answer(shown)) as server:
        result = ran(server.url, "describe", "a/b")
    assert result.exit_code == 0, result.output
    assert server.said[0].path == "/v1/transactions/a%2Fb"
    rows = [line.split() for line in result.stdout.splitlines() if line]
    assert ["orders", "2"] in rows
    assert ["g"] in rows
    assert "transaction 3, open 1.5 s" in result.stderr
    with scripted(answer(shown)) as server:
        assert json.loads(ran(server.url, "describe", "a/b", "--json").stdout) == shown


def test_an_open_transaction_is_aborted() -> None:
    with scripted(answer({"id": "a", **ROW})) as server:
        result = ran(server.url, "abort", "a")
    assert result.exit_code == 0, result.output
    assert (server.said[0].method, server.said[0].path) == ("POST", "/v1/transactions/a/abort")
    assert "aborted transaction 3 of a, open for 1.5 s" in result.output
    refusal = {"code": "TRANSACTION_NOT_OPEN", "message": "none is open"}
    with scripted(answer({"error": refusal}, 409)) as server:
        assert ran(server.url, "abort", "a").exit_code == exits.REFUSED
