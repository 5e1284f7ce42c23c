"""Partitioned, rebuilt, replayed and derived tables, as their users make them: the command line, a
node, and Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from missing import needed_module
from pyiceberg.catalog.rest import RestCatalog
from worlds.pipeline import PipeWorld

from polynya.lakehouse.server.coordinator import HttpCoordinator

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")


def test_a_table_is_divided_replayed_and_rebuilt(world: PipeWorld) -> None:
    world.start()
    divided = ("--partition", "bucket(4, stream)")
    made = world.run("table", "create", "rides", "--prefix", "rides/", *divided)
    assert made.code == 0, made
    wrong = world.run("table", "create", "w", "--prefix", "w/", "--partition", "day(fare)")
    assert wrong.code == 1 and "--column fare:TYPE" in wrong.err, wrong
    for name in "abc":
        world.append(f"rides/{name}", *({"fare": n} for n in range(300)), {"fare": "free"})
    world.compact_here("rides")
    world.check_exactly_once("rides")
    old = world.table("rides")
    assert "bucket(4, stream)" in world.run("table", "describe", "rides").out
    assert "nothing to replay" in world.run("table", "replay-dlq", "rides").err
    assert world.run("table", "alter", "rides", "--column", "fare:string").code == 0
    world.replay_here("rides")
    world.check_exactly_once("rides")
    assert world.table("rides").location == old.location
    rebuilt = world.run("table", "rebuild", "rides", "--partition", "stream", "--json")
    assert rebuilt.code == 0, rebuilt
    world.check_exactly_once("rides")
    table = json.loads(world.run("table", "describe", "rides", "--json").out)
    assert table["location"] != old.location and table["partitions"] == ["stream"]
    assert (table["rows"], table["dead_rows"], table["files"]) == (903, 0, 3)
    read = RestCatalog("polynya", uri=f"{world.node.url}/iceberg").load_table("polynya.rides")
    assert [field.name for field in read.spec().fields] == ["stream"]
    assert read.scan(row_filter="stream = 'rides/a'").to_arrow().num_rows == 301
    world.append("rides/a", {"fare": 1})
    world.compact_here("rides")
    world.check_exactly_once("rides")


def test_a_derived_table_beside_another_of_the_same_streams(
    world: PipeWorld, tmp_path: Path
) -> None:
    """Each record once, also after its stream was deleted and created again. Spark is not needed:
    the rows stay as they are."""
    world.start()
    assert world.run("table", "create", "rides", "--prefix", "rides/").code == 0
    query = tmp_path / "fares.sql"
    query.write_text("select * from input;\n")
    for _ in range(2):  # a repeat succeeds
        made = world.run("table", "create", "fares", "--from", "rides/", "--sql", str(query))
        assert made.code == 0 and "'polynya table sync fares'" in made.err, made
    both = world.run("table", "create", "x", "--from", "x/", "--sql", str(query), "--hold")
    assert both.code == 2, both
    for number in range(3):
        for name in "abc":
            world.append(f"rides/{name}", *({"fare": n} for n in range(10)))
        assert world.tables()["fares"]["records_behind"] == 30
        (outcome,) = world.compact_here("fares")
        assert outcome.rows == 30
        if number == 0:
            world.compact_here("rides")
        world.check_exactly_once("fares")
    before = world.rows.copy()
    world.delete("rides/a")
    world.append("rides/a", *({"fare": n} for n in range(40)))
    listed = world.run("table", "ls").out
    assert "40 records behind" in listed, listed
    assert [outcome.rows for outcome in world.compact_here("fares")] == [40]
    assert world.compact_here("fares") == []
    coordinator = HttpCoordinator(world.node.admin, world.node.url, world.http)
    assert coordinator.plan("fares") is None  # no job is opened to find nothing
    world.check_exactly_once("fares", world.rows)
    assert sum(world.rows.values()) == sum(before.values()) + 40
    described = world.run("table", "describe", "fares").out
    assert "sql:select * from input" in described, described
    tables = {row["name"]: row for row in json.loads(world.run("table", "ls", "--json").out)}
    assert tables["fares"]["records_behind"] == 0 and tables["rides"]["records_behind"] == 80
    assert tables["fares"]["behind_seconds"] is None


def test_a_table_derived_from_another_one(world: PipeWorld, tmp_path: Path) -> None:
    """Each row of the source is there once, and the source is named. Spark is not needed: the rows
    stay as they are."""
    world.start()
    query = tmp_path / "each.sql"
    query.write_text("select * from input")
    sql = ("--sql", str(query))
    assert world.run("table", "create", "rides", "--prefix", "rides/").code == 0
    alone = world.run("table", "create", "a", "--from-table", "a", *sql)
    assert alone.code == 1 and "'a' cannot be derived from itself" in alone.err, alone
    none = world.run("table", "create", "a", "--from-table", "no", *sql)
    assert none.code == 1 and "there is no table 'no'" in none.err, none
    two = world.run("table", "create", "a", "--from-table", "rides", "--from", "rides/", *sql)
    assert two.code == 2 and "--from PREFIX or --from-table TABLE" in two.err, two
    for _ in range(2):  # a repeat succeeds
        made = world.run("table", "create", "copies", "--from-table", "rides", *sql)
        assert made.code == 0 and "each job reads the rows that are new in" in made.err, made
    keyed = ("--key", "stream", "--latest-by", "offset")
    assert world.run("table", "create", "last", "--from-table", "copies", *sql, *keyed).code == 0
    refused = world.run("table", "create", "all", "--from-table", "last", *sql, *keyed)
    assert refused.code == 1 and "leave the key out, and group by it" in refused.err, refused
    made = world.run("table", "create", "all", "--from-table", "last", *sql)
    assert "each job reads all rows of the table last" in made.err, made

    for _ in range(2):
        world.append("rides/a", *({"fare": n} for n in range(10)))
        world.compact_here("rides")
        assert world.tables()["copies"]["records_behind"] == 10
        done = [outcome.table.name for outcome in world.compact_here("copies")]
        assert done == ["copies"]
        world.check_exactly_once("copies")
    done = [(outcome.table.name, outcome.rows) for outcome in world.compact_here("all")]
    assert done == [("last", 20), ("all", 20)]
    coordinator = HttpCoordinator(world.node.admin, world.node.url, world.http)
    assert [coordinator.plan(name) for name in ("copies", "last", "all")] == [None] * 3

    world.append("rides/a", {"fare": 1})
    done = [(outcome.table.name, outcome.rows) for outcome in world.compact_here()]
    assert done == [("rides", 1), ("copies", 1), ("last", 1), ("all", 1)]
    tables = world.tables()
    assert {name: (each["source"], each["derived"]) for name, each in tables.items()} == {
        "rides": ("", ["copies"]),
        "copies": ("rides", ["last"]),
        "last": ("copies", ["all"]),
        "all": ("last", []),
    }
    assert [each["rows"] for each in tables.values()] == [21] * 4
    assert "copies" in world.run("table", "describe", "last").out.split("derived from", 1)[1]
    assert world.run("table", "create", "other", "--prefix", "other/").code == 0
    world.delete("rides/a")
    listed = world.run("table", "ls", "--rows-of", "rides/a", "--json").out
    # in the order in which they can be dropped
    assert [row["name"] for row in json.loads(listed)] == ["all", "last", "copies", "rides"]
    none = world.run("table", "ls", "--rows-of", "no/such")
    assert none.code == 0 and "no table has rows of no/such" in none.err, none
    kept = world.run("table", "drop", "rides", "--yes")
    assert kept.code == 1 and "copies is derived from 'rides': drop that first" in kept.err, kept
    for name in ("all", "last", "copies", "rides"):
        assert world.run("table", "drop", name, "--yes").code == 0
