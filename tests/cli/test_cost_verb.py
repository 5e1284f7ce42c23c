"""`polynya cost`: its requests, output and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cost import Shape, report_of
from polynya.cost.report import NodeRows

COUNTS = [
    (("append", "http", "bytes"), 2048),
    (("append", "http", "requests"), 3),
    (("store", "flush", "put"), 2000),
    (("store", "flush", "up"), 4096),
    (("zone", "a", "b", "payload"), 1 << 30),
]
REPORT = report_of(
    [NodeRows(1, "a", [[(100, COUNTS)]], [1])], Shape(3, 6, 3, 3), [3], 24, 101 * 3600
)


def ran(*arguments: str) -> tuple[Result, str]:
    answer = 200, {}, msgspec.json.encode({**msgspec.to_builtins(REPORT), "bill": {}})
    with scripted(answer) as server:
        result = CliRunner().invoke(cli, ["cost", *arguments], env={"POLYNYA_SERVER": server.url})
        return result, server.said[0].path if server.said else ""


def test_the_use_and_the_money_are_shown() -> None:
    result, path = ran("--hours", "48")
    assert result.exit_code == 0, result.output
    assert path == "/v1/cost?hours=48"
    words = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "a", "flush", "2,000", "0", "0", "0", "0", "4.0", "KiB", "0", "B"] in words
    assert ["a", "b", "payload", "1.0", "GiB"] in words
    assert next(line for line in words if line[:1] == ["total"])[1] == "0.030000"
    assert "! node 3 did not answer" in result.stderr and "core 1 of node 1" in result.stderr
    assert "3 requests, 2.0 KiB" in result.stderr


def test_json_has_the_bill_by_the_given_prices(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text('currency = "EUR"\nput_per_1000 = 1\nget_per_1000 = 1\nzone_gb = 0')
    result, _ = ran("--json", "--prices", str(file))
    output = json.loads(result.stdout)
    assert output["bill"]["currency"] == "EUR" and output["bill"]["totals"]["measured"] == 2.0
    assert output["nodes"][0]["usage"]["store"]["flush"]["put"] == 2000


def test_the_default_prices_are_printed_and_can_be_passed_back(tmp_path: Path) -> None:
    result, path = ran("--show-prices")
    assert result.exit_code == 0 and path == "", "no server is asked"
    file = tmp_path / "ours.toml"
    file.write_text(result.stdout)
    assert ran("--prices", str(file))[0].exit_code == 0


def test_wrong_values_are_refused_before_a_request(tmp_path: Path) -> None:
    file = tmp_path / "ours.toml"
    file.write_text("put_per_1000 = 1")
    for arguments, words in (
        (("--prices", str(file)), "is not a price file"),
        (("--prices", str(tmp_path / "none")), "does not exist"),
        (("--hours", "721"), "1<=x<=720"),
    ):
        result, path = ran(*arguments)
        assert result.exit_code == 2 and words in result.output and path == "", result.output
