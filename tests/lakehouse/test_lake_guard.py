"""Hostile SQL on tables: each of the guard's two walls alone, and the surrounding process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from product import environment
from worlds.lakehouse import Lake

from polynya.lakehouse.jobs.plan import TableRef
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.policy import BadQuery, Bounds, check_names, lock
from polynya.lakehouse.sql.query import ask

BOUNDS = Bounds(memory_bytes=256 << 20)
TABLES = ["flights", "flights__dlq"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> list[TableRef]:
    lake = Lake(str(tmp_path_factory.mktemp("guard") / "it's a store"))
    lake.source.append(
        "air/ua", [b'{"n":1,"at":"2013-01-01T10:00:00Z","big":9007199254740993}', b"17"]
    )
    compact(lake.coordinator, [], lambda: lake.runner, lambda step, message: None)
    return lake.coordinator.tables()


def rows(tables: list[TableRef], statement: str) -> list[tuple[Any, ...]]:
    with ask(tables, statement, {}, BOUNDS) as found:
        return [row for block in found.blocks for row in block]


@pytest.mark.parametrize(
    ("statement", "count"),
    [
        ("select n from flights", 2),
        ("from FLIGHTS__dlq", 1),
        ("with f as (select * from flights), g as (from f) select * from g join f using (n)", 1),
        ("select * from flights, unnest([1, 2]) as u(x)", 4),
        ("select * from range(3)", 3),
        ("describe flights", 14),
        ("select (select max(n) from flights)", 1),
        ("with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) from t", 5),
        ("values (1), (2)", 2),
        ("select a.n from flights as a where exists (from flights as b where a.n = b.n)", 1),
    ],
)
def test_questions_to_tables_are_answered(
    tables: list[TableRef], statement: str, count: int
) -> None:
    assert len(rows(tables, statement)) == count


BREAKOUTS = [
    "from read_text('/etc/passwd')",
    "from read_blob('/proc/self/environ')",
    "from '/etc/passwd'",
    "from 'file:///etc/passwd'",
    "from 'x.parquet'",
    'from "/etc/passwd"',
    "from glob('/etc/*')",
    "from sniff_csv('/etc/passwd')",
    "from read_csv('http://127.0.0.1:1/x')",
    "from read_parquet('s3://bucket/x')",
    "from iceberg_scan('/etc')",
    "from iceberg_metadata('/etc')",
    "from parquet_metadata('/etc/passwd')",
    "from query('select 1')",
    "from query_table('flights')",
    "from duckdb_secrets()",
    "from duckdb_settings()",
    "from enable_logging(storage='file', storage_path='/tmp/log')",
    "from information_schema.tables",
    "from pg_catalog.pg_class",
    "from main.flights",
    "from sqlite_master",
    "from other",
    "show tables",
    "show all tables",
    "pragma version",
    "select current_setting('allowed_directories')",
    "select getenv('HOME')",
    "select write_log('x')",
    "select (select content from read_text('/etc/passwd'))",
    "select * from flights where exists (from sniff_csv('/etc/passwd'))",
    "with a as (from read_text('/etc/passwd')) from a",
    "from flights, lateral (from read_csv('/etc/passwd'))",
    "select * from flights order by (select count(*) from glob('/*'))",
    "select [x.content for x in (select list(t) from read_text('/etc/passwd') t)]",
    "from (values (1)) v(a) union all from glob('/*')",
    "from flights semi join read_text('/etc/passwd') using (n)",
]


@pytest.mark.parametrize("statement", BREAKOUTS)
def test_the_tree_names_tables_alone(tables: list[TableRef], statement: str) -> None:
    with pytest.raises(BadQuery):
        check_names(duckdb.connect(), statement, TABLES)


@pytest.mark.parametrize(
    "statement",
    [
        "drop view flights",
        "select 1; select 2",
        "copy (select 1) to '/tmp/x'",
        "attach 'x'",
        "load httpfs",
        "",
    ],
)
def test_only_one_select_is_a_question(tables: list[TableRef], statement: str) -> None:
    with pytest.raises(BadQuery, match="SELECT"):
        rows(tables, statement)


READS_A_FILE = [
    statement
    for statement in BREAKOUTS
    if "/etc" in statement or "/proc" in statement or "glob" in statement or "://" in statement
]


@pytest.mark.parametrize("statement", READS_A_FILE)
def test_the_lock_holds_without_the_tree(tmp_path: Path, statement: str) -> None:
    connection = duckdb.connect()
    connection.execute("create table flights (n int)")
    lock(connection, [str(tmp_path) + "/"], BOUNDS)
    with pytest.raises(duckdb.Error):
        connection.execute(statement).fetchall()
    assert connection.execute("select count(*) from flights").fetchone() == (0,)


def test_the_lock_leaves_what_it_should_and_cannot_be_opened(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "x.txt").write_text("here")
    connection = duckdb.connect()
    lock(connection, [f"{inside}/"], BOUNDS)
    assert connection.execute(f"select content from read_text('{inside}/x.txt')").fetchone() == (
        "here",
    )
    for statement in (
        f"from read_text('{outside}/x.txt')",
        f"from read_text('{inside}/../out/x.txt')",
        f"copy (select 1) to '{outside}/y'",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement).fetchall()
    for statement in (
        "set enable_external_access = true",
        "reset allowed_directories",
        "set memory_limit = '9GB'",
        "install httpfs",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(statement)


def test_a_table_that_was_not_given_is_not_there(tables: list[TableRef]) -> None:
    with pytest.raises(BadQuery, match="no table 'flights'"):
        rows([], "select count(*) from flights")


def in_process(tables: list[TableRef], sql: str, **more: Any) -> tuple[int, dict[str, Any]]:
    asked = {
        "sql": sql,
        "tables": tables,
        "environment": {},
        "rows": 3,
        "answer_bytes": 1 << 20,
        "memory_bytes": 256 << 20,
        "seconds": 20.0,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "polynya.lakehouse.sql.process"],
        input=msgspec.json.encode(asked | more),
        capture_output=True,
        env=environment(),
        timeout=60,
        check=False,
    )
    return done.returncode, msgspec.json.decode(done.stdout) if done.stdout else {
        "stderr": done.stderr.decode()
    }


@pytest.mark.process
def test_the_process_answers(tables: list[TableRef]) -> None:
    code, answer = in_process(
        tables,
        'select n, "at", big, value, 1.5::decimal(4, 2) as d, map {1: 2} as m from flights order '
        'by "offset"',
    )
    assert (code, answer["kind"], answer["truncated"]) == (0, "answer", False)
    assert [column["name"] for column in answer["columns"]] == ["n", "at", "big", "value", "d", "m"]
    assert answer["rows"][0] == [
        1,
        "2013-01-01T10:00:00Z",
        9007199254740993,
        '{"n":1,"at":"2013-01-01T10:00:00Z","big":9007199254740993}',
        "1.50",
        {"1": 2},
    ]


@pytest.mark.process
def test_an_answer_is_cut_at_its_rows_and_bytes(tables: list[TableRef]) -> None:
    _, answer = in_process(tables, "from range(4)")
    assert (answer["rows"], answer["truncated"]) == ([[0], [1], [2]], True)
    _, answer = in_process(tables, "from range(3)")
    assert (answer["rows"], answer["truncated"]) == ([[0], [1], [2]], False)
    _, answer = in_process(tables, "select repeat('x', 400_000) from range(3)")
    assert (len(answer["rows"]), answer["truncated"]) == (2, True)
    _, answer = in_process(tables, "select repeat('x', 2_000_000)")
    assert answer["code"] == "SQL_INVALID" and "one row" in answer["message"]


@pytest.mark.process
def test_memory_is_bounded(tables: list[TableRef]) -> None:
    code, answer = in_process(tables, "select list(i) from range(100_000_000) as t(i)")
    assert (code, answer["code"]) == (0, "SQL_TOO_LARGE")


@pytest.mark.process
def test_time_is_bounded(tables: list[TableRef]) -> None:
    code, _ = in_process(
        tables,
        "select sum(a.i * b.i) from range(100_000_000) a(i), range(1_000_000) b(i)",
        seconds=1.0,
    )
    assert code < 0
