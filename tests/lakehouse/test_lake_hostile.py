"""A hundred hostile statements: each layer of the guard alone against external access, and the
process against endless ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from long_tests import every_nth
from product import environment

from polynya.admin.workers.sql_worker import NO_MEMORY_TO_LINK
from polynya.lakehouse.sql.policy import BadQuery, Bounds, check_names, lock
from polynya.lakehouse.sql.process import DATA_BYTES_EXTRA
from polynya.lakehouse.sql.query import _check as check_statement

SECRET = "canary-5e1f"
TABLES = ["flights", "flights__dlq"]
MEMORY = 64 << 20

FILES = [
    "from '{outside}/secret.csv'",
    'from "{outside}/secret.csv"',
    "from 'file://{outside}/secret.csv'",
    "from 'file:{outside}/secret.csv'",
    "from '{outside}/*.csv'",
    "from '{outside}/**/*.csv'",
    "from '{inside}/../out/secret.csv'",
    "from '{inside}/link.csv'",
    "from ['{outside}/secret.csv']",
    "from read_text('{outside}/secret.csv')",
    "from read_text(['{inside}/open.csv', '{outside}/secret.csv'])",
    "from read_blob('{outside}/secret.csv')",
    "from read_blob('/proc/self/environ')",
    "from read_text('/proc/self/cmdline')",
    "from read_text('/dev/stdin')",
    "from read_csv('{outside}/secret.csv')",
    "from read_csv_auto('{outside}/secret.csv')",
    "from read_csv('{outside}/secret.csv', rejects_table='r', store_rejects=true)",
    "from read_json('{outside}/secret.csv')",
    "from read_json_objects('{outside}/secret.csv')",
    "from read_ndjson_auto('{outside}/secret.csv')",
    "from read_parquet('{outside}/secret.csv')",
    "from parquet_scan('{outside}/secret.csv')",
    "from parquet_metadata('{outside}/secret.csv')",
    "from parquet_schema('{outside}/secret.csv')",
    "from sniff_csv('{outside}/secret.csv')",
    "from glob('{outside}/*')",
    "from read_duckdb('{outside}/secret.csv')",
    "from read_csv('http://127.0.0.1:9/x.csv')",
    "from 'https://127.0.0.1:9/x.parquet'",
    "from read_parquet('s3://bucket/x.parquet')",
    "from query('from read_text(''{outside}/secret.csv'')')",
    "from query_table('{outside}/secret.csv')",
    "select (select content from read_text('{outside}/secret.csv'))",
    "select * from flights where exists (from read_text('{outside}/secret.csv'))",
    "select * from flights, lateral (from read_text('{outside}/secret.csv'))",
    "select n from flights order by (select content from read_text('{outside}/secret.csv'))",
    "select n from flights group by n having (select count(*) from "
    "read_text('{outside}/secret.csv')) > 0",
    "select sum(n) over (order by (select content from read_text('{outside}/secret.csv'))) from "
    "flights",
    "select [x for x in (select list(content) from read_text('{outside}/secret.csv'))]",
    "with t as (from read_text('{outside}/secret.csv')) from t",
    "with recursive t(c) as (select content from read_text('{outside}/secret.csv') union from t) "
    "from t",
    "values ((select content from read_text('{outside}/secret.csv')))",
    "from (summarize from read_text('{outside}/secret.csv'))",
    "from (describe from read_text('{outside}/secret.csv'))",
    "from json_execute_serialized_sql(json_serialize_sql('from "
    "read_text(''{outside}/secret.csv'')'))",
    """select * from (with "{outside}/secret.csv" as (select 1) from "{outside}/secret.csv") q, "{outside}/secret.csv" """,
    """with "\ufb01le:{outside}/secret.csv" as (select 1) from "file:{outside}/secret.csv" """,
]
ACTS = [
    "copy (select 1) to '{outside}/new.csv'",
    "copy flights to '{outside}/new.parquet' (format parquet)",
    "copy flights from '{outside}/secret.csv'",
    "export database '{outside}/new'",
    "import database '{outside}'",
    "attach '{outside}/new.db'",
    "attach '{outside}/secret.csv' as other (read_only)",
    "attach ':memory:' as other; copy (select 1) to '{outside}/new.csv'",
    "load httpfs",
    "load '{outside}/secret.csv'",
    "install httpfs",
    "force install httpfs from 'http://127.0.0.1:9'",
    "set enable_external_access = true",
    "set global allowed_directories = ['/']",
    "reset allowed_directories",
    "set memory_limit = '99GB'",
    "set threads = 64",
    "set temp_directory = '{outside}'",
    "set lock_configuration = false",
    "set allow_unsigned_extensions = true",
    "pragma memory_limit='99GB'",
    "pragma enable_profiling='json'",
    "call enable_logging(storage='file', storage_path='{outside}/new')",
    "create secret s (type s3, key_id 'a', secret 'b')",
    "create persistent secret s (type http, bearer_token 'b')",
    "select 1; set enable_external_access = true",
    "explain analyze copy (select 1) to '{outside}/new.csv'",
    "prepare p as from read_text('{outside}/secret.csv'); execute p",
]
CATALOG = [
    "from duckdb_settings()",
    "from duckdb_secrets()",
    "from which_secret('s3://bucket/x', 's3')",
    "from duckdb_views()",
    "from duckdb_views",
    "from duckdb_tables",
    "from duckdb_extensions()",
    "from duckdb_logs",
    "from sqlite_master",
    "from information_schema.tables",
    "from pg_catalog.pg_tables",
    "from main.flights",
    "from memory.main.flights",
    "from pragma_database_list",
    "from pragma_show('flights')",
    "show tables",
    "show all tables",
    "from (show tables)",
    "select current_setting('s3_secret_access_key')",
    "select getvariable('x')",
    "select pg_sleep(1000)",
    "select json_serialize_plan('from flights')",
    "select json_serialize_plan('from read_text(''/etc/passwd'')')",
    "from other",
    "from other__dlq",
    "select * from flights join other using (n)",
    "select n from flights union all select n from other",
    "select n from flights where n in (select n from other)",
]
SCOPES = [
    "select * from (with other as (select 1) from other) q, other",
    "select * from other, (with other as (select 1) from other) q",
    "(with other as (select 1) from other) union all from other",
    "from other union all (with other as (select 1) from other)",
    "select (with other as (select 1) from other), (from other)",
    "with a as (with other as (select 1) from other) from other",
    "with a as (with other as (select 1) from other), b as (from other) from b",
    "with a as (from other), other as (select 1) from a",
    "with other as (from other) from other",
    "with recursive other as (from other) from other",
    "with recursive other(n) as (from other union all select n + 1 from other where n < 9) from "
    "other",
    "with recursive a(n) as (select 1 union all select n + 1 from a, b where n < 9), b as (select "
    "1) from a",
    "select * from flights where exists (with other as (select 1) from other) and exists (from "
    "other)",
    "select * from duckdb_views, (with duckdb_views as (select 1) from duckdb_views) q",
    "select * from sqlite_master, (with sqlite_master as (select 1) from sqlite_master) q",
    "with \u00c9 as (select 1) from \u00e9",
    "with \u212a as (select 1) from k",
    "with other as (select 1) from main.other",
    "with other as (select 1) from memory.main.other",
]
HONEST = [
    "with a as (select 1), b as (from a) from b",
    "with a as (select 1) select * from a where exists (from a) order by (select 1 from a)",
    "with a as (select 1) (from a union all from a)",
    "with A as (select 1) from a",
    "with a as (with b as (select 1) from b) from a",
    "with a as materialized (select 1) select * from (select * from (from a))",
    "with flights as (from flights where n = 1) from flights",
    "with recursive t(n) as (select 1 union all select n + 1 from t where n < 5) from t",
    "with recursive t(n) as (select 1 union all (with y as (select n + 1 from t) from y)) select "
    "* from t limit 3",
    "with recursive t(n) as (with u as (select 1 as n) from u union all select t.n + 1 from t, u) "
    "select * from t limit 3",
    "with a as (select 1) select * from flights, lateral (from a)",
    "with a as (select 3) select (from a), (with b as (from a) from b)",
    "with a as (select 1) from (describe a)",
    "with \u00e9 as (select 1) from \u00e9",
]
ENDLESS = [
    "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t",
    "with recursive t(n) as (select 1 union all select n from t) from t",
    "with recursive t(n) as (select [1] union all select n || n from t) select max(len(n)) from t",
    "with recursive t(n) as (select repeat('x', 1000) union all select n || n from t) select "
    "max(n) from t",
    "select sum(a.i * b.i) from range(100_000_000) a(i), range(1_000_000) b(i)",
    "select count(*) from range(1_000_000_000_000) union all select count(*) from "
    "range(1_000_000_000_000)",
    "select list(i) from range(100_000_000_000) t(i)",
    "select repeat(repeat('x', 1_000_000), 300) from range(20)",
    "select repeat('x', 1_000_000) from range(5_000)",
    "select repeat('x', 3_000_000_000)",
    "select * from range(1_000_000_000) a(i) order by hash(i)",
    "from range(1_000_000_000_000)",
]
NESTED = [
    "select " + "+".join(["1"] * 900),
    "select " + "[" * 300 + "1" + "]" * 300,
    "select " + "(select " * 900 + "1" + ")" * 900,
]


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """Create a readable folder and a forbidden one, and a link from the first into the second."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "in" / "open.csv").write_text("n\n1\n")
    (tmp_path / "out" / "secret.csv").write_text(f"{SECRET}\n1\n")
    (tmp_path / "in" / "link.csv").symlink_to(tmp_path / "out" / "secret.csv")
    return {"inside": str(tmp_path / "in"), "outside": str(tmp_path / "out")}


def ask_the_tree(statement: str) -> None:
    """Check a statement with the first layer alone."""
    connection = duckdb.connect()
    try:
        check_statement(connection, statement)
        check_names(connection, statement, TABLES)
    except duckdb.Error as fault:  # as `ask` tells it
        raise BadQuery(str(fault)) from None
    finally:
        connection.close()


def test_there_are_a_hundred() -> None:
    hostile = [*FILES, *ACTS, *CATALOG, *SCOPES, *ENDLESS, *NESTED]
    assert len(set(hostile)) == len(hostile) >= 100


@pytest.mark.parametrize("statement", [*FILES, *ACTS, *CATALOG, *SCOPES])
def test_the_first_layer_refuses(statement: str, folders: dict[str, str]) -> None:
    with pytest.raises(BadQuery):
        ask_the_tree(statement.format(**folders))


@pytest.mark.parametrize("statement", HONEST)
def test_the_first_layer_lets_a_scoped_name_pass_and_duckdb_answers(statement: str) -> None:
    ask_the_tree(statement)
    connection = duckdb.connect()
    connection.execute("create table flights as select 1 as n")
    assert connection.execute(statement).fetchall()


@pytest.mark.parametrize("statement", every_nth([*FILES, *ACTS], 3))
def test_the_second_layer_alone_gives_nothing_away(statement: str, folders: dict[str, str]) -> None:
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.execute("create table flights as select 1 as n")
    lock(connection, [folders["inside"] + "/"], Bounds(MEMORY))
    try:
        output = str(connection.execute(statement.format(**folders)).fetchall())
    except duckdb.Error as fault:
        output = str(fault)
    finally:
        connection.close()
    assert SECRET not in output
    assert sorted(os.listdir(folders["outside"])) == ["secret.csv"]


# The kernel counts the memory of a process's parent as its own until it executes: a small parent.
LAUNCHER = """
import os, sys
command = [sys.executable, "-P", "-m", "polynya.lakehouse.sql.process"]
_, status, used = os.wait4(os.posix_spawn(sys.executable, command, os.environ), 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss, file=sys.stderr)
"""


def in_process(sql: str, seconds: float) -> tuple[int, dict[str, Any], float, int]:
    """Run in a process and return its exit status, output, duration and peak memory in bytes."""
    asked = {
        "sql": sql,
        "tables": [],
        "environment": {},
        "rows": 100,
        "answer_bytes": 1 << 20,
        "memory_bytes": MEMORY,
        "seconds": seconds,
    }
    begun = time.monotonic()
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER]
    ran = subprocess.run(
        launcher,
        input=msgspec.json.encode(asked),
        capture_output=True,
        env=environment(),
        check=True,
    )
    code, kib = map(int, ran.stderr.splitlines()[-1].split())
    return (
        code,
        msgspec.json.decode(ran.stdout) if ran.stdout else {},
        time.monotonic() - begun,
        kib * 1024,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "sql",
    every_nth([*ENDLESS, *NESTED], 2),
    ids=[*range(len(ENDLESS)), *(f"nested-{number}" for number in range(len(NESTED)))],
)
def test_an_endless_question_ends_in_bounded_time_and_memory(sql: str) -> None:
    code, answer, seconds, peak = in_process(sql, 1.5)
    assert seconds < 1.5 + 5.0
    assert peak < 2 * MEMORY + DATA_BYTES_EXTRA
    if not answer:
        assert code < 0 or code == NO_MEMORY_TO_LINK, "ended when its time or memory was over"
    elif answer["kind"] == "refused":
        assert answer["code"] in ("SQL_TOO_LARGE", "SQL_INVALID")
    else:
        assert answer["truncated"] and len(answer["rows"]) <= 100


@pytest.mark.process
@pytest.mark.parametrize(
    "sql",
    [
        "select interval '2147483647 months'",
        "select (repeat('[', 900) || repeat(']', 900))::json::variant",
    ],
)
def test_a_value_that_python_cannot_hold_is_told_as_such(sql: str) -> None:
    _, answer, _, _ = in_process(sql, 20.0)
    assert answer["code"] == "SQL_INVALID" and "cannot represent" in answer["message"]


@pytest.mark.process
def test_memory_that_duckdb_does_not_count_is_bounded_too() -> None:
    """A long text is no block of DuckDB's buffer manager, which `memory_limit` is about."""
    _, answer, _, peak = in_process("select length(repeat(repeat('x', 1_000_000), 1_000))", 20.0)
    assert (answer.get("kind"), answer.get("code")) == ("refused", "SQL_TOO_LARGE")
    assert peak < 2 * MEMORY + DATA_BYTES_EXTRA
