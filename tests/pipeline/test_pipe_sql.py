"""`polynya table ls` and `polynya sql` as scripts use them."""

from __future__ import annotations

import json

import pytest
from long_tests import long
from worlds.pipeline import PipeWorld

from polynya.client import Client, Refused

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


def test_tables_are_listed_and_asked(world: PipeWorld) -> None:
    world.start()
    none = world.run("table", "ls", "--json")
    assert none.code == 0 and json.loads(none.out) == [], none
    world.run("table", "create", "flights", "--prefix", "flights/")
    world.run("table", "create", "carrier", "--prefix", "carriers/")
    world.append(
        "flights/UA",
        *({"carrier": "UA", "delay": number} for number in range(2500)),
        {"carrier": 7, "id": 2**62},
    )
    (fresh,) = [
        table
        for table in json.loads(world.run("table", "ls", "--json").out)
        if table["name"] == "flights"
    ]
    assert (fresh["iceberg"], fresh["delta"], fresh["rows"], fresh["records_behind"]) == (
        None,
        None,
        0,
        2501,
    )
    unbuilt = world.run("sql", "select * from flights")
    assert unbuilt.code == 0 and "2,501 records" in unbuilt.err, unbuilt
    untyped = world.run("sql", "select carrier from flights")
    assert (
        untyped.code == 1
        and "polynya table sync carrier flights" in untyped.err
        and "Traceback" not in untyped.err
    ), untyped
    world.compact_here("flights")
    world.append("flights/AA", {"carrier": "AA", "delay": 1})
    (built,) = [
        table
        for table in json.loads(world.run("table", "ls", "--json").out)
        if table["name"] == "flights"
    ]
    assert {
        "name",
        "prefix",
        "iceberg",
        "delta",
        "streams",
        "rows",
        "behind_seconds",
    } <= built.keys()
    assert (
        built["iceberg"].endswith(".metadata.json")
        and built["delta"].endswith("/main")
        and built["iceberg"].startswith("file:///")
    )
    assert (built["prefix"], built["streams"], built["rows"], built["records_behind"]) == (
        "flights/",
        2,
        2501,
        1,
    )
    assert built["behind_seconds"] > 0

    counted = world.run(
        "sql", "--json", "select carrier, count(*) as n from flights group by all order by n desc"
    )
    assert counted.code == 0 and json.loads(counted.out) == [
        {"carrier": "UA", "n": 2500},
        {"carrier": None, "n": 1},
    ], counted
    assert "flights is 1 record" in counted.err and "behind" in counted.err, counted
    assert "carrier is up to date" in counted.err
    piped = world.run("sql", "-", stdin=b'select max("offset") from flights')
    assert piped.code == 0 and "2500" in piped.out and "behind" in piped.err, piped
    large = world.run(
        "sql", "--json", 'select "offset", delay, value, headers from flights order by "offset"'
    )
    rows = json.loads(large.out)
    assert [row["offset"] for row in rows] == list(range(2501)) and rows[3][
        "value"
    ] == '{"carrier": "UA", "delay": 3}'
    with Client(world.node.url) as client:
        (flights,) = [table for table in client.tables() if table.name == "flights"]
        assert (flights.rows, flights.records_behind) == (2501, 1)
        answer = client.sql("select carrier, count(*) as n from flights group by all", rows=1)
        assert [column.name for column in answer.columns] == ["carrier", "n"]
        assert len(answer.dicts) == 1 and answer.truncated
        assert client.create_table("flights", "flights/").job == client.table("flights").job == 1
        with pytest.raises(Refused, match="no table 'nothing'"):
            client.table("nothing")
    many = world.run("sql", "--json", "select 1 as x from range(10001)")
    assert len(json.loads(many.out)) == 10_000 and "polynya sql --local" in many.err, many
    odd = world.run(
        "sql",
        "--local",
        "--json",
        "select 1 as x, 2 as x, 10::hugeint ** 2, 170141183460469231731687303715884105727 as big, "
        "date '2020-01-02' as d",
    )
    assert (
        json.loads(odd.out)[0] | {"x": 1, "x_2": 2, "big": 2**127 - 1, "d": "2020-01-02"}
        == json.loads(odd.out)[0]
    ), odd
    empty = world.run("sql", "--json", "select * from flights where delay < 0")
    assert empty.code == 0 and json.loads(empty.out) == [], empty
    local = world.run("sql", "--local", "select count(*) from flights")
    assert local.code == 0 and "2501" in local.out and "1 record" in local.err, local
    wrong = world.run("sql", "--local", "select * from fligths")
    assert wrong.code == 1 and "The tables are" in wrong.err, wrong


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("selec 1", "syntax error"),
        ("select * from fligths", "The tables are: flights"),
        ("select nothing from flights", "nothing"),
        ("drop table flights", "one SELECT"),
        *long(
            [
                ("insert into flights values (1)", "one SELECT"),
                ("create table x as select * from flights", "one SELECT"),
                ("copy (select 1) to '/tmp/polynya-should-not-be-there'", "one SELECT"),
                ("select 1; select 2", "one SELECT"),
                ("", "one SELECT"),
                ("select offset from flights", "offset"),
            ]
        ),
    ],
)
def test_wrong_questions_are_told_as_such(asked: PipeWorld, statement: str, message: str) -> None:
    refused = asked.run("sql", statement)
    assert (
        refused.code == 1
        and message in refused.err
        and "Traceback" not in refused.err
        and not refused.out
    ), refused


def test_dead_letters_say_why(asked: PipeWorld) -> None:
    found = asked.run("sql", "--json", "select reason, field, value from flights__dlq")
    assert found.code == 0 and json.loads(found.out) == [
        {"reason": "not_object", "field": None, "value": "17"}
    ], found
    assert "flights is up to date" in found.err


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> object:
    made = PipeWorld(tmp_path_factory.mktemp("asked") / "data")
    try:
        made.start()
        made.run("table", "create", "flights", "--prefix", "flights/")
        made.append("flights/UA", {"n": 1}, 17)
        made.compact_here()
        yield made
    finally:
        made.close()
