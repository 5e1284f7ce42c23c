"""Streams and tables over several jobs on a real server: new and conflicting fields, forks, other
incarnations of a name, longer prefixes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def make(world: PipeWorld, name: str, prefix: str) -> None:
    answer = world.http.put(f"{world.node.url}/v1/tables/{name}", json={"prefix": prefix})
    assert answer.status_code == 201, answer.text


def typed(world: PipeWorld, name: str, column: str) -> dict[tuple[str, int], object]:
    """The values of a column that are there, by stream and record."""
    rows = world.iceberg(name)
    assert [(row["stream"], row["offset"], row.get(column)) for row in rows] or not rows
    return {
        (row["stream"], row["offset"]): row[column] for row in rows if row.get(column) is not None
    }


def test_fields_come_and_clash_over_the_jobs(world: PipeWorld) -> None:
    world.start("--cores", "2")
    make(world, "things", "things/")
    world.append("things/a", {"n": 1, "o": {"x": 1}}, {"n": 2, "l": [1, 2]})
    world.create("things/empty")
    world.compact_here("things")
    world.check_exactly_once("things")
    world.append(
        "things/a",
        {"n": 0.5, "o": {"x": "word", "y": [{"z": 1}]}},
        {"n": "three", "offset": 9, "N": 4},
    )
    world.append("things/b", *({"n": f"text {number}"} for number in range(300)))
    world.compact_here("things")
    world.append(
        "things/a",
        {"l": ["w", None, 3]},
        {"o": None, "n": None},
        {"o": []},
        {"o": 7, "l": {"q": 1}},
        {},
    )
    world.append("things/a", 17, "text", [1], None, True)
    world.compact_here("things")
    world.check_exactly_once("things")
    assert typed(world, "things", "n") == {("things/a", 0): 1, ("things/a", 1): 2}
    assert typed(world, "things", "n__double") == {("things/a", 2): 0.5}
    assert len(typed(world, "things", "n__string")) == 301
    assert typed(world, "things", "offset_2") == {("things/a", 3): 9}
    assert world.compact_here("things") == []
    table = world.tables()["things"]
    assert (table["rows"], table["streams"], table["records_behind"]) == (
        sum(world.rows.values()),
        3,
        0,
    )


def test_streams_that_are_not_json_are_rows_too(world: PipeWorld) -> None:
    world.start()
    make(world, "mixed", "mixed/")
    world.append("mixed/text", b"not {json", content_type="text/plain")
    world.append("mixed/text", b"\xff\xfe broken", content_type="text/plain")
    world.append("mixed/blob", bytes(range(256)), content_type="application/octet-stream")
    world.append("mixed/nd", b'{"a": 1}\n{"a": 2}\n', content_type="application/x-ndjson")
    world.append("mixed/json", {"a": 1})
    world.compact_here("mixed")
    world.append("mixed/blob", b"\0" * 300_000, content_type="application/octet-stream")
    world.append("mixed/json", {"a": 2})
    world.compact_here("mixed")
    world.check_exactly_once("mixed")
    assert typed(world, "mixed", "a") == {("mixed/json", 0): 1, ("mixed/json", 1): 2}
    assert world.iceberg("mixed", "dlq") == []


def test_a_fork_has_its_own_records_only(world: PipeWorld) -> None:
    world.start("--cores", "2")
    make(world, "forks", "forks/")
    world.append("forks/source", *({"n": number} for number in range(10)))
    world.compact_here("forks")
    world.append("forks/source", {"n": 10})
    forked = world.create("forks/fork", stream_forked_from="/v1/stream/forks/source")
    assert forked.status_code == 201
    world.tails["forks/fork"] = 11
    world.append("forks/fork", {"n": "fork"})
    world.append("forks/source", {"n": 11})
    assert world.tables()["forks"]["records_behind"] == 3
    world.compact_here("forks")
    world.check_exactly_once("forks")
    assert world.tables()["forks"]["records_behind"] == 0


def test_another_life_of_a_name_has_rows_of_its_own(world: PipeWorld) -> None:
    world.start()
    make(world, "lives", "lives/")
    for life in range(3):
        world.append("lives/one", {"life": life}, {"life": "x" * life})
        if life != 1:  # the second life ends before any job saw it
            world.compact_here("lives")
        world.delete("lives/one")
        if life == 1:
            world.rows -= Counter(
                {("lives/one", 0, b'{"life": 1}'): 1, ("lives/one", 1, b'{"life": "x"}'): 1}
            )
    assert world.compact_here("lives") == []
    world.check_exactly_once("lives")
    assert len({row["incarnation"] for row in world.iceberg("lives")}) == 2


def test_many_tiny_streams_and_a_longer_prefix_later(world: PipeWorld) -> None:
    world.start("--cores", "2")
    make(world, "everything", "")
    for number in range(300):
        world.append(f"events/{number % 3}/{number:03d}", {"n": number})
    world.append("plain", {"n": "in the bucket default"})
    world.compact_here("everything")
    world.check_exactly_once("everything")
    before = world.rows.copy()
    for number in range(0, 300, 7):
        world.append(f"events/{number % 3}/{number:03d}", {"n": number, "again": True})
    make(world, "ones", "events/1/")
    world.append("events/1/new", {"n": 1})
    world.compact_here()
    world.append("events/1/001", {"n": "third"})
    world.compact_here()
    rows = {
        name: Counter((row["stream"], row["offset"], row["value"]) for row in world.iceberg(name))
        for name in ("everything", "ones")
    }
    assert rows["everything"] + rows["ones"] == world.rows
    assert not rows["everything"] & rows["ones"] and all(
        stream.startswith("events/1/") for stream, _, _ in rows["ones"]
    )
    assert before & rows["everything"] == before
    for name, counted in rows.items():
        world.check_exactly_once(name, counted)
    assert [table["records_behind"] for table in world.tables().values()] == [0, 0]


def test_a_word_without_a_slash_means_names_of_the_bucket_default(world: PipeWorld) -> None:
    world.start()
    make(world, "words", "fli")
    make(world, "flights", "flights/")
    world.append("flight", {"a": 1})
    world.append("flights/ua", {"a": 2})
    world.append("default/flip", {"a": 3})
    world.compact_here()
    assert {row["stream"] for row in world.iceberg("words")} == {"flight", "flip"}
    assert {row["stream"] for row in world.iceberg("flights")} == {"flights/ua"}


def test_a_records_exact_bytes_are_its_value(world: PipeWorld) -> None:
    world.start()
    make(world, "exact", "exact/")
    world.create("exact/a")
    records = [
        b'{"a" : 100 ,  "b":"\\u00e9"}',
        '{"a":9007199254740993, "é":"ü"}'.encode(),
        b'{"a":1,"a":2}',
        b'{"a":-1}',
    ]
    records += [b'{"s":"\\ud800"}', b'{"d":' + b"[" * 100 + b"]" * 100 + b"}"]
    answer = world.http.post(
        f"{world.node.url}/v1/stream/exact/a",
        content=b"[" + b" ,\n".join(records) + b"]",
        headers={"content-type": "application/json"},
    )
    assert answer.status_code in (200, 204), answer.text
    world.note("exact/a", records)
    world.compact_here("exact")
    world.check_exactly_once("exact")
    assert {row["reason"] for row in world.iceberg("exact", "dlq")} >= {"duplicate_field"}
    assert json.loads(records[1])["a"] == typed(world, "exact", "a")["exact/a", 1]
