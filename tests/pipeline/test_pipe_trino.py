"""Trino over the Iceberg catalog of a real node: the requests that it makes, recorded and replayed,
and Trino itself where `TRINO_HOME` is set. With REWRITE=1 that run records them again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from worlds.pipeline import PipeWorld
from worlds.trino import Recorder, Trino, TrinoFailed, recording, running_trino

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

RECORDED = Path(__file__).parent / "trino_requests.json"
READ_ONLY = "only Polynya's jobs commit"
SNAPSHOTS = 'select snapshot_id, operation from "flights$snapshots" order by committed_at'
# statement -> its rows; {first}: the number of the first snapshot
READS: dict[str, list[list[Any]]] = {
    "show schemas": [["information_schema"], ["polynya"], ["system"]],
    "show tables": [["flights"], ["flights__dlq"]],
    "select count(*) from flights": [[5]],
    'select stream, "offset", n, o.x from flights where n > 2 order by 1': [
        ["flights/dl", 1, 4, [1]],
        ["flights/ua", 2, 5, None],
    ],
    "select s, count(*), sum(n) from flights group by s order by s": [
        ["a", 2, 5],
        ["b", 1, 2],
        ["c", 1, 5],
        [None, 1, None],
    ],
    'select to_utf8(\'{"n": 5, "s": "c"}\') = value from flights where n = 5': [[True]],
    "select cast(at as varchar), d from flights where at is not null": [
        ["2013-01-01 10:00:00.000000 UTC", "2013-01-01"]
    ],
    "select count(*) from flights__dlq": [[0]],
    "select count(*) from flights for version as of {first}": [[4]],
    "select count(*) from flights for timestamp as of current_timestamp": [[5]],
    'select count(*) from "flights$files"': [[2]],
    "select count(*) from information_schema.columns where table_schema = 'polynya'": [[28]],
}
REFUSED = {
    "insert into flights (stream) values ('x')": READ_ONLY,
    "delete from flights where n = 1": READ_ONLY,
    "alter table flights add column more bigint": READ_ONLY,
    "create table other (a bigint)": READ_ONLY,
    "create schema other": READ_ONLY,
    "drop table flights": READ_ONLY,
    "select * from absent": "does not exist",
}
COLUMNS = [
    ["stream", "varchar"],
    ["incarnation", "bigint"],
    ["offset", "bigint"],
    ["byte_offset", "bigint"],
    ["batch", "bigint"],
    ["timestamp", "timestamp(6) with time zone"],
    ["append_time", "timestamp(6) with time zone"],
    ["key", "varbinary"],
    ["headers", "array(row(key varchar, value varbinary))"],
    ["value", "varbinary"],
    ["n", "bigint"],
    ["n__string", "varchar"],
    ["o", "row(x array(bigint))"],
    ["s", "varchar"],
    ["at", "timestamp(6) with time zone"],
    ["d", "date"],
    ["x", "double"],
    ["b", "boolean"],
]


@pytest.fixture
def lake(world: PipeWorld) -> Iterator[PipeWorld]:
    """Yield a node with a table of two jobs."""
    world.start("--cores", "1")
    path = f"{world.node.url}/v1/tables/flights"
    assert world.http.put(path, json={"prefix": "flights/"}).status_code == 201
    first = {"n": 1, "at": "2013-01-01T10:00:00Z", "d": "2013-01-01", "s": "a"}
    world.append("flights/ua", first, {"n": 2, "s": "b", "x": 1.5, "b": True})
    world.append("flights/dl", {"n": "text"}, {"n": 4, "o": {"x": [1]}, "s": "a"})
    world.compact_here("flights")
    world.append("flights/ua", {"n": 5, "s": "c"})
    world.compact_here("flights")
    yield world
    world.check_exactly_once("flights")


def recorded() -> list[dict[str, Any]]:
    """The requests of all statements, in order."""
    return [each for found in json.loads(RECORDED.read_text()).values() for each in found]


def test_recorded_requests_get_answers(lake: PipeWorld) -> None:
    before = lake.table("flights")
    requests = recorded()
    assert len(requests) > 25 and {each["status"] for each in requests} == {200, 204, 403, 404}
    for each in requests:
        method, status = each["method"], each["status"]
        content = json.dumps(each["body"]).replace("{data}", str(lake.data))
        answer = lake.http.request(
            method, lake.node.url + each["path"], content=content if each["body"] else None
        )
        assert answer.status_code == status, (each, answer.text)
        if method == "HEAD" or status == 204:
            assert answer.content == b"", each
        elif status >= 400:
            error = answer.json()["error"]
            assert error["code"] == status and {"message", "type"} < set(error)
            assert status != 403 or READ_ONLY in error["message"], each
        else:
            _check_answer(lake, each["path"], answer.json())
    assert lake.table("flights") == before


def _check_answer(lake: PipeWorld, path: str, body: dict[str, Any]) -> None:
    """Check the response fields that Trino reads."""
    match path.partition("?")[0].split("/")[3:]:
        case ["config"]:
            assert body["overrides"] == {} and len(body["endpoints"]) == len(set(body["endpoints"]))
        case ["namespaces"]:
            assert body["namespaces"] == [["polynya"]] and body["next-page-token"] is None
        case ["namespaces", "polynya"]:
            assert body["namespace"] == ["polynya"]
        case ["namespaces", "polynya", "tables"]:
            names = [(one["namespace"], one["name"]) for one in body["identifiers"]]
            assert names == [(["polynya"], "flights"), (["polynya"], "flights__dlq")]
        case ["namespaces", "polynya", "tables", name]:
            table = lake.table("flights")
            pointer = table.iceberg_dlq if name.endswith("__dlq") else table.iceberg
            assert body["metadata-location"] == pointer and body["metadata"]["format-version"] == 2
            assert len(body["metadata"]["snapshots"]) == (0 if name.endswith("__dlq") else 2)
        case other:
            raise AssertionError(f"a request of another kind: {other}")


def test_metadata_that_trino_has_is_not_sent_again(lake: PipeWorld) -> None:
    paths = [each["path"] for each in recorded() if each["path"].endswith("?snapshots=all")]
    url = lake.node.url + paths[0]
    known = lake.http.get(url).headers["etag"]
    again = lake.http.get(url, headers={"if-none-match": known})
    assert (again.status_code, again.content) == (304, b"")
    lake.append("flights/ua", {"n": 6})
    lake.compact_here("flights")
    assert lake.http.get(url, headers={"if-none-match": known}).status_code == 200


@pytest.mark.long
def test_trino_reads_and_is_refused_with_the_reason(lake: PipeWorld, tmp_path: Path) -> None:
    with (
        recording(lake.node.url) as (url, recorder),
        running_trino(tmp_path / "trino", f"{url}/iceberg") as trino,
    ):
        _run_all(trino, recorder, lake.data)
        files = [path.name for path in lake.data.rglob("main/*/*") if path.is_file()]
        print(*files, sep="\n")
        lake.append("flights/ua", {"n": 6, "new": 7})
        lake.compact_here("flights")
        assert trino.query("select count(*), sum(new) from flights") == [[6, 7]]


def _run_all(trino: Trino, recorder: Recorder, data: Path) -> None:
    """Each statement, and the requests that it makes."""
    found: dict[str, list[dict[str, Any]]] = {}

    def noted(statement: str) -> None:
        text = json.dumps(recorder.taken()).replace(str(data), "{data}")
        found[statement] = json.loads(text)

    assert [row[:2] for row in trino.query("describe flights")] == COLUMNS
    noted("describe flights")
    snapshots = trino.query(SNAPSHOTS)
    noted(SNAPSHOTS)
    assert [row[1] for row in snapshots] == ["append", "append"]
    for statement, rows in READS.items():
        asked = statement.replace("{first}", str(snapshots[0][0]))
        assert trino.query(asked) == rows, asked
        noted(statement)
    for statement, reason in REFUSED.items():
        with pytest.raises(TrinoFailed, match=reason):
            trino.query(statement)
        noted(statement)
    if os.environ.get("REWRITE"):
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    assert _kinds(found) == _kinds(json.loads(RECORDED.read_text()))


def _kinds(found: dict[str, list[dict[str, Any]]]) -> dict[str, set[tuple[Any, ...]]]:
    """The requests of each statement without the bodies; some are sent a second time by chance."""
    return {
        statement: {(each["method"], each["path"], each["status"]) for each in requests}
        for statement, requests in found.items()
    }
