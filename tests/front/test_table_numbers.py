"""Numbers of a driver that no log can hold, or that no state can add up: refused as the request's
fault."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from polynya.front.http.api.tables import TableRoutes
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request
from polynya.service.tables import TableRefused
from polynya.wire.tables import StoreRef

COMMIT = {
    "uid": "7", "job": 1, "attempt": "a", "base_iceberg": "", "base_iceberg_dlq": "", "iceberg": "m", "iceberg_dlq": "d", "result": "r",
    "rows": 1, "dead_rows": 0,
}  # fmt: skip


class NoJobs:
    """Must not be asked."""

    async def commit(self, *asked: Any) -> None:
        raise AssertionError(asked)

    tables: Any = None
    snapshots: Any = None
    abandon = extend_lease = release_lease = plan = commit


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("commit", COMMIT | {"rows": -(1 << 60)}),
        ("commit", COMMIT | {"rows": 1 << 63}),
        ("commit", COMMIT | {"dead_rows": 10**30}),
        ("commit", COMMIT | {"job": 1 << 64}),
        ("commit", COMMIT | {"uid": "9" * 30}),
        ("commit", COMMIT | {"uid": "9" * 5000}),
        ("abandon", {"uid": "7", "job": 10**30}),
        ("abandon", {"uid": str(1 << 63), "job": 1}),
        ("lease", {"worker": "w" * 65}),
        ("lease", {"worker": "w", "rest_ms": -1}),
        ("lease", {"worker": "w", "rest_ms": 3_600_001}),
        ("plan", {"worker": "w" * 65}),
    ],
)
def test_a_number_that_is_none_is_the_fault_of_the_request(verb: str, body: dict[str, Any]) -> None:
    jobs: Any = NoJobs()
    routes = TableRoutes(jobs, StoreRef("local", "/x"), lambda: 1)
    request = Request("POST", "", ("t", verb), {}, {}, json.dumps(body).encode(), "http://h")
    with pytest.raises((Failure, TableRefused)) as refused:
        asyncio.run(routes.admin(request))
    found = refused.value
    assert (found.code if isinstance(found, Failure) else (found.status, found.code)) in (
        "INVALID_REQUEST",
        (400, "INVALID_REQUEST"),
    )


def test_a_lease_is_extended_or_released() -> None:
    calls: list[tuple[Any, ...]] = []

    class Noted:
        tables: Any = None
        snapshots: Any = None

        async def extend_lease(self, *asked: Any) -> bool:
            calls.append(("extend", *asked))
            return True

        async def release_lease(self, *asked: Any) -> None:
            calls.append(("release", *asked))

    jobs: Any = Noted()
    routes = TableRoutes(jobs, StoreRef("local", "/x"), lambda: 1)

    def lease(**body: Any) -> tuple[int, Any]:
        data = json.dumps(body).encode()
        request = Request("POST", "", ("t", "lease"), {}, {}, data, "http://h")
        return asyncio.run(routes.admin(request))

    assert lease(worker="w") == (200, {"held": True})
    assert lease(worker="w", rest_ms=5) == (200, {"held": False})
    assert calls == [("extend", "t", "w"), ("release", "t", "w", 5)]
