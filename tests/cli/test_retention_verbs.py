"""Requests, output and exit codes of `trim`, `retention` and `store`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from scripted_server import Scripted, scripted

from polynya.cli.app import cli
from polynya.cli.storage import cluster_store
from polynya.cli.terminal import exits

TOKEN = "0000000000000003_0000000000000021"
TRIMMED = (200, {}, json.dumps({"retained_offset": TOKEN, "records": 3, "bytes": 2048}).encode())
KEEPS = (200, {}, b'{"age_seconds": 604800, "bytes": 1073741824, "from": "stream"}')


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), env={"POLYNYA_SERVER": url})


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (("--before", TOKEN), {"before": TOKEN}),
        (("--before", "now"), {"before": "now"}),
        (("--before", "10m"), {"before_time": "10m"}),
        (("--before", "2026-11-01"), {"before_time": "2026-11-01"}),
        (("--keep-bytes", "1.5MiB"), {"keep_bytes": 3 << 19}),
        (("--keep-age", "7d"), {"keep_age_seconds": 604800}),
    ],
)
def test_a_trim_is_sent(arguments: tuple[str, ...], body: dict[str, object]) -> None:
    with scripted(TRIMMED) as server:
        result = ran(server.url, "trim", "a/b", *arguments)
    assert result.exit_code == 0, result.output
    (sent,) = server.said
    assert (sent.method, sent.path, json.loads(sent.body)) == (
        "POST",
        "/v1/stream/a/b/retention",
        body,
    )
    assert "deleted 3 records (2.0 KiB)" in result.stderr and TOKEN in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--before", "now", "--keep-bytes", "1"),
        ("--keep-bytes", "much"),
        ("--keep-age", "1.5s"),
    ],
)
def test_a_trim_that_says_nothing_or_too_much_is_not_sent(arguments: tuple[str, ...]) -> None:
    with scripted(TRIMMED) as server:
        assert ran(server.url, "trim", "a", *arguments).exit_code == exits.USAGE
    assert not server.said


def test_retention_of_streams_and_buckets() -> None:
    with scripted(KEEPS) as server:
        said = ran(server.url, "retention", "set", "a", "--keep-age", "7d", "--keep-bytes", "1GiB")
        ran(server.url, "retention", "set", "--bucket", "logs", "--forever")
        ran(server.url, "retention", "set", "a", "--keep-age", "1d", "--by-record-time")
        shown = ran(server.url, "retention", "show", "a")
        listed = ran(server.url, "retention", "show", "--bucket", "logs", "--json")
        ran(server.url, "retention", "clear", "a")
    assert said.stderr == "a keeps records for 7 d, the newest 1.0 GiB\n"
    assert shown.stdout.startswith("keeps            records for 7 d")
    assert json.loads(listed.stdout)["age_seconds"] == 604800
    stream, bucket = "/v1/stream/a/retention", "/v1/buckets/logs/retention"
    assert [(each.method, each.path) for each in server.said] == [
        ("PUT", stream), ("PUT", bucket), ("PUT", stream), ("GET", stream), ("GET", bucket), ("DELETE", stream)
    ]  # fmt: skip
    assert json.loads(server.said[0].body) == {"age_seconds": 604800, "bytes": 1 << 30}
    assert json.loads(server.said[1].body) == {"age_seconds": None, "bytes": None}
    by_record_time = {"age_seconds": 86400, "bytes": None, "record_time": True}
    assert json.loads(server.said[2].body) == by_record_time


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "a"),
        ("set", "a", "--keep-age", "0s"),
        ("set", "a", "--keep-age", "1d", "--keep-bytes", "0"),
        ("set", "a", "--forever", "--keep-age", "1d"),
        ("set", "--keep-age", "1d"),
        ("set", "a", "--keep-bytes", "1MiB", "--by-record-time"),
        ("set", "a", "--bucket", "b", "--forever"),
    ],
)
def test_a_retention_that_cannot_be_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    with scripted(KEEPS) as server:
        assert ran(server.url, "retention", *arguments).exit_code == exits.USAGE
    assert not server.said


def test_a_stream_is_created_with_its_retention() -> None:
    with scripted((201, {}, b""), (200, {"content-type": "text/plain"}, b"")) as server:
        assert (
            ran(server.url, "create", "a", "--keep-age", "1d", "--keep-bytes", "10kB").exit_code
            == 0
        )
    headers = server.said[0].headers
    assert (headers["stream-retention-age"], headers["stream-retention-bytes"]) == (
        "86400",
        "10000",
    )


def test_what_is_no_root_is_not_wiped(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    for root in (str(precious), str(tmp_path / "none")):
        refused = CliRunner().invoke(cli, ["store", "wipe", "--root", root, "--yes", "--force"])
        assert refused.exit_code == exits.REFUSED, refused.output
    assert [path.name for path in precious.iterdir()] == ["file"]
    assert (
        CliRunner().invoke(cli, ["store", "wipe", "--root", "s3://", "--yes"]).exit_code
        == exits.USAGE
    )


def test_a_root_is_wiped_after_a_question(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    (root / "c1" / "packs").mkdir(parents=True)
    (root / "c1" / "packs" / "p").write_bytes(b"x")
    (root / "polynya-root.json").write_text('{"cluster_id": "c1", "history": 1, "start_id": ""}')
    wipe = ["store", "wipe", "--root", str(root)]
    assert CliRunner().invoke(cli, wipe, input="n\n").exit_code != 0
    unheard = CliRunner().invoke(cli, wipe, input="")
    assert unheard.exit_code == exits.USAGE and "--yes" in unheard.stderr
    assert (root / "c1" / "packs" / "p").exists()
    done = CliRunner().invoke(cli, wipe, input="y\n")
    assert done.exit_code == 0 and "deleted 1 object" in done.stderr
    assert not [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]


def posted(server: Scripted) -> list[tuple[str, Any]]:
    return [
        (each.path.rpartition("/")[2], json.loads(each.body))
        for each in server.said
        if each.method == "POST"
    ]


def answers(port: int, *parts: object) -> list[tuple[int, dict[str, str], bytes]]:
    """Return scripted answers: the location of the admin port (this port), then `parts`."""
    location = {"node": 1, "ports": {"admin": port}}
    return [(200, {}, json.dumps(part).encode()) for part in (location, *parts)]


def test_verify_goes_on_where_a_group_has_moved_and_says_what_could_not_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_store, "VAIN_MAX", 1)
    monkeypatch.setattr(cluster_store, "PAUSE_SECONDS", 0.0)
    nobody = [{"groups": [3], "why": "no leader yet"}]
    part = {"left": [], "next": None, "packs": 1, "slices": 2, "bytes": 2048, "faults": []}
    fault = {"pack": "p/2-a", "kind": "missing", "streams": ["a", "b"]}
    clean = {"left": [], "next": None, "orphans": [], "count": 0, "bytes": 0, "deleted": False}
    with scripted() as server:
        server.answers = answers(
            int(server.url.rpartition(":")[2]),
            {"shares": [{"node": 1, "groups": [0, 1, 2]}], "leaderless": nobody},
            {**part, "next": "p/1"},
            {**part, "left": [1], "next": "p/1", "packs": 0, "slices": 0, "bytes": 0},
            part,
            {"shares": [{"node": 2, "groups": [1]}], "leaderless": nobody},
            {**part, "faults": [fault]},
            {"shares": [], "leaderless": nobody},
            {"shares": [{"node": 1, "groups": [0, 1, 2]}], "leaderless": []},
            clean,
        )
        found = ran(server.url, "store", "verify")
    assert posted(server) == [
        ("shares", {"groups": None}),
        ("verify", {"groups": [0, 1, 2]}),
        ("verify", {"groups": [0, 1, 2], "after": "p/1"}),
        ("verify", {"groups": [0, 2], "after": "p/1"}),
        ("shares", {"groups": [1, 3]}),
        ("verify", {"groups": [1], "after": "p/1"}),
        ("shares", {"groups": [3]}),
        ("shares", {"groups": [0, 1, 2]}),
        ("sweep", {"groups": [0, 1, 2], "dry_run": True, "grace_seconds": None}),
    ]
    assert found.exit_code == exits.REFUSED
    assert found.stderr.splitlines() == [
        "missing: p/2-a, needed by a, b",
        "checked 3 packs, 6 slices, 6.0 KiB, in 3 of 4 groups: 1 missing",
        "no orphans",
        "not checked: group 3: no leader yet",
    ]


@pytest.mark.parametrize("verb", ["verify", "sweep"])
def test_groups_that_could_not_be_looked_at_are_an_exit_code_of_their_own(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(cluster_store, "VAIN_MAX", 1)
    with scripted() as server:
        nobody = {"shares": [], "leaderless": [{"groups": [0, 1], "why": "no leader yet"}]}
        server.answers = answers(
            int(server.url.rpartition(":")[2]), nobody, {"shares": [], "leaderless": []}
        )
        found = ran(server.url, "store", verb, "--json")
    assert found.exit_code == exits.UNREACHABLE, found.output
    output = json.loads(found.stdout)
    assert (output["groups"]["unseen"] if verb == "verify" else output["unseen"]) == [
        {"groups": [0, 1], "why": "no leader yet"}
    ]
