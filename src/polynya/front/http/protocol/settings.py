"""Numbers that an operator may set for the HTTP front."""

from __future__ import annotations

import msgspec

from polynya.base.limits import CONNECTIONS_PER_CORE_MAX, LONG_POLL_SECONDS_DEFAULT, MIB, SSE_KEEPALIVE_SECONDS, SSE_RECYCLE_SECONDS

BODY_BYTES_PER_CORE = 256 * MIB  # request bodies that have not all arrived; over it large ones get 503
HEAD_SECONDS = 20  # for a request line and headers to arrive
HANDSHAKE_SECONDS = 10  # of TLS
HANDSHAKES_MAX = 512  # at a time, and no more than one in four of the connections that there may be; over it the oldest goes
BODY_SECONDS = 30  # for a body to arrive, and a second more for each …
BODY_BYTES_PER_SECOND = 16 * 1024  # … so many bytes that did
IDLE_SECONDS = 75  # between requests of a connection
STALL_SECONDS = 30  # without the client taking anything of an answer; the kernel's buffers make this coarse
LINGER_SECONDS = 10  # for what is still coming after the last answer


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    long_poll_seconds: float = LONG_POLL_SECONDS_DEFAULT
    sse_recycle_seconds: float = SSE_RECYCLE_SECONDS
    sse_keepalive_seconds: float = SSE_KEEPALIVE_SECONDS
    connections_max: int = CONNECTIONS_PER_CORE_MAX
    object_store: bool = True  # False: over the bound of hot bytes appends get 507 instead of 503, as waiting does not help
