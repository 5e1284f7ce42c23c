"""Requests, output and exit codes of `polynya schema`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result
from scripted_server import scripted

from polynya.cli.app import cli
from polynya.cli.terminal import exits

ROW = {"subject": "a-value", "version": 2, "id": 7, "schema": '"int"'}


def ran(url: str, *arguments: str, given: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["schema", *arguments], env={"POLYNYA_SERVER": url}, input=given)


def answer(value: object, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps(value).encode()


def test_subjects_and_versions_are_listed() -> None:
    other = {**ROW, "subject": "a-value-2", "schemaType": "JSON"}
    with scripted(answer([ROW, other]), answer([ROW, other]), answer([]), answer([])) as server:
        listed = ran(server.url, "ls")
        one = ran(server.url, "ls", "a-value", "--deleted", "--json")
        none = ran(server.url, "ls")
        missing = ran(server.url, "ls", "b")
    assert [line.split() for line in listed.stdout.splitlines()[1:]] == [
        ["a-value", "2", "7", "AVRO"],
        ["a-value-2", "2", "7", "JSON"],
    ]
    assert json.loads(one.stdout) == ROW
    assert "polynya schema register" in none.stderr
    assert (missing.exit_code, "no subject 'b'" in missing.stderr) == (exits.REFUSED, True)
    assert [each.path for each in server.said][:2] == [
        "/registry/schemas?subjectPrefix=&latestOnly=true",
        "/registry/schemas?subjectPrefix=a-value&deleted=true",
    ]


def test_a_schema_is_printed_by_subject_or_id() -> None:
    with scripted(answer(ROW), answer({"schema": '"int"'})) as server:
        assert ran(server.url, "get", "a/b", "--version", "1").stdout == '"int"\n'
        assert json.loads(ran(server.url, "get", "--id", "7", "--json").stdout) == {
            "schema": '"int"'
        }
        assert ran(server.url, "get").exit_code == exits.USAGE
    assert [each.path for each in server.said] == [
        "/registry/subjects/a%2Fb/versions/1",
        "/registry/schemas/ids/7",
    ]


def test_a_schema_is_registered_from_a_file_or_stdin(tmp_path: Path) -> None:
    file = tmp_path / "order.proto"
    file.write_text('syntax = "proto3";')
    with scripted(answer({"id": 7, "version": 2}), answer({"id": 7, "version": 2})) as server:
        made = ran(server.url, "register", "a", str(file), "--reference", "i.proto=i:3")
        ran(server.url, "register", "a", "-", "--type", "json", "--normalize", given="{}")
        bad = ran(server.url, "register", "a", "-", "--reference", "i", given="{}")
    assert made.stderr == "a has the schema as version 2, with id 7\n"
    assert [json.loads(each.body) for each in server.said] == [
        {
            "schema": 'syntax = "proto3";',
            "schemaType": "PROTOBUF",
            "references": [{"name": "i.proto", "subject": "i", "version": 3}],
        },
        {"schema": "{}", "schemaType": "JSON", "references": []},
    ]
    assert server.said[1].path == "/registry/subjects/a/versions?normalize=true"
    assert (bad.exit_code, "NAME=SUBJECT:VERSION" in bad.stderr) == (exits.USAGE, True)


def test_an_incompatible_schema_is_told_why() -> None:
    refused = {"is_compatible": False, "messages": ["{errorType:'X'}"]}
    with scripted(answer(refused), answer({"is_compatible": True, "messages": []})) as server:
        no = ran(server.url, "check", "a", "-", given='"int"')
        yes = ran(server.url, "check", "a", "-", "--version", "latest", given='"int"')
    assert (no.exit_code, "{errorType:'X'}" in no.stderr) == (exits.REFUSED, True)
    assert (yes.exit_code, yes.stderr) == (0, "the schema is compatible with a\n")
    assert server.said[1].path == "/registry/compatibility/subjects/a/versions/latest?verbose=true"


def test_versions_and_subjects_are_deleted() -> None:
    with scripted(answer(3), answer([1, 2])) as server:
        one = ran(server.url, "delete", "a", "--version", "3")
        every = ran(server.url, "delete", "a", "--permanent")
    assert one.stderr == "deleted: a, version 3\n"
    assert every.stderr == "deleted for good: a, versions 1, 2\n"
    assert [(each.method, each.path) for each in server.said] == [
        ("DELETE", "/registry/subjects/a/versions/3"),
        ("DELETE", "/registry/subjects/a?permanent=true"),
    ]


def test_the_level_is_shown_and_set() -> None:
    full = answer({"compatibilityLevel": "FULL"})
    with scripted(full, answer({}), full) as server:
        shown = ran(server.url, "config")
        changed = ran(server.url, "config", "a", "--level", "full")
    assert shown.stderr == "FULL for all subjects without a level of their own\n"
    assert changed.stderr == "FULL for a\n"
    assert [(each.method, each.path.partition("?")[0]) for each in server.said] == [
        ("GET", "/registry/config"),
        ("PUT", "/registry/config/a"),
        ("GET", "/registry/config/a"),
    ]


def test_a_refusal_of_the_registry_is_shown() -> None:
    refused = answer({"error_code": 40401, "message": "Subject 'a' not found."}, 404)
    with scripted(refused) as server:
        found = ran(server.url, "get", "a")
    assert found.exit_code == exits.REFUSED
    assert "Subject 'a' not found." in found.stderr
