"""Limits and settings of the HTTP front."""

from __future__ import annotations

import msgspec

from polynya.base.limits import (
    CONNECTIONS_PER_CORE_MAX,
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
    sse_recycle_seconds: float = SSE_RECYCLE_SECONDS
    sse_keepalive_seconds: float = SSE_KEEPALIVE_SECONDS
    connections_max: int = CONNECTIONS_PER_CORE_MAX
    strict_parameters: bool = True  # refuse a misspelt query parameter
    # False: above the limit of hot bytes, appends get 507 instead of 503, since waiting does not
    # help
    object_store: bool = True
    default_profile: str = REPLICATED  # of streams whose creation names none
