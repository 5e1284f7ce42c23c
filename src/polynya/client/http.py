"""HTTP for both clients: their options, and how requests, responses and failures are translated to
and from httpx.

httpx is maintained, already a dependency, and offers one interface for blocking and asyncio with
TLS, proxies and pooling. Requests are few and large (pages, batches), so its cost per request is
not the limit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

import polynya
from polynya.base.msgpack import UNREADABLE
from polynya.client.extras import Extras, extras_of
from polynya.client.messages import CONNECT_SECONDS, Broken, HttpRequest, HttpResponse
from polynya.client.routing import NEXT_SECONDS, OWNER_SECONDS, NodeRouter, is_loopback, server_list
from polynya.client.values import SERVER_DEFAULT

# idle connections; the server keeps them longer, so that none closes just as it is reused
KEEP_SECONDS = 30.0
KEPT_MAX = 32
NODE = HttpRequest("GET", "/v1/node", silence_seconds=NEXT_SECONDS)

# Raised before any byte reached the server: nothing can have been applied.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The servers and credentials of a client. `servers` are the nodes of one cluster. `verify` is
    True, False, or an `ssl.SSLContext`."""

    servers: tuple[str, ...]
    token: str = ""
    verify: Any = True
    extras: Extras = Extras()

    @property
    def is_secret(self) -> bool:
        """True if requests may carry a secret: a token, or a custom header or parameter."""
        return bool(self.token or self.extras)

    def settings(self) -> dict[str, Any]:
        """Return the arguments for httpx's clients. Raises ValueError when a server is not a
        URL."""
        if not self.servers:
            raise ValueError(f"the server's URL is missing; expected a form like {SERVER_DEFAULT}")
        for server in self.servers:
            url = httpx.URL(server)
            if url.scheme not in ("http", "https") or not url.host:
                raise ValueError(
                    f"{server!r} is not a server's URL; expected a form like {SERVER_DEFAULT}"
                )
        if len({httpx.URL(server).scheme for server in self.servers}) > 1:
            raise ValueError("the nodes of a cluster are all https or all http")
        headers = {
            "user-agent": f"polynya-python/{polynya.__version__}",
            "accept": "*/*",
            "accept-encoding": "identity",
        }
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "headers": headers,
            "verify": self.verify,
            "limits": httpx.Limits(
                max_connections=None,
                max_keepalive_connections=KEPT_MAX,
                keepalive_expiry=KEEP_SECONDS,
            ),
            "trust_env": not all(
                map(is_loopback, self.servers)
            ),  # a proxy cannot reach this machine's loopback
        }


class _Node(msgspec.Struct):
    nodes: dict[str, str] = {}


def options_of(
    server: str | Sequence[str],
    token: str,
    verify: Any,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> Options:
    """Validate the arguments of a client. Raises ValueError."""
    extras = extras_of(headers, params)
    if token and "authorization" in extras.headers:
        raise ValueError("token= and an Authorization header exclude each other; pass one of them")
    return Options(servers=tuple(server_list(server)), token=token, verify=verify, extras=extras)


class Extended:
    """The part that both wires share: the router, and the extras added to each request."""

    def __init__(self, options: Options) -> None:
        self.router = NodeRouter(options.servers, with_token=options.is_secret)
        self.extras = options.extras
        self._borrowed = False

    def extended(self: W, extras: Extras) -> W:
        """Return a wire that adds more extras to each request. It borrows the connections of this
        one and never closes them."""
        other = copy.copy(self)
        other.extras = self.extras.joined(extras)
        other.router = self.router.guarded() if extras else self.router
        other._borrowed = True
        return other


W = TypeVar("W", bound=Extended)


def parts_of(
    request: HttpRequest, extras: Extras, *, alone: bool = True, owner: bool = False
) -> dict[str, Any]:
    """Return httpx's arguments for a request. `alone`: no other server is left to try. `owner`: the
    node owns the stream."""
    short = owner and "live=" not in request.target
    seconds = min(request.silence_seconds, OWNER_SECONDS) if short else request.silence_seconds
    timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS if alone else NEXT_SECONDS)
    content = request.body if request.body or request.method in ("POST", "PUT") else None
    return {"headers": extras.headers | request.headers, "content": content, "timeout": timeout}


def status_of(what: HttpResponse | Broken) -> tuple[int, dict[str, str]] | None:
    """Return the status and the headers of a response; None of a broken attempt."""
    return (what.status, what.headers) if isinstance(what, HttpResponse) else None


def nodes_of(what: HttpResponse | Broken) -> list[str]:
    """Return the cluster's nodes from a response of `/v1/node`."""
    try:
        return (
            list(msgspec.json.decode(what.body, type=_Node).nodes.values())
            if isinstance(what, HttpResponse) and what.status == 200
            else []
        )
    except UNREADABLE:
        return []


def head_of(response: httpx.Response) -> HttpResponse:
    """Return a response without its body."""
    return HttpResponse(response.status_code, dict(response.headers))


def response_of(response: httpx.Response) -> HttpResponse:
    """Return a response whose body has been read."""
    url = str(response.request.url)
    return HttpResponse(response.status_code, dict(response.headers), response.content, url)


def broken_of(error: Exception, url: httpx.URL | None = None) -> Broken:
    """Return the broken attempt, with the server's URL in its reason."""
    at = f" ({url.copy_with(raw_path=b'/')})".replace("/)", ")") if url is not None else ""
    return Broken(not isinstance(error, _NOT_SENT), (str(error) or type(error).__name__) + at)
