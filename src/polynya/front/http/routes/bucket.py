"""PUT /{bucket} on Ursula's spelling: buckets are implicit, so this only says that the name is legal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polynya.front.http.protocol.exchange import Exchange

if TYPE_CHECKING:
    from polynya.front.http.server import HttpFront


def put_bucket(front: HttpFront, exchange: Exchange) -> None:
    exchange.answer(201, [("Location", exchange.base_url + exchange.route.path)])
