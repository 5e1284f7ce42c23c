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


class NoTables:
    """Must not be asked."""

    async def commit(self, *asked: Any) -> None:
        raise AssertionError(asked)

    abandon = commit


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("commit", COMMIT | {"rows": -1}),
        ("commit", COMMIT | {"rows": 1 << 63}),
        ("commit", COMMIT | {"dead_rows": 10**30}),
        ("commit", COMMIT | {"job": 1 << 64}),
        ("commit", COMMIT | {"uid": "9" * 30}),
        ("commit", COMMIT | {"uid": "9" * 5000}),
        ("abandon", {"uid": "7", "job": 10**30}),
        ("abandon", {"uid": str(1 << 63), "job": 1}),
    ],
)
def test_a_number_that_is_none_is_the_fault_of_the_request(verb: str, body: dict[str, Any]) -> None:
    tables: Any = NoTables()
    routes = TableRoutes(tables, StoreRef("local", "/x"), lambda: 1)
    request = Request("POST", "", ("t", verb), {}, {}, json.dumps(body).encode(), "http://h")
    with pytest.raises((Failure, TableRefused)) as refused:
        asyncio.run(routes.admin(request))
    found = refused.value
    assert (found.code if isinstance(found, Failure) else (found.status, found.code)) in (
        "INVALID_REQUEST",
        (400, "INVALID_REQUEST"),
    )
