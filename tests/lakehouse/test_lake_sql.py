"""Questions through DuckDB."""

from __future__ import annotations

import msgspec
import pytest
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import BLOCK_ROWS, BadQuery, ask, query


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[TableRef]:
    lake = Lake(str(tmp_path_factory.mktemp("sql") / "it's a store"))
    lake.source.append("air/ua", [b'{"n":1,"at":"2013-01-01T10:00:00Z"}', b"17"])
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    lake.source.append("air/ua", [b'{"n":2,"more":{"x":[1]}}', b'{"n":"\xff"}'])
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    return lake.coordinator.tables()


def test_typed_columns_and_exact_values(tables: list[TableRef]) -> None:
    answer = query(
        tables, 'select n, "at", more, value_text, "offset" from flights order by "offset"'
    )
    assert answer.columns == ["n", "at", "more", "value_text", "offset"]
    assert answer.types[:2] == ["BIGINT", "TIMESTAMP WITH TIME ZONE"]
    assert [row[0] for row in answer.rows] == [1, None, 2, None]
    assert str(answer.rows[0][1]).startswith("2013-01-01 10:00:00")
    assert answer.rows[2][2] == {"x": [1]}
    assert [row[3] for row in answer.rows] == [
        '{"n":1,"at":"2013-01-01T10:00:00Z"}',
        "17",
        '{"n":2,"more":{"x":[1]}}',
        None,
    ]


def test_dead_letters_are_a_table(tables: list[TableRef]) -> None:
    answer = query(tables, 'select reason, "offset" from FLIGHTS__dlq order by "offset"')
    assert answer.rows == [("not_object", 1), ("bad_text", 3)]


@pytest.mark.parametrize(
    "statement",
    ["drop view flights", "select 1; select 2", "copy (select 1) to '/tmp/x'", "attach 'x'", ""],
)
def test_only_one_question_at_a_time(tables: list[TableRef], statement: str) -> None:
    with pytest.raises(BadQuery, match="SELECT"):
        query(tables, statement)


def test_an_unknown_table_is_told_with_those_that_there_are(tables: list[TableRef]) -> None:
    with pytest.raises(BadQuery, match="The tables are: flights"):
        query(tables, "select * from fligths")


def test_a_table_that_was_never_built_says_what_to_run() -> None:
    fresh = [TableRef("1", "fresh", "", "tables/1")]
    assert query(fresh, "select count(*) from fresh").rows == [(0,)]
    with pytest.raises(BadQuery, match="polynya table sync fresh"):
        query(fresh, "select price from fresh")


def test_a_table_without_rows_has_the_columns_of_one_with_rows(tables: list[TableRef]) -> None:
    fresh = TableRef("8", "fresh", "n/", "tables/8")
    for part in ("", "__dlq"):
        empty, full = (
            query([fresh, *tables], f"select * from {name}{part} limit 0")
            for name in ("fresh", "flights")
        )
        own = dict(zip(full.columns, full.types, strict=True))
        assert dict(zip(empty.columns, empty.types, strict=True)) == {
            name: own[name] for name in empty.columns
        }
        assert set(own) - set(empty.columns) <= {"n", "at", "more"}


def test_a_table_that_was_never_built_may_be_named_like_a_column(tables: list[TableRef]) -> None:
    others = [TableRef("8", "n", "n/", "tables/8"), TableRef("9", "more", "m/", "tables/9")]
    assert query([*others, *tables], "select count(n), count(more) from flights").rows == [(2, 1)]
    assert query([*others, *tables], "select * from more__dlq").rows == []


def test_of_two_tables_that_differ_in_case_the_one_that_is_spelled(tables: list[TableRef]) -> None:
    twin = msgspec.structs.replace(
        tables[0], uid="9", name="Flights", iceberg=tables[0].iceberg_dlq
    )
    for listed in ([twin, *tables], [*tables, twin]):
        assert query(listed, "select count(*) from flights").rows == [(4,)]
        assert query(listed, "select count(*) from Flights").rows == [(2,)]
        with pytest.raises(BadQuery, match="differ only in case"):
            query(listed, "select * from flights, Flights")


def test_an_answer_comes_in_blocks(tables: list[TableRef]) -> None:
    with ask(
        tables, "select i from range(100_000_000_000) as r(i), (select 1 from flights limit 1)"
    ) as found:
        block = next(found.blocks)
    assert len(block) == BLOCK_ROWS


def test_an_answer_may_fail_on_the_way(tables: list[TableRef]) -> None:
    statement = "select if(i = 5_000_000, error('so far'), i) from range(9_000_000) as r(i)"
    # DuckDB tells the error of any of its threads, also of one that the failed one has stopped
    with pytest.raises(BadQuery, match=r"so far|Interrupted"), ask(tables, statement) as found:
        assert all(found.blocks)
