"""PUT /{bucket} with Ursula's URLs: buckets are implicit, so this only validates the name."""

from __future__ import annotations

from polynya.front.http.protocol.exchange import Exchange


def put_bucket(exchange: Exchange) -> None:
    exchange.answer(201, [("Location", exchange.base_url + exchange.route.path)])
