"""`polynya produce` and `polynya consume` against a real node: keys, headers, JSON, places, and
refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from polling import wait_until
from product import RunningNode, environment, polynya

pytestmark = pytest.mark.process
SECONDS = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verbs") / "data"


@pytest.fixture(scope="module")
def node(data: Path) -> Iterator[RunningNode]:
    running = RunningNode(data, ("--cores", "1"))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def called(node: RunningNode, *arguments: str, given: str = "", code: int = 0) -> tuple[str, str]:
    """Return a verb's stdout and stderr."""
    ran = polynya(*arguments, "--server", node.url, stdin=given.encode(), seconds=SECONDS)
    assert ran.code == code, ran
    return ran.out, ran.err


def consumed(node: RunningNode, *arguments: str) -> list[str]:
    return called(node, "consume", *arguments)[0].splitlines()


def test_lines_are_produced_and_consumed(node: RunningNode) -> None:
    _, notices = called(node, "produce", "lines", given="a\nb\n\nc")
    assert "produced 4 records to lines" in notices
    assert consumed(node, "lines", "--exit") == ["a", "b", "", "c"]
    assert consumed(node, "lines", "--from", "-2", "--exit") == ["", "c"]
    assert consumed(node, "lines", "--from", "1", "--limit", "1") == ["b"]
    assert consumed(node, "lines", "--from", "10m", "--exit") == ["a", "b", "", "c"]
    assert consumed(node, "lines", "--from", "now", "--exit") == []
    assert "lines" in called(node, "ls", "kafka/")[0]


def test_keys_headers_and_tombstones_go_through_json(node: RunningNode) -> None:
    called(node, "produce", "keyed", "-K", ":", "--header", "n=1", given="a:1\nb:2:3\n")
    assert consumed(node, "keyed", "--exit", "-K", "=") == ["a=1", "b=2:3"]
    odd = {"key": {"$base64": "/w=="}, "value": None, "headers": [["h", None]], "timestamp": 7}
    called(node, "produce", "keyed", "--json", json.dumps(odd))
    rows = [json.loads(line) for line in consumed(node, "keyed", "--exit", "--json")]
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in rows] == [
        (0, "a", "1", [["n", "1"]]),
        (1, "b", "2:3", [["n", "1"]]),
        (2, {"$base64": "/w=="}, None, [["h", None]]),
    ]
    assert rows[2] == {**odd, "partition": 0, "offset": 2}
    copied = "\n".join(json.dumps(row) for row in rows)
    called(node, "produce", "copied", "--json", "--compression", "zstd", given=copied)
    again = [json.loads(line) for line in consumed(node, "copied", "--exit", "--json")]
    assert again == rows


def test_a_consumer_follows_until_it_is_ended(node: RunningNode) -> None:
    called(node, "produce", "followed", "first")
    reader = subprocess.Popen(
        [sys.executable, "-m", "polynya", "consume", "followed", "--server", node.url],
        stdout=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "first\n"
        called(node, "produce", "followed", "second")
        assert reader.stdout.readline() == "second\n"
    finally:
        reader.terminate()
        reader.wait(SECONDS)
        assert reader.stdout is not None
        reader.stdout.close()


def test_a_group_goes_on_where_it_was(node: RunningNode, data: Path) -> None:
    called(node, "produce", "shared", given="a\nb\nc\n")
    joined = ("shared", "--group", "readers", "--exit")
    assert consumed(node, *joined, "--limit", "2") == ["a", "b"]
    assert consumed(node, *joined) == ["c"]
    assert consumed(node, *joined) == []
    called(node, "group", "reset-offsets", "readers", "--shift-by", "-2")
    assert consumed(node, *joined) == ["b", "c"]
    refused = called(node, "consume", "shared", "--group", "g", "--from", "5", code=2)[1]
    assert "group reset-offsets" in refused
    called(node, "group", "rm", "readers")
    assert "there is no such group" in called(node, "group", "describe", "readers", code=1)[1]
    audit = data / "access/audit.jsonl"  # a thread of the node writes it
    wait_until(lambda: audit.read_text().count("\n") >= 2, what="both acts to be audited")
    audited = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["act"], line["target"], line["outcome"]) for line in audited] == [
        ("group.reset", "/v1/groups/readers/offsets", "200"),
        ("group.delete", "/v1/groups/readers", "204"),
    ]


def test_an_adopted_stream_is_read_by_both_and_written_by_both(node: RunningNode) -> None:
    called(node, "create", "shop/adopted", "--content-type", "text/plain")
    called(node, "append", "shop/adopted", "by http")
    called(node, "topic", "adopt", "adopted", "--from", "shop/adopted")
    assert consumed(node, "adopted", "--exit") == ["by http"]
    called(node, "produce", "adopted", "by kafka", "--key", "k")
    called(node, "append", "shop/adopted", "again")
    whole = ["by http", "by kafka", "again"]
    assert [line for line in consumed(node, "adopted", "--exit") if line] == whole
    assert consumed(node, "adopted", "--from", "10m", "--exit", "--limit", "1") == whole[:1]
    read = [
        json.loads(line)
        for line in called(node, "read", "shop/adopted", "--records")[0].splitlines()
    ]
    assert [(each["key"], each["value"].strip()) for each in read] == [
        (None, "by http"),
        ("k", "by kafka"),
        (None, "again"),
    ]
    called(node, "topic", "rm", "adopted")
    assert "by kafka" in called(node, "read", "shop/adopted")[0], "the stream stays"


def test_what_cannot_be_done_is_refused(node: RunningNode) -> None:
    assert "Unknown topic" in called(node, "consume", "absent", "--exit", code=1)[1]
    called(node, "produce", "narrow", "x")
    assert "there is no 3" in called(node, "consume", "narrow", "--partition", "3", code=1)[1]
    refused = called(node, "produce", "narrow", "--json", given='{"value": 1}\n{"v": 1}\n', code=1)
    assert "record 2 is not a record as JSON" in refused[1]
    assert "produced 1 record to narrow" in refused[1]
    assert "no separator ':'" in called(node, "produce", "narrow", "-K", ":", "x", code=1)[1]
    assert "pass one" in called(node, "produce", "narrow", "--key", "a", "-K", ":", "x", code=2)[1]
    assert (
        "is a number" in called(node, "consume", "narrow", "--from", f"{0:016}_{0:016}", code=2)[1]
    )
