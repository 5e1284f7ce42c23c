"""Types that are tried before a table is made, and snapshots that are named and read later."""

from __future__ import annotations

import json

import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
COUNT = "select count(*) as n, max(price) as most from orders"


def test_a_table_is_tried_and_its_states_are_read_later(world: PipeWorld) -> None:
    world.start()
    world.append("orders/eu", {"price": "1.25", "id": 1}, {"price": 2.505, "id": 2})
    wanted = ("--prefix", "orders/", "--column", "price:decimal(9, 2)", "--column", "id:int")
    tried = world.run("table", "create", "orders", *wanted, "--dry-run", "--json")
    assert tried.code == 0 and world.tables() == {}, tried
    report = json.loads(tried.out)
    assert [(each["column"], each["values"], each["unfit"]) for each in report["columns"]] == [
        ("price", 1, 1),
        ("id", 2, 0),
    ]
    assert [each["offset"] for each in report["problems"][0]["examples"]] == [1]
    assert world.run("table", "create", "orders", *wanted, "--keep-snapshots", "5").code == 0
    assert world.run("table", "create", "orders", *wanted, "--records", "5").code == 2
    world.compact_here("orders")
    tagged = world.run("table", "tag", "orders", "first")
    assert tagged.code == 0, tagged
    world.append("orders/eu", {"price": 9.5, "id": 3})
    world.compact_here("orders")
    jobs = json.loads(world.run("table", "history", "orders", "--json").out)
    assert [(job["job"], job["tags"]) for job in jobs] == [(2, []), (1, ["first"])]
    for as_of, rows in (("first", (2, 1.25)), (jobs[0]["snapshot"], (3, 9.5))):
        for where in ((), ("--local",)):
            result = world.run("sql", "--json", "--as-of", as_of, *where, COUNT)
            found = [(row["n"], float(row["most"])) for row in json.loads(result.out)]
            assert found == [rows], result
    dead = world.run("sql", "--json", "--as-of", "first", "select field from orders__dlq")
    assert json.loads(dead.out) == [{"field": "price"}]
    never = world.run("sql", "--as-of", "2020-01-01", COUNT)
    assert never.code == 1 and "the first one that is kept is of 20" in never.err, never
    assert world.run("table", "untag", "orders", "first").code == 0
    checked = world.run("table", "check", "orders", "--column", "id:long")
    assert checked.code == 1 and "a declared type never changes" in checked.err, checked
