"""The HTTP side of a driver, against a server that answers as docs/formats/tables.md says, and
otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from polynya.base.errors import OutcomeUnknown, PolynyaError, Unavailable
from polynya.lakehouse.server import coordinator as room
from polynya.lakehouse.server.coordinator import HttpCoordinator, NoSuchTable
from polynya.lakehouse.server.leases import Leased
from polynya.wire.tables import CommitRequest, StoreRef

TABLE = {
    "uid": "7", "name": "t 1", "prefix": "p/", "location": "tables/7", "job": 3, "iceberg": "file:///a", "iceberg_dlq": "", "result": "r",
    "unknown": 1,
}  # fmt: skip
STORE = {"kind": "s3", "root": "x", "bucket": "b", "region": "", "endpoint": "http://localhost:1"}
RANGE = {
    "stream": "p/s", "uid": 9, "group": 1, "content_type": "application/json", "encoding": 1, "record": 5, "byte": 50, "records": 2,
    "length": 20, "pack": "packs/1", "offset": 8, "stored": 100, "crc": 1,
}  # fmt: skip
REQUEST = CommitRequest("7", 4, "f" * 32, "file:///a", "", "file:///b", "file:///c", "r4", 10, 0)


def client(answer: Callable[[httpx.Request], httpx.Response]) -> HttpCoordinator:
    return HttpCoordinator(
        "http://admin:1/", "http://base:2", httpx.Client(transport=httpx.MockTransport(answer))
    )


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_RETRY_SECONDS", 0.0)


def test_a_plan() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url}")
        plan = {
            "version": 1,
            "table": TABLE,
            "job": 4,
            "attempt": "a" * 32,
            "store": STORE,
            "ranges": [RANGE, {**RANGE, "skip": 1, "take": 1}],
        }
        return httpx.Response(200, json=plan)

    plan = client(answer).plan("t 1")
    assert asked == ["POST http://admin:1/v1/admin/tables/t%201/plan"]
    assert plan is not None
    assert plan.store == StoreRef("s3", "x", "b", "", "http://localhost:1")
    assert [(part.skip, part.take) for part in plan.ranges] == [(0, -1), (1, 1)]
    assert plan.table.job == 3
    assert plan.more is None, "a server of the release before does not say it"


def test_nothing_to_do() -> None:
    assert client(lambda request: httpx.Response(204)).plan("t") is None


def test_a_job_that_another_planner_took_over_is_asked_for_again() -> None:
    answers = [
        httpx.Response(409, json={"error": {"code": "JOB_PREEMPTED", "message": "ask again"}}),
        httpx.Response(204),
    ]
    assert client(lambda request: answers.pop(0)).plan("t") is None
    assert not answers
    with pytest.raises(PolynyaError, match="409: ask again"):
        client(
            lambda request: httpx.Response(
                409, json={"error": {"code": "JOB_PREEMPTED", "message": "ask again"}}
            )
        ).plan("t")


def test_a_worker_takes_extends_and_releases_the_lease_of_a_table() -> None:
    asked: list[tuple[str, Any]] = []
    plan = {"table": TABLE, "job": 4, "attempt": "a" * 32, "store": STORE, "ranges": [RANGE]}

    def answer(request: httpx.Request) -> httpx.Response:
        verb, body = request.url.path.rpartition("/")[2], json.loads(request.content)
        asked.append((verb, body))
        if verb == "lease":  # the server of the release before knows none
            return httpx.Response(404, json={"error": {"code": "NO_ROUTE", "message": "none"}})
        if request.url.path.split("/")[-2] == "held":
            error = {"code": "TABLE_LEASED", "message": "another worker syncs the table"}
            return httpx.Response(409, json={"error": error})
        return httpx.Response(200, json=plan)

    transport = httpx.MockTransport(answer)
    made = HttpCoordinator(
        "http://a:1", "http://b:2", httpx.Client(transport=transport), worker="w"
    )
    with pytest.raises(Leased, match="another worker syncs the table"):
        made.plan("held")
    made.release_lease("held", 1.0)
    made.extend_leases()
    assert [verb for verb, _ in asked] == ["plan"], "what is not held is left alone"
    assert made.plan("t") is not None and made.plan("u") is not None
    assert asked[-1][1]["worker"] == "w"
    made.extend_leases()
    made.release_lease("t", 1e9)
    made.release_leases()
    made.release_leases()
    released = [body for verb, body in asked if verb == "lease" and "rest_ms" in body]
    assert released == [{"worker": "w", "rest_ms": 3_600_000}, {"worker": "w", "rest_ms": 0}]
    assert asked.count(("lease", {"worker": "w"})) == 2
    client(answer).plan("t")
    assert "worker" not in asked[-1][1]


def test_the_list_comes_from_the_base_port() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://base:2/v1/tables"
        return httpx.Response(200, json={"tables": [{**TABLE, "store": STORE}]})

    (table,) = client(answer).tables()
    assert table.store is not None
    assert table.store.bucket == "b"


@pytest.mark.parametrize("status", [200, 409])
def test_a_commit_tells_the_table_that_is_now(status: int) -> None:
    body = (
        {"table": TABLE}
        if status == 200
        else {"table": TABLE, "error": {"code": "JOB_CONFLICT", "message": "another was first"}}
    )
    assert client(lambda request: httpx.Response(status, json=body)).commit("t", REQUEST).job == 3


def test_a_commit_without_an_answer_is_asked_again_and_then_unknown() -> None:
    calls: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        raise httpx.ReadTimeout("no answer")

    with pytest.raises(OutcomeUnknown, match="job 4"):
        client(answer).commit("t", REQUEST)
    assert len(calls) == room._COMMIT_TRIES

    def second(request: httpx.Request) -> httpx.Response:
        calls.append(1)
        return (
            httpx.Response(503, text="busy")
            if len(calls) % 2 == 0
            else httpx.Response(200, json={"table": TABLE})
        )

    assert client(second).commit("t", REQUEST).uid == "7"


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (
            404,
            {"error": {"code": "TABLE_NOT_FOUND", "message": "there is no table 't'"}},
            NoSuchTable,
        ),
        (503, {"error": {"code": "BUSY", "message": "there is no table 't'"}}, Unavailable),
        (400, {"error": {"code": "BAD", "message": "there is no table 't'"}}, PolynyaError),
    ],
)
def test_errors_are_told_in_the_servers_words(
    status: int, body: Any, fault: type[Exception]
) -> None:
    with pytest.raises(fault, match="there is no table 't'"):
        client(lambda request: httpx.Response(status, json=body)).plan("t")


def test_a_refusal_has_an_address_only_if_it_is_not_the_servers() -> None:
    error = {"code": "BAD", "message": "the transform fails"}
    with pytest.raises(PolynyaError, match=r"^the transform fails$"):
        client(lambda request: httpx.Response(400, json={"error": error})).plan("t")
    with pytest.raises(PolynyaError, match=r"^http://\S+ answered 400: no such host$"):
        client(lambda request: httpx.Response(400, text="no such host")).plan("t")


def test_a_server_that_is_not_there() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unavailable, match="Is the server running"):
        client(answer).tables()


def test_an_answer_that_is_no_plan() -> None:
    with pytest.raises(PolynyaError, match="invalid plan"):
        client(lambda request: httpx.Response(200, json={"nope": 1})).plan("t")


def test_the_admin_port_is_asked_for_and_asked_again_when_it_is_gone() -> None:
    """A restarted server may have another admin port: a worker, or a commit under way, finds it."""
    admin, asked = 7001, []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.url.port}{request.url.path}")
        if request.url.path == "/v1/node":
            return httpx.Response(200, json={"ports": {"http": 2, "admin": admin}, "other": 1})
        if request.url.port != admin:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"table": TABLE})

    made = HttpCoordinator("", "http://base:2", httpx.Client(transport=httpx.MockTransport(answer)))
    assert made.commit("t", REQUEST).job == 3
    admin = 7002
    assert made.commit("t", REQUEST).job == 3
    assert asked == [
        "2/v1/node", "7001/v1/admin/tables/t/commit", "7001/v1/admin/tables/t/commit", "2/v1/node", "7002/v1/admin/tables/t/commit",
    ]  # fmt: skip


def test_an_admin_port_that_is_open_on_another_machine_alone_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/node"
        return httpx.Response(
            200, json={"ports": {"http": 2, "admin": 3}, "admin_near": True, "start": "it"}
        )

    monkeypatch.setattr(room, "near_admin", lambda port, start: "")
    monkeypatch.setattr(room, "_RETRY_SECONDS", 0.0)
    made = HttpCoordinator("", "http://base:2", httpx.Client(transport=httpx.MockTransport(answer)))
    with pytest.raises(Unavailable, match="only on its own machine"):
        made.abandon("t", "u", 1, "why")


def test_a_proxy_of_the_environment_is_not_asked_for_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert not HttpCoordinator("", "http://127.0.0.1:2")._client.trust_env
    assert HttpCoordinator("", "http://server:2")._client.trust_env


def test_only_the_servers_own_registry_gets_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((str(request.url), request.headers.get("authorization", "")))
        return httpx.Response(200, json={"schema": '"string"'})

    transport, made = httpx.MockTransport(answer), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: made(transport=transport, **options))
    own = made(transport=transport, headers={"authorization": "Bearer t"})
    coordinator = HttpCoordinator("http://admin:1/", "http://base:2", own)
    for url in ("", "http://other:3/registry", ""):
        assert coordinator.schemas(url).writer(7).text == '"string"'
    assert asked == [
        ("http://base:2/registry/schemas/ids/7", "Bearer t"),
        ("http://other:3/registry/schemas/ids/7", ""),
    ]


def test_a_registry_that_is_none_is_told_from_one_without_the_schema() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/1"):
            return httpx.Response(404, json={"error_code": 40403, "message": "no"})
        return (
            httpx.Response(404, text="not found")
            if request.url.path.endswith("/2")
            else (httpx.Response(200, text="<html>"))
        )

    reader = client(answer).schemas("")
    assert reader.writer(1).unknown == "schema 1 is unknown to the registry http://base:2/registry"
    with pytest.raises(PolynyaError, match=r"answered 404 to GET /schemas/ids/2\. Check the URL"):
        reader.writer(2)
    with pytest.raises(PolynyaError, match="answered no schema"):
        reader.writer(3)
