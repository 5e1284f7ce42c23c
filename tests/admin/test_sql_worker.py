"""Questions in processes of their own: their answers, their bounds, and that none outlives its
asker. And the route before them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from polling import wait_for

from polynya.admin.workers import sql_worker
from polynya.admin.workers.sql_worker import SqlWorker
from polynya.base.limits import SQL_QUESTIONS_PER_CORE_MAX
from polynya.config.model import Config
from polynya.config.sections import ColdConfig, SqlConfig
from polynya.front.http.api.schemas import columns_of, type_name
from polynya.front.http.api.sql import SqlQuery, SqlRoute
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request

LONG = "select sum(a.i * b.i) from range(100_000_000) a(i), range(1_000_000) b(i)"


def play(story: Callable[[SqlWorker], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        await story(SqlWorker(Config(sql=SqlConfig(**settings))))

    asyncio.run(main())


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if sql_worker.MODULE in _command(child)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # another test's, that is just ending
        return ""


async def until_asked(count: int) -> None:
    await wait_for(lambda: len(children()) >= count, what="the questions' processes", pause=0.01)


@pytest.mark.process
def test_a_question_is_answered() -> None:
    async def story(asker: SqlWorker) -> None:
        assert await asker.ask(SqlQuery("select 1 as one, 'x' as x", 10), []) == {
            "columns": [{"name": "one", "type": "INTEGER"}, {"name": "x", "type": "VARCHAR"}],
            "rows": [[1, "x"]],
            "truncated": False,
        }
        assert asker.asked == 1
        assert children() == []
        plan = await asker.ask(
            SqlQuery("select i from range(7) t(i) where i > 5;", 10, explain=True), []
        )
        assert [column["name"] for column in plan["columns"]] == ["explain_key", "explain_value"]
        assert "RANGE" in plan["rows"][0][1]
        with pytest.raises(Failure, match="syntax error"):
            await asker.ask(SqlQuery("analyze select 1", 10, explain=True), [])

    play(story)


@pytest.mark.process
@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("selec 1", "SQL_INVALID"),
        ("from nowhere", "SQL_INVALID"),
        ("from glob('/*')", "SQL_INVALID"),
        ("select " + "+".join(["1"] * 900), "SQL_INVALID"),
    ],
    ids=["no SQL", "no table", "a file", "nested"],
)
def test_a_bad_question_is_told_why(sql: str, code: str) -> None:
    async def story(asker: SqlWorker) -> None:
        with pytest.raises(Failure) as refused:
            await asker.ask(SqlQuery(sql, 10), [])
        assert refused.value.code == code

    play(story)


@pytest.mark.process
def test_its_time_is_bounded() -> None:
    async def story(asker: SqlWorker) -> None:
        with pytest.raises(Failure, match=r"its limit of 0\.5 s") as refused:
            await asker.ask(SqlQuery(LONG, 10), [])
        assert refused.value.code == "SQL_TOO_LARGE"
        assert children() == []

    play(story, timeout=0.5)


@pytest.mark.parametrize("code", [-14, 127], ids=["signal", "no memory to link"])
@pytest.mark.parametrize("out", [b"", b'{"kind":"answer","rows":[[1'])
def test_an_end_while_it_writes_is_told_as_its_time(out: bytes, code: int) -> None:
    with pytest.raises(Failure) as refused:
        SqlWorker(Config())._settled(code, out, b"")
    assert refused.value.code == "SQL_TOO_LARGE"


@pytest.mark.process
def test_it_ends_when_nobody_waits_for_it_any_more() -> None:
    async def story(asker: SqlWorker) -> None:
        task = asyncio.create_task(asker.ask(SqlQuery(LONG, 10), []))
        await until_asked(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children() == []
        assert (await asker.ask(SqlQuery("select 1", 1), []))["rows"] == [[1]], (
            "its place is free again"
        )

    play(story)


@pytest.mark.process
def test_only_so_many_are_answered_at_once() -> None:
    async def story(asker: SqlWorker) -> None:
        tasks = [
            asyncio.create_task(asker.ask(SqlQuery(LONG, 10), []))
            for _ in range(SQL_QUESTIONS_PER_CORE_MAX)
        ]
        await until_asked(SQL_QUESTIONS_PER_CORE_MAX)
        with pytest.raises(Failure) as refused:
            await asker.ask(SqlQuery("select 1", 1), [])
        assert refused.value.code == "SQL_BUSY"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    play(story)


def test_it_may_be_switched_off() -> None:
    async def story(asker: SqlWorker) -> None:
        with pytest.raises(Failure, match=r"sql\.enabled") as refused:
            await asker.ask(SqlQuery("select 1", 1), [])
        assert refused.value.code == "NO_SQL"

    play(story, enabled=False)


def test_the_process_gets_the_credentials_of_the_store_and_no_other_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    config = Config(cold=ColdConfig(backend="s3", s3_bucket="b", s3_secret_access_key="s"))
    question = json.loads(SqlWorker(config)._question(SqlQuery("select 1", 1), []))
    assert question["environment"]["AWS_REGION"] == "eu-north-1"
    assert question["environment"]["POLYNYA_COLD_S3_SECRET_ACCESS_KEY"] == "s"
    assert "SECRET_OF_THE_SERVER" not in question["environment"]
    assert (
        json.loads(SqlWorker(Config())._question(SqlQuery("select 1", 1), []))["environment"] == {}
    )
    assert not {
        name
        for name in sql_worker.KEPT
        if "SECRET" in name or name.startswith(("POLYNYA_", "AWS_"))
    }


@pytest.mark.process
def test_a_server_without_the_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "duckdb.py").write_text("raise ModuleNotFoundError('no duckdb', name='duckdb')")
    source = next(path for path in sys.path if path.endswith("src"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{source}")

    async def story(asker: SqlWorker) -> None:
        with pytest.raises(Failure, match=r"\.\[lake\]") as refused:
            await asker.ask(SqlQuery("select 1", 1), [])
        assert refused.value.code == "NO_SQL"

    play(story)


class FakeTables:
    async def references(self, *_: Any) -> list[dict[str, Any]]:
        return [{"name": "flights"}]

    async def freshness(self, _: object, wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
        return [
            {"name": name, "records_behind": 0, "behind_seconds": 0.0}
            for name in ("flights", "orders")
            if wanted(name)
        ]


class FakeAnswerer:
    async def ask(self, query: SqlQuery, tables: list[dict[str, Any]]) -> dict[str, Any]:
        row = [query.sql, query.rows, len(tables), query.explain, query.as_of]
        return {"columns": [], "rows": [row], "truncated": False}


def asked(method: str, body: bytes) -> Request:
    return Request(method, "/v1/sql", (), {}, {}, body, "http://x")


def test_the_route_says_how_fresh_the_tables_are_that_a_question_names() -> None:
    route = SqlRoute(FakeTables(), FakeAnswerer())  # type: ignore[arg-type]
    answer = asyncio.run(route.handle(asked("POST", b'{"sql": "select * from FLIGHTS__dlq"}')))
    body = json.loads(answer.body)
    assert body["rows"] == [["select * from FLIGHTS__dlq", 1000, 1, False, ""]]
    assert [table["name"] for table in body["tables"]] == ["flights"]
    assert ("Cache-Control", "no-store") in answer.headers


def test_the_route_passes_the_state_that_is_asked_for() -> None:
    route = SqlRoute(FakeTables(), FakeAnswerer())  # type: ignore[arg-type]
    body = b'{"sql": "select 1", "as_of": "2026-01-31T09:30:00Z"}'
    answer = asyncio.run(route.handle(asked("POST", body)))
    assert json.loads(answer.body)["rows"][0][-1] == "2026-01-31T09:30:00Z"


@pytest.mark.parametrize(
    ("method", "body", "code"),
    [
        ("GET", b"", "METHOD_NOT_ALLOWED"),
        ("POST", b"select 1", "INVALID_REQUEST"),
        ("POST", b'{"sql": 7}', "INVALID_REQUEST"),
        ("POST", b'{"sql": "select 1", "rows": 0}', "INVALID_REQUEST"),
        ("POST", b'{"sql": "select 1", "explain": 1}', "INVALID_REQUEST"),
        ("POST", b'{"sql": "select 1", "rows": 10001}', "INVALID_REQUEST"),
        ("POST", b'{"sql": "select 1", "more": 1}', "INVALID_REQUEST"),
        ("POST", b'{"sql": "select 1", "as_of": "%s"}' % (b"x" * 65), "INVALID_REQUEST"),
        ("POST", b'{"sql": "' + b"x" * 200_000 + b'"}', "BODY_TOO_LARGE"),
    ],
)
def test_the_route_refuses_what_is_no_question(method: str, body: bytes, code: str) -> None:
    route = SqlRoute(FakeTables(), FakeAnswerer())  # type: ignore[arg-type]
    with pytest.raises(Failure) as refused:
        asyncio.run(route.handle(asked(method, body)))
    assert refused.value.code == code


def test_a_schema_is_the_current_one() -> None:
    metadata = {
        "format-version": 2,
        "current-schema-id": 1,
        "schemas": [
            {"type": "struct", "schema-id": 0, "fields": []},
            {
                "type": "struct",
                "schema-id": 1,
                "fields": [
                    {"id": 1, "name": "n", "required": True, "type": "long"},
                    {
                        "id": 2,
                        "name": "tags",
                        "required": False,
                        "type": {"type": "list", "element-id": 3, "element": "string"},
                    },
                ],
            },
        ],
    }
    assert columns_of(json.dumps(metadata).encode()) == [
        {"name": "n", "type": "long", "required": True},
        {"name": "tags", "type": "list<string>", "required": False},
    ]
    deep = {
        "type": "map",
        "key": "string",
        "value": {"type": "struct", "fields": [{"name": "a", "type": "decimal(4, 2)"}]},
    }
    assert type_name(deep) == "map<string, struct<a: decimal(4, 2)>>"
