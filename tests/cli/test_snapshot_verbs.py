"""Requests, output and exit codes of `polynya snapshot` and `polynya bootstrap`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

AT = "0000000000000003_0000000000000006"
STREAM = "/v1/stream/a/b"
PLACE = {"Stream-Snapshot-Offset": AT, "Stream-Next-Offset": AT}
LISTED = {
    "offset": AT,
    "bytes": 7,
    "content_type": "text/plain",
    "digest": "sha-256=00",
    "created_at": "2030-01-01T00:00:00Z",
    "origin": "",
    "superseded": False,
    "behind_trim": False,
}
NONE = (
    404,
    {"Stream-Outcome": "refused"},
    b'{"error": {"code": "NO_SNAPSHOT", "message": "the stream has none", "request_id": "1"}}',
)


def ran(url: str, *arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, [*arguments], env={"POLYNYA_SERVER": url}, input=given)


@pytest.mark.parametrize(("status", "message"), [(201, "published"), (204, "was published before")])
def test_a_state_is_published_from_a_file_or_stdin(
    tmp_path: Path, status: int, message: str
) -> None:
    file = tmp_path / "state"
    file.write_bytes(b'{"n":1}')
    with scripted((status, PLACE, b""), (status, PLACE, b"")) as server:
        of_file = ran(server.url, "snapshot", "publish", "a/b", AT, str(file))
        of_stdin = ran(
            server.url,
            "snapshot",
            "publish",
            "a/b",
            AT,
            "--type",
            "text/plain",
            "--incarnation",
            "7",
            given="state",
        )
    assert of_file.stderr == f"the snapshot at {AT} (7 B) {message}\n"
    assert of_stdin.exit_code == 0
    first, second = server.said
    assert (first.method, first.path, first.body) == ("PUT", f"{STREAM}/snapshot/{AT}", b'{"n":1}')
    assert first.headers["content-type"] == "application/json"
    assert second.body == b"state" and second.headers["content-type"] == "text/plain"
    assert second.headers["stream-incarnation"] == "7"


def test_a_file_that_is_not_there_is_not_sent(tmp_path: Path) -> None:
    with scripted() as server:
        missing = ran(server.url, "snapshot", "publish", "a/b", AT, str(tmp_path / "none"))
        assert not server.said
    assert missing.exit_code == exits.USAGE and "cannot be read" in missing.stderr


def test_they_are_listed() -> None:
    body = json.dumps({"snapshots": [LISTED, {**LISTED, "superseded": True}]}).encode()
    with scripted((200, {}, body), (200, {}, body), (200, {}, b'{"snapshots":[]}')) as server:
        table = ran(server.url, "snapshot", "ls", "a/b")
        as_json = ran(server.url, "snapshot", "ls", "a/b", "--json")
        none = ran(server.url, "snapshot", "ls", "a/b")
    lines = table.stdout.splitlines()
    assert AT in lines[1] and "kept" in lines[1] and "superseded" in lines[2]
    assert json.loads(as_json.stdout)[0] == LISTED
    assert (none.stdout, none.stderr) == ("", "a/b has no snapshot\n")
    assert [each.path for each in server.said] == [f"{STREAM}/snapshots"] * 3


def test_one_is_printed_as_it_was_published() -> None:
    found = (200, PLACE, b"state\n")
    with scripted((307, PLACE, b""), found, found, NONE) as server:
        newest = ran(server.url, "snapshot", "get", "a/b")
        named = ran(server.url, "snapshot", "get", "a/b", AT)
        none = ran(server.url, "snapshot", "get", "a/b")
    assert newest.stdout == named.stdout == "state\n"
    assert newest.stderr == f"the records go on at {AT}\n"
    assert none.exit_code == exits.REFUSED and "the stream has none" in none.stderr
    snapshot = f"{STREAM}/snapshot"
    paths = [snapshot, f"{snapshot}/{AT}", f"{snapshot}/{AT}", snapshot]
    assert [each.path for each in server.said] == paths


def test_one_is_deleted_and_a_stream_begins_at_the_newest() -> None:
    with scripted((204, {}, b""), (200, {}, b'{"snapshot":1}')) as server:
        gone = ran(server.url, "snapshot", "rm", "a/b", AT)
        begun = ran(server.url, "bootstrap", "a/b")
    assert (gone.exit_code, gone.stderr) == (0, f"deleted the snapshot at {AT}\n")
    assert begun.stdout == '{"snapshot":1}\n'
    assert server.said[1].headers["accept"] == "application/json"


def test_a_retention_goes_by_them() -> None:
    answer = b'{"age_seconds":null,"bytes":1024,"snapshot":"any","snapshots_kept":2}'
    with scripted((200, {}, answer), (200, {}, answer)) as server:
        done = ran(server.url, "retention", "set", "a/b", "--snapshots", "--keep-bytes", "1KiB")
        alone = ran(server.url, "retention", "set", "a/b", "--snapshots")
        wrong = ran(server.url, "retention", "set", "a/b", "--snapshots", "--forever")
    assert done.stderr == "a/b keeps the newest 1.0 KiB, records since the oldest snapshot\n"
    assert alone.exit_code == 0 and wrong.exit_code == exits.USAGE
    first, second = (json.loads(each.body) for each in server.said)
    assert first == {"age_seconds": None, "bytes": 1024, "snapshot": "any"}
    assert second == {"age_seconds": None, "bytes": None, "snapshot": "any"}
