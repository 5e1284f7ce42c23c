"""`GET /v1/cost`: its parameter and its response."""

from __future__ import annotations

import asyncio
import json

import pytest

from polynya.cost import CostReport, Shape, report_of
from polynya.cost.report import NodeRows
from polynya.front.http.api.cost import CostRoute
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request


class FixedCosts:
    """One node that put 1,000 objects."""

    async def report(self, hours: int) -> CostReport:
        node = NodeRows(1, "a", [[(5, [(("store", "flush", "put"), 1000)])]], [])
        return report_of([node], Shape(), [2], hours, 5 * 3600)


def asked(query: dict[str, str], method: str = "GET") -> dict[str, object]:
    request = Request(method, "/v1/cost", (), query, {}, b"", "http://x")
    answer = asyncio.run(CostRoute(FixedCosts()).handle(request))
    assert answer.status == 200 and ("Cache-Control", "no-store") in answer.headers
    body: dict[str, object] = json.loads(answer.body)
    return body


def test_the_answer_has_the_counts_and_the_money() -> None:
    report = asked({})
    assert report["hours"] == 24 and report["missing"] == [2]
    assert report["nodes"] == [
        {
            "node": 1,
            "zone": "a",
            "usage": {
                "store": {"flush": {"put": 1000}},
                "zones": [],
                "appends": 0,
                "append_bytes": 0,
                "packed": {},
            },
            "missing_cores": [],
        }
    ]
    bill = report["bill"]
    assert isinstance(bill, dict)
    assert bill["totals"]["measured"] == pytest.approx(0.005) and bill["currency"] == "USD"
    assert asked({"hours": "720"})["hours"] == 720


@pytest.mark.parametrize("hours", ["0", "721", "-1", "x", "", "1e2", "999999999999"])
def test_hours_outside_the_history_are_refused(hours: str) -> None:
    with pytest.raises(Failure, match="1 to 720") as refused:
        asked({"hours": hours})
    assert refused.value.code == "INVALID_REQUEST"


def test_only_reads_are_served() -> None:
    with pytest.raises(Failure) as refused:
        asked({}, "POST")
    assert refused.value.code == "METHOD_NOT_ALLOWED"
