"""Limits, settings and counters of the HTTP front."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from polynya.base.histogram import Histogram
from polynya.base.limits import (
    CONNECTIONS_PER_CORE_MAX,
    IMMUTABLE_SECONDS_DEFAULT,
    LONG_POLL_SECONDS_DEFAULT,
    MIB,
    SSE_KEEPALIVE_SECONDS,
    SSE_RECYCLE_SECONDS,
)
from polynya.base.names import REPLICATED

BODY_BYTES_PER_CORE = 256 * MIB  # partially received request bodies; beyond it large ones get 503
HEAD_SECONDS = 20  # timeout for the request line and headers
BODY_SECONDS = 30  # timeout for a body, plus one second per …
BODY_BYTES_PER_SECOND = 16 * 1024  # … this many received bytes
IDLE_SECONDS = 75  # timeout between requests of a connection
# timeout while the client reads nothing of a response; the kernel's buffers make it coarse
STALL_SECONDS = 30
LINGER_SECONDS = 10  # timeout for the client's close after the last response


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    long_poll_seconds: float = LONG_POLL_SECONDS_DEFAULT
    immutable_max_age: float = IMMUTABLE_SECONDS_DEFAULT
    sse_recycle_seconds: float = SSE_RECYCLE_SECONDS
    sse_keepalive_seconds: float = SSE_KEEPALIVE_SECONDS
    connections_max: int = CONNECTIONS_PER_CORE_MAX
    strict_parameters: bool = True  # refuse a misspelt query parameter
    # False: above the limit of hot bytes, appends get 507 instead of 503, since waiting does not
    # help
    object_store: bool = True
    default_profile: str = REPLICATED  # of streams whose creation names none
    http2: bool = False  # serve HTTP/2 too, which needs the library of the extra `h2`


class HttpCounters:
    """Counters of the front: plain numbers, read at scrape time."""

    __slots__ = (
        "append_seconds",
        "appends",
        "bytes_in",
        "connections_opened",
        "connections_refused",
        "first_byte_seconds",
        "http2_connections",
        "http2_refused",
        "http2_streams",
        "live_cut",
        "live_opened",
        "long_poll_seconds",
        "long_polls",
        "stalled",
        "statuses",
        "timeouts",
    )

    def __init__(self) -> None:
        self.appends = 0  # stream POSTs, successful or not
        self.bytes_in = 0  # of append bodies
        self.connections_opened = 0
        self.connections_refused = 0
        self.http2_connections = self.http2_streams = 0  # opened
        self.http2_refused: dict[str, int] = {}  # connections, by the reason
        self.live_opened = 0  # SSE subscriptions
        self.live_cut = 0  # of those, ended because the reader was slow
        self.long_polls = 0
        self.stalled = 0  # connections closed because the client stopped reading
        self.timeouts = 0
        self.statuses: dict[int, int] = defaultdict(int)
        self.append_seconds = Histogram()
        self.first_byte_seconds = Histogram()  # of reads but long-polls
        self.long_poll_seconds = Histogram()  # from a wake to the response

    def refuse_handshake(self) -> None:
        """Count a handshake that was dropped for a newer one."""
        self.connections_refused += 1
