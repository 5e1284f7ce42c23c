"""`/v1/cluster`: permissions, routing, and the form of a refusal."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from polynya.access import Principal
from polynya.front.http.api.cluster import ClusterRefused, ClusterRoutes, NewNode, act_of
from polynya.front.http.protocol.errors import ERRORS, Failure
from polynya.front.http.protocol.extension import Request, Response

JSON = {"content-type": "application/json; charset=utf-8"}


class Acts:
    """A recorder of requested operations."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.refusal: ClusterRefused | None = None

    def _note(self, *what: Any) -> dict[str, Any]:
        if self.refusal is not None:
            raise self.refusal
        self.said.append(what)
        return {"epoch": 7}

    async def look(self) -> dict[str, Any]:
        return {"epoch": 6}

    async def health(self) -> dict[str, Any]:
        return {"healthy": False, "nodes": 3, "problems": ["node 2 does not answer"]}

    async def add(self, node: NewNode) -> dict[str, Any]:
        return self._note("add", node)

    async def set_node(self, node: int, act: str, replicas: bool) -> dict[str, Any]:
        return self._note(act, node, replicas)

    async def promote(self, node: int, rebalance: bool) -> dict[str, Any]:
        return self._note("promote", node, rebalance)

    async def move(self, group: int, source: int, target: int) -> dict[str, Any]:
        return self._note("move", group, source, target)

    async def transfer(self, group: int, target: int) -> dict[str, Any]:
        return self._note("transfer", group, target)

    async def rebalance(self, replicas: int) -> dict[str, Any]:
        return self._note("rebalance", replicas)


def ask(
    acts: Acts, path: str, body: Any = None, *, method: str = "POST", headers: dict[str, str] = JSON
) -> Response:
    segments = tuple(path.split("/")) if path else ()
    request = Request(
        method,
        f"/v1/cluster/{path}",
        segments,
        {},
        headers,
        b"" if body is None else json.dumps(body).encode(),
        "http://h",
    )
    routes = ClusterRoutes(acts)
    return asyncio.run(routes.handle(request) if path else routes.look(request))


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "nodes",
            {"peer": "h:1", "http": "http://h:2", "zone": "a"},
            ("add", NewNode(0, "h:1", "http://h:2", "a")),
        ),
        (
            "nodes",
            {"replaces": 2, "rebalance": False},
            ("add", NewNode(replaces=2, rebalance=False)),
        ),
        (
            "nodes",
            {"peer": "h:1", "http": "http://h:2", "reader": True},
            ("add", NewNode(0, "h:1", "http://h:2", reader=True)),
        ),
        ("nodes/3/promote", {}, ("promote", 3, True)),
        ("nodes/3/promote", {"rebalance": False}, ("promote", 3, False)),
        ("nodes/3/cordon", {}, ("cordon", 3, False)),
        ("nodes/3/uncordon", None, ("uncordon", 3, False)),
        ("nodes/3/drain", {}, ("drain", 3, False)),
        ("nodes/3/drain", {"replicas": True}, ("drain", 3, True)),
        ("nodes/3/remove", {}, ("remove", 3, False)),
        ("groups/0/move", {"from": 1, "to": 4}, ("move", 0, 1, 4)),
        ("groups/12/transfer", {"to": 4}, ("transfer", 12, 4)),
        ("rebalance", {}, ("rebalance", 0)),
        ("rebalance", {"replicas": 5}, ("rebalance", 5)),
    ],
)
def test_an_act_goes_where_it_belongs(path, body, said):
    acts = Acts()
    answer = ask(acts, path, body)
    assert (answer.status, json.loads(answer.body)) == (200, {"epoch": 7})
    assert acts.said == [said]
    assert act_of(tuple(path.split("/"))).startswith("cluster.")


@pytest.mark.parametrize(
    ("path", "body", "more", "code"),
    [
        ("nodes", {"per": "h:1"}, {}, "INVALID_REQUEST"),
        ("nodes", [], {}, "INVALID_REQUEST"),
        ("nodes/x/drain", {}, {}, "INVALID_REQUEST"),
        ("nodes/³/drain", {}, {}, "INVALID_REQUEST"),
        ("nodes/3/cordon", {"replicas": True}, {}, "INVALID_REQUEST"),
        ("groups/1/move", {"from": 1}, {}, "INVALID_REQUEST"),
        ("nodes/3/drain", {}, {"headers": {"content-type": "text/plain"}}, "INVALID_REQUEST"),
        ("nodes/3/drain", None, {"headers": {}}, "INVALID_REQUEST"),
        ("nodes/3/forget", {}, {}, "NO_ROUTE"),
        ("nodes/3", {}, {}, "NO_ROUTE"),
        ("nodes/3/drain", None, {"method": "GET"}, "METHOD_NOT_ALLOWED"),
        ("", None, {"method": "POST"}, "METHOD_NOT_ALLOWED"),
    ],
)
def test_what_is_no_act_is_refused(path, body, more, code):
    acts = Acts()
    with pytest.raises(Failure) as failed:
        ask(acts, path, body, **more)
    assert failed.value.code == code and acts.said == []


@pytest.mark.parametrize(
    "code", ["CLUSTER_REFUSED", "CLUSTER_STARTING", "NODE_NOT_FOUND", "GROUP_NOT_FOUND"]
)
def test_a_refusal_says_why(code):
    acts = Acts()
    acts.refusal = ClusterRefused(code, "3 replicas need 3 nodes")
    with pytest.raises(Failure, match="3 replicas need 3 nodes") as failed:
        ask(acts, "nodes/1/remove", {})
    assert failed.value.code == code and code in ERRORS


def test_anybody_who_may_look_sees_the_cluster():
    assert json.loads(ask(Acts(), "", method="GET").body) == {"epoch": 6}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_where_a_token_is_needed_strangers_learn_whether_it_is_healthy_alone(method):
    stranger = Request(method, "/v1/cluster/health", (), {}, {}, b"", "http://h")
    answer = asyncio.run(ClusterRoutes(Acts()).guarded_health(stranger))
    assert (answer.status, json.loads(answer.body)) == (503, {"healthy": False})
    known = Request(
        method,
        "/v1/cluster/health",
        (),
        {},
        {},
        b"",
        "http://h",
        Principal(id="1", name="root", grants=()),
    )
    answer = asyncio.run(ClusterRoutes(Acts()).guarded_health(known))
    assert answer.status == 503 and json.loads(answer.body)["problems"] == [
        "node 2 does not answer"
    ]
    with pytest.raises(Failure) as failed:
        asyncio.run(
            ClusterRoutes(Acts()).guarded_health(
                Request("POST", "/v1/cluster/health", (), {}, {}, b"", "http://h")
            )
        )
    assert failed.value.code == "METHOD_NOT_ALLOWED"


def test_health_is_a_status():
    request = Request("GET", "/v1/cluster/health", (), {}, {}, b"", "http://h")
    answer = asyncio.run(ClusterRoutes(Acts()).health(request))
    assert answer.status == 503 and json.loads(answer.body)["problems"] == [
        "node 2 does not answer"
    ]
