"""PUT /{bucket} with Ursula's URLs: buckets are implicit, so this only validates the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.front.http.protocol.exchange import Exchange

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront


def put_bucket(front: HttpFront, exchange: Exchange) -> None:
    exchange.answer(201, [("Location", exchange.base_url + exchange.route.path)])
