"""The list of the Kafka clients that push metrics."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from polynya.cluster.kafka_clients import KafkaClients
from polynya.front.http.api.kafka import clients as route
from polynya.front.http.api.kafka.clients import CLIENTS, ClientRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.front.kafka.telemetry.subscriptions import Client, Wanted
from polynya.wire.kafka.otlp_points import Kind, Point, Points


def known(*names: str) -> KafkaClients:
    """Return a core that has heard some clients, each with a push, one a second."""
    clients = KafkaClients((3, 1), None, lambda: 10.0)
    for number, name in enumerate(names):
        heard = Client(name, f"id{number}", "lib", "1.0", "127.0.0.1", "5")
        instance = clients.here.heard(bytes([number]), heard, float(number))
        instance.wanted = Wanted(("*",), 1000)
        clients.here.take(instance, Points([Point("m", (), Kind.GAUGE, 1.0)], 0))
    return clients


def asked(
    clients: KafkaClients, *segments: str, method: str = "GET", **query: str
) -> dict[str, Any]:
    request = Request(method, CLIENTS, segments, query, {}, b"", "http://x")
    answer = asyncio.run(ClientRoutes(clients).handle(request))
    assert answer.status == 200 and ("Cache-Control", "no-store") in answer.headers
    body: dict[str, Any] = json.loads(answer.body)
    return body


def test_a_client_is_listed_with_what_it_pushes() -> None:
    (row,) = asked(known("app"))["clients"]
    assert row == {
        "client_instance_id": "id0",
        "client_id": "app",
        "software_name": "lib",
        "software_version": "1.0",
        "address": "127.0.0.1",
        "metrics": ["*"],
        "interval_ms": 1000,
        "pushes": 1,
        "series": 1,
        "silent_seconds": 10.0,
        "has_ended": False,
        "node": 3,
        "core": 1,
    }


def test_clients_are_listed_by_prefix_and_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    from polynya.cluster import kafka_clients

    for module in (kafka_clients, route):
        monkeypatch.setattr(module, "LISTED_MAX", 2)
    clients = known("app-1", "other", "app-2", "app-3")
    page = asked(clients, prefix="app-")
    assert [each["client_id"] for each in page["clients"]] == ["app-1", "app-2"]
    page = asked(clients, prefix="app-", after=page["next"])
    assert [each["client_id"] for each in page["clients"]] == ["app-3"]
    assert page["next"] is None


@pytest.mark.parametrize(
    ("segments", "method", "code"),
    [(("x",), "GET", "NO_ROUTE"), ((), "POST", "METHOD_NOT_ALLOWED")],
)
def test_nothing_else_is_served(segments: tuple[str, ...], method: str, code: str) -> None:
    with pytest.raises(Failure) as refused:
        asked(known(), *segments, method=method)
    assert refused.value.code == code
