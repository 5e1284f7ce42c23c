"""The refusal of a read behind the trim, which names the snapshot to begin with."""

from __future__ import annotations

from polynya.base.errors import PolynyaError
from polynya.base.offsets import format_token
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.refusals import (
    fail_refusal,
    retained_headers,
    trimmed_message,
)
from polynya.front.http.snapshots.asked import newest_of, offset_headers
from polynya.local.api import Refusal
from polynya.stream.replies import Code


def fail_read(exchange: Exchange, refusal: Refusal) -> None:
    """Respond with the error of a refused read."""
    if refusal.code == Code.TRIMMED:
        exchange.spawn(fail_trimmed(exchange, refusal), waits=True)
    else:
        fail_refusal(exchange, refusal)


async def fail_trimmed(exchange: Exchange, refusal: Refusal) -> None:
    """Respond with the error of a refused read, and where its offset is trimmed with the newest
    snapshot, if it is not behind the trim."""
    mark = None
    if refusal.code == Code.TRIMMED:
        try:
            info = await exchange.stream.info()
        except PolynyaError:  # the refusal says enough
            info = refusal
        mark = None if isinstance(info, Refusal) else newest_of(exchange, info)
    if mark is None:
        fail_refusal(exchange, refusal)
        return
    token = format_token(mark.record, mark.byte)
    exchange.fail(
        "TRIMMED",
        f"{trimmed_message(refusal)}; the newest snapshot is at {token}",
        [*retained_headers(exchange, refusal), *offset_headers(exchange, mark)],
    )
