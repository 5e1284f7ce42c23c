"""Tables that are altered, renamed and dropped, as their users do it."""

from __future__ import annotations

import json

import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_a_table_is_altered_renamed_and_dropped(world: PipeWorld) -> None:
    world.start()
    schema = world.data.parent / "flights.json"
    schema.write_text('{"type": "object", "properties": {"gate": {"type": "string"}}}')
    made = world.run("table", "create", "flights", "--prefix", "flights/", "--schema", str(schema))
    assert made.code == 0, made
    assert "no job yet" in world.run("table", "history", "flights").err
    world.append("flights/UA", *({"gate": number, "delay": number} for number in range(20)))
    world.compact_here("flights")
    altered = world.run("table", "alter", "flights", "--column", "landed:timestamptz", "--hold")
    assert altered.code == 0, altered
    refused = world.run("table", "alter", "flights", "--column", "gate:long")
    assert refused.code == 1 and "gate' is declared as string" in refused.err, refused
    assert world.run("table", "alter", "flights").code == 2
    assert world.run("table", "rename", "flights", "departures").code == 0
    world.append("flights/UA", {"gate": "A1", "landed": "2026-01-02T03:04:05Z"})
    world.compact_here("departures")
    world.check_exactly_once("departures")
    columns = json.loads(world.run("table", "schema", "departures", "--json").out)
    assert {"landed": "timestamptz", "delay": "long", "gate": "string"}.items() <= {
        column["name"]: column["type"] for column in columns
    }.items()
    jobs = json.loads(world.run("table", "history", "departures", "--json").out)
    assert [(job["job"], job["rows"], job["operation"]) for job in jobs] == [
        (2, 1, "append"),
        (1, 20, "append"),
    ]
    unsure = world.run("table", "drop", "departures", stdin=b"")
    assert unsure.code == 2 and "--yes" in unsure.err, unsure
    dropped = world.run("table", "drop", "departures", "--yes")
    assert dropped.code == 0 and world.tables() == {}, dropped
    assert world.run("table", "schema", "departures").code == 1
    world.run("table", "create", "departures", "--prefix", "flights/")
    world.compact_here("departures")
    world.check_exactly_once("departures")


def test_small_files_are_merged_as_the_settings_say(world: PipeWorld) -> None:
    world.start("--lake-merge-files", "3")
    assert world.run("table", "create", "logs", "--prefix", "logs/").code == 0
    for number in range(3):
        world.append("logs/a", {"n": number, f"f{number}": {"x": [number]}}, [number])
        world.compact_here("logs")
        world.check_exactly_once("logs")
    described = json.loads(world.run("table", "describe", "logs", "--json").out)
    assert (described["files"], described["merges"], described["files_merged"]) == (1, 1, 6)
    jobs = json.loads(world.run("table", "history", "logs", "--json").out)
    assert [(job["operation"], job["rows"], job["files_merged"]) for job in jobs] == [
        ("replace", 0, 3),
        ("append", 2, 0),
        ("append", 2, 0),
        ("append", 2, 0),
    ]
    assert "1 (of 6 files)" in world.run("table", "describe", "logs").out
    merged = world.run("table", "merge", "logs")
    assert "no partition of table logs has two small files" in merged.err, merged
    world.append("logs/a", {"n": 3})
    world.compact_here("logs")
    assert world.table("logs").job == 5, "a merge was job 4, and one more file is not enough"
    world.check_exactly_once("logs")
