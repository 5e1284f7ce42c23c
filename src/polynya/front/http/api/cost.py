"""`GET /v1/cost?hours=24`: the use of the object store and of the network between zones, and the
money for it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from polynya.cost import HOURS_MAX, CostReport, bill_of, default_prices
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, json_response

PATH = "/v1/cost"
HOURS_DEFAULT = 24


class Costs(Protocol):
    """The costs of all nodes."""

    async def report(self, hours: int) -> CostReport: ...


class CostRoute:
    """The handler for `PATH`."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._prices = default_prices()

    async def handle(self, request: Request) -> Response:
        """Answer with the report and its bill by the default prices. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        report = await self._costs.report(_hours(request))
        bill = await asyncio.to_thread(bill_of, report, self._prices)
        body = {**msgspec.to_builtins(report), "bill": msgspec.to_builtins(bill)}
        return json_response(body)


def _hours(request: Request) -> int:
    text = request.query.get("hours", str(HOURS_DEFAULT))
    hours = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= hours <= HOURS_MAX:
        raise Failure(
            "INVALID_REQUEST",
            f"hours is {text!r}; expected a number from 1 to {HOURS_MAX}: a node keeps 30 days",
        )
    return hours
