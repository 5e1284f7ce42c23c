"""Requests, output and exit codes of `polynya topic`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

TOPIC = {
    "name": "t",
    "id": "00" * 16,
    "partitions": 2,
    "content_type": None,
    "configs": {"retention.ms": "5"},
    "created_at": "2026-01-01T00:00:00Z",
}
DETAIL = {
    "partition": 0,
    "stream": "kafka/t/0",
    "first_offset": 3,
    "next_offset": 7,
    "bytes": 2048,
}


def ran(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["topic", *arguments], env={"POLYNYA_SERVER": url})


def answer(value: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(value).encode()


def test_topics_are_created_changed_and_deleted() -> None:
    with scripted(answer(TOPIC, 201), answer(TOPIC), (204, {}, b"")) as server:
        made = ran(server.url, "create", "t", "--partitions", "2", "--config", "retention.ms=5")
        changed = ran(
            server.url, "alter", "t", "--config", "a=b=c", "--unset", "d", "--partitions", "3"
        )
        deleted = ran(server.url, "rm", "t")
    assert made.stderr == "topic t created, with 2 partitions\n"
    assert changed.stderr == "topic t has 2 partitions, retention.ms=5\n"
    assert deleted.stderr == "deleted topic t\n"
    assert [(each.method, each.path) for each in server.said] == [
        ("PUT", "/v1/topics/t"),
        ("PATCH", "/v1/topics/t"),
        ("DELETE", "/v1/topics/t"),
    ]
    assert json.loads(server.said[0].body) == {"partitions": 2, "configs": {"retention.ms": "5"}}
    assert json.loads(server.said[1].body) == {
        "partitions": 3,
        "configs": {"a": "b=c", "d": None},
    }


def test_topics_are_listed_and_described() -> None:
    described = {**TOPIC, "details": [DETAIL]}
    with scripted(answer({"topics": [TOPIC]}), answer(described), answer(described)) as server:
        listed = ran(server.url, "ls")
        shown = ran(server.url, "describe", "t")
        as_json = ran(server.url, "describe", "t", "--json")
    assert listed.stdout.splitlines()[1].split() == ["t", "2", "retention.ms=5"]
    assert "retention.ms     5" in shown.stdout
    assert shown.stdout.splitlines()[-1].split() == ["0", "kafka/t/0", "3", "7", "2.0", "KiB"]
    assert "only the first 1 partition" in shown.stderr
    assert json.loads(as_json.stdout) == described


@pytest.mark.parametrize(
    "arguments", [("alter", "t"), ("create", "t", "--config", "retention"), ("adopt", "t")]
)
def test_a_change_of_nothing_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    with scripted(answer(TOPIC)) as server:
        assert ran(server.url, *arguments).exit_code == exits.USAGE
    assert not server.said


def test_streams_are_adopted() -> None:
    with scripted(answer(TOPIC, 201), answer(TOPIC)) as server:
        made = ran(server.url, "adopt", "t", "--from", "a/b", "--from", "c", "--config", "d=e")
        again = ran(server.url, "adopt", "t", "--from", "a/b", "--json")
    assert made.stderr == "topic t has adopted 2 streams\n"
    assert json.loads(again.stdout) == {**TOPIC, "created": False}
    assert (server.said[0].method, server.said[0].path) == ("PUT", "/v1/topics/t")
    assert json.loads(server.said[0].body) == {"streams": ["a/b", "c"], "configs": {"d": "e"}}


LISTED = {
    "buckets": [
        {"name": "logs", "retention": {"age_seconds": 60, "bytes": None}, "profile": "diskless"},
        {"name": "plain", "retention": None, "profile": "replicated"},
        {"name": "short", "retention": {"age_seconds": None, "bytes": 5}},
    ]
}


def test_the_default_profile_of_a_bucket_is_shown_set_and_cleared() -> None:
    def bucket(url: str, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["bucket", *arguments], env={"POLYNYA_SERVER": url})

    logs, none = {"name": "logs", "profile": "diskless"}, {"name": "logs", "profile": None}
    answers = (answer(logs), answer(logs), (204, {}, b""), answer(none), answer(LISTED))
    with scripted(*answers) as server:
        made = bucket(server.url, "profile", "logs", "diskless")
        shown = bucket(server.url, "profile", "logs")
        cleared = bucket(server.url, "profile", "logs", "--clear", "--json")
        without = bucket(server.url, "profile", "logs")
        listed = bucket(server.url, "ls")
        odd = bucket(server.url, "profile", "logs", "diskless", "--clear")
    assert made.stderr == "new streams in bucket logs are diskless\n"
    assert shown.stdout == "diskless\n"
    assert json.loads(cleared.stdout) == none
    assert without.stdout == "the setting default_profile of each node\n"
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["logs", "diskless"],
        ["plain", "replicated"],
        ["short", "-"],
    ]
    assert odd.exit_code == exits.USAGE
    path = "/v1/buckets/logs/profile"
    assert [(each.method, each.path) for each in server.said] == [
        *(("PUT", path), ("GET", path), ("DELETE", path), ("GET", path)),
        ("GET", "/v1/buckets"),
    ]
    assert json.loads(server.said[0].body) == {"profile": "diskless"}


def test_the_notes_of_a_topic_are_printed() -> None:
    noted = {
        **TOPIC,
        "notes": ["cleanup.policy=compact: keys are compacted in the object store alone"],
    }
    said = "note: cleanup.policy=compact: keys are compacted in the object store alone\n"
    described = {**noted, "details": [DETAIL]}
    answers = (answer(noted), answer(noted), answer(described), answer(described))
    with scripted(*answers) as server:
        assert ran(server.url, "create", "t").stderr.endswith(said)
        assert ran(server.url, "alter", "t", "--unset", "x").stderr.endswith(said)
        assert ran(server.url, "describe", "t").stderr.endswith(said)
        in_json = ran(server.url, "describe", "t", "--json")
    assert (in_json.stderr, json.loads(in_json.stdout)["notes"]) == ("", noted["notes"])
