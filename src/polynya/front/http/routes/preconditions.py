"""Preconditions that a client may set on the stream."""

from __future__ import annotations

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.local.api import StreamInfo
from polynya.wire.headers import BadField, parse_incarnation


def is_other_incarnation(exchange: Exchange, info: StreamInfo) -> bool:
    """Return True if `Stream-Incarnation` names another incarnation; the error has then been sent.
    Raises `Failure`."""
    text = exchange.head.headers.get("stream-incarnation")
    if text is None:
        return False
    try:
        asked = parse_incarnation(text)
    except BadField as bad:
        raise Failure("INVALID_HEADER", str(bad)) from None
    if asked == info.uid:
        return False
    exchange.fail("INCARNATION_MISMATCH", headers=[("Stream-Incarnation", str(info.uid))])
    return True
