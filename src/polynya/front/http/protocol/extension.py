"""What others may hang into the front: whole requests in, whole responses out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from polynya.access import Principal


class Request(msgspec.Struct, gc=False):
    """A complete request, as a handler or a mount gets it."""

    method: str
    path: str  # as it came, without the query
    segments: tuple[str, ...]  # below the mount's prefix, each percent-decoded by itself; () at a handler's exact path
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes
    base_url: str  # "http://host:port", as the client spelled the host
    principal: Principal | None = None  # who asks, where access is controlled
    remote: str = ""  # the address it comes from
    request_id: str = ""


class Response(msgspec.Struct, gc=False):
    """`headers` must hold neither lengths nor connection options; the front adds those and the ones that every answer has."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


READS_BY_POST = frozenset(["/v1/sql"])
"""Paths whose handlers change nothing, so that they are cancelled when the client goes."""

Handler = Callable[[Request], Awaitable[Response]]
"""May raise `polynya.front.http.protocol.errors.Failure`, or `Unavailable` and `OutcomeUnknown`; anything else is answered with 500 and logged."""
