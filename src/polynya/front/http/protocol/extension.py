"""Interface for handlers outside the front: complete requests in, complete responses out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from polynya.access import Principal
from polynya.base.limits import (
    MIB,
    MODULE_BYTES_MAX,
    SCHEMA_BODY_BYTES_MAX,
    SQL_BODY_BYTES_MAX,
    SUBSCRIPTION_BODY_BYTES_MAX,
)
from polynya.base.msgpack import UNREADABLE
from polynya.front.http.protocol.errors import Failure

Shape = TypeVar("Shape")
NO_STORE = (("Cache-Control", "no-store"),)


class Request(msgspec.Struct, gc=False):
    """A complete request, as handlers and mounts get it."""

    method: str
    path: str  # as received, without the query
    # below the mount's prefix, each percent-decoded; () for a handler's exact path
    segments: tuple[str, ...]
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes
    base_url: str  # "http://host:port", as the client spelled the host
    principal: Principal | None = None  # the caller, with access control
    remote: str = ""  # the peer's address
    request_id: str = ""


class Response(msgspec.Struct, gc=False):
    """A response. `headers` must omit lengths and connection options; the front adds those and the
    common headers."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


def json_response(value: Any, status: int = 200) -> Response:
    """Return a JSON response that is not cached."""
    return Response(status, msgspec.json.encode(value), headers=NO_STORE)


ADMIN_BODY_BYTES_MAX = 4 * MIB
BODY_BYTES_MAX = (
    ("/v1/sql", SQL_BODY_BYTES_MAX),
    ("/registry/", SCHEMA_BODY_BYTES_MAX),
    ("/v1/modules", MODULE_BYTES_MAX),
    ("/v1/stream/__ds/", SUBSCRIPTION_BODY_BYTES_MAX),
    ("/v1/streams/__ds/", SUBSCRIPTION_BODY_BYTES_MAX),
    ("/v1/admin/", ADMIN_BODY_BYTES_MAX),
    ("/v1/cluster/", ADMIN_BODY_BYTES_MAX),
)
"""The largest bodies of routes that take less than an append, by prefix: judged at the headers."""

READS_BY_POST = frozenset(["/v1/sql", "/v1/ranges"])
"""Paths whose handlers have no side effects, so that a disconnect of the client cancels them."""

Handler = Callable[[Request], Awaitable[Response]]
"""A handler. It may raise `polynya.front.http.protocol.errors.Failure`, `Unavailable` or
`OutcomeUnknown`; other errors are logged and become 500."""


def read_json(body: bytes, shape: type[Shape]) -> Shape:
    """Decode a body. Raises `Failure`, also for invalid UTF-8 and for too deep nesting."""
    try:
        return msgspec.json.decode(body, type=shape)
    except RecursionError:
        raise Failure("INVALID_REQUEST", "the body is nested too deeply") from None
    except UNREADABLE as error:
        raise Failure("INVALID_REQUEST", f"the body is not valid for this path: {error}") from None
