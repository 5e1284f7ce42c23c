"""GET of STREAM?offset=snapshot: a redirect to the newest snapshot, or to the first record."""

from __future__ import annotations

from urllib.parse import urlencode

from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.read_request import is_local
from polynya.front.http.snapshots.asked import begin_of, mark_headers, path_of, redirect

SNAPSHOT = "snapshot"  # instead of an offset


def begin_at_snapshot(exchange: Exchange) -> None:
    """Respond to a read from the newest snapshot on. Raises `Failure`."""
    exchange.spawn(_begin(exchange, local=is_local(exchange)), waits=True)


async def _begin(exchange: Exchange, *, local: bool) -> None:
    found = await begin_of(exchange, local=local)
    if found is None:
        return
    info, mark = found
    if mark is not None:
        redirect(exchange, path_of(exchange, mark), mark_headers(info, mark))
        return
    query = {**exchange.query, "offset": "-1"}
    query.pop("access_token", None)
    redirect(exchange, f"{exchange.route.path}?{urlencode(query)}")
