"""HTTP for both clients: send requests with httpx and return responses or broken attempts.

httpx is maintained, already a dependency, and offers one interface for blocking and asyncio with
TLS, proxies and pooling. Requests are few and large (pages, batches), so its cost per request is
not the limit.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
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


class _Extended:
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


W = TypeVar("W", bound=_Extended)


class Wire(_Extended):
    """The blocking HTTP transport. Threads may share it."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._http = httpx.Client(**options.settings())
        # HTTP/1.1 implies keep-alive, and the server recognizes an append's head by its exact bytes
        del self._http.headers["connection"]

    def close(self) -> None:
        if not self._borrowed:
            self._http.close()

    def send(self, request: HttpRequest) -> HttpResponse | Broken:
        return self._tried(request, self._send)

    def open(self, request: HttpRequest) -> tuple[HttpResponse | Broken, Opened | None]:
        """Send a request. Return its head, and the open body of a success."""
        opened: list[Opened] = []

        def once(built: httpx.Request) -> HttpResponse | Broken:
            try:
                response = self._http.send(built, stream=True)
                if response.status_code == 200:
                    opened.append(Opened(response))
                    return _head(response)
                response.read()
                return _answer(response)
            except (httpx.TransportError, httpx.DecodingError) as error:
                return _broken(error, built.url)

        try:
            answer = self._tried(request, once)
        except BaseException:
            for each in opened:
                each.close()
            raise
        return answer, opened[0] if opened else None

    def _send(self, built: httpx.Request) -> HttpResponse | Broken:
        try:
            return _answer(self._http.send(built))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error, built.url)

    def _tried(
        self, request: HttpRequest, once: Callable[[httpx.Request], HttpResponse | Broken]
    ) -> HttpResponse | Broken:
        """Send to the preferred server, and to the next one while nothing could be sent."""
        router = self.router
        ways = router.ways(request.target, time.monotonic())
        for number, server in enumerate(ways, 1):
            parts = _parts(
                request,
                self.extras,
                alone=len(ways) == 1,
                owner=router.owns(server, request.target),
            )
            what = once(
                self._http.build_request(
                    request.method, server + self.extras.target(request), **parts
                )
            )
            if router.on_answer(server, request.target, _told(what), time.monotonic()):
                nodes = self._send(
                    self._http.build_request(
                        "GET", server + self.extras.target(NODE), **_parts(NODE, self.extras)
                    )
                )
                router.met(_nodes(nodes))
                router.on_answer(server, request.target, _told(what), time.monotonic())
            if number == len(ways) or not isinstance(what, Broken) or what.sent:
                break
        return what


class Opened:
    """A response whose body is still arriving."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces: Iterator[bytes] = response.iter_raw()

    def more(self) -> bytes | Broken:
        """Return the next bytes; empty at the end."""
        try:
            return next(self._pieces, b"")
        except (httpx.TransportError, httpx.StreamError) as error:
            return _broken(error)

    def close(self) -> None:
        self._response.close()


class AsyncWire(_Extended):
    """The asyncio HTTP transport."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._http = httpx.AsyncClient(**options.settings())
        del self._http.headers["connection"]

    async def close(self) -> None:
        if not self._borrowed:
            await self._http.aclose()

    async def send(self, request: HttpRequest) -> HttpResponse | Broken:
        return await self._tried(request, self._send)

    async def open(self, request: HttpRequest) -> tuple[HttpResponse | Broken, AsyncOpened | None]:
        opened: list[AsyncOpened] = []

        async def once(built: httpx.Request) -> HttpResponse | Broken:
            try:
                response = await self._http.send(built, stream=True)
                if response.status_code == 200:
                    opened.append(AsyncOpened(response))
                    return _head(response)
                await response.aread()
                return _answer(response)
            except (httpx.TransportError, httpx.DecodingError) as error:
                return _broken(error, built.url)

        try:
            answer = await self._tried(request, once)
        except BaseException:  # cancelled, perhaps while fetching the list of nodes
            for each in opened:
                await each.close()
            raise
        return answer, opened[0] if opened else None

    async def _send(self, built: httpx.Request) -> HttpResponse | Broken:
        try:
            return _answer(await self._http.send(built))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error, built.url)

    async def _tried(
        self,
        request: HttpRequest,
        once: Callable[[httpx.Request], Awaitable[HttpResponse | Broken]],
    ) -> HttpResponse | Broken:
        router = self.router
        ways = router.ways(request.target, time.monotonic())
        for number, server in enumerate(ways, 1):
            parts = _parts(
                request,
                self.extras,
                alone=len(ways) == 1,
                owner=router.owns(server, request.target),
            )
            what = await once(
                self._http.build_request(
                    request.method, server + self.extras.target(request), **parts
                )
            )
            if router.on_answer(server, request.target, _told(what), time.monotonic()):
                nodes = await self._send(
                    self._http.build_request(
                        "GET", server + self.extras.target(NODE), **_parts(NODE, self.extras)
                    )
                )
                router.met(_nodes(nodes))
                router.on_answer(server, request.target, _told(what), time.monotonic())
            if number == len(ways) or not isinstance(what, Broken) or what.sent:
                break
        return what


class AsyncOpened:
    """A response whose body is still arriving, for asyncio."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces: AsyncIterator[bytes] = response.aiter_raw()

    async def more(self) -> bytes | Broken:
        try:
            return await anext(self._pieces, b"")
        except (httpx.TransportError, httpx.StreamError) as error:
            return _broken(error)

    async def close(self) -> None:
        await self._response.aclose()


def _parts(
    request: HttpRequest, extras: Extras, *, alone: bool = True, owner: bool = False
) -> dict[str, Any]:
    """Return httpx's arguments for a request. `alone`: no other server is left to try. `owner`: the
    node owns the stream."""
    short = owner and "live=" not in request.target
    seconds = min(request.silence_seconds, OWNER_SECONDS) if short else request.silence_seconds
    timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS if alone else NEXT_SECONDS)
    content = request.body if request.body or request.method in ("POST", "PUT") else None
    return {"headers": extras.headers | request.headers, "content": content, "timeout": timeout}


def _told(what: HttpResponse | Broken) -> tuple[int, dict[str, str]] | None:
    return (what.status, what.headers) if isinstance(what, HttpResponse) else None


def _nodes(what: HttpResponse | Broken) -> list[str]:
    """Return the cluster's nodes from a response of `/v1/node`."""
    try:
        return (
            list(msgspec.json.decode(what.body, type=_Node).nodes.values())
            if isinstance(what, HttpResponse) and what.status == 200
            else []
        )
    except UNREADABLE:
        return []


def _head(response: httpx.Response) -> HttpResponse:
    return HttpResponse(response.status_code, dict(response.headers))


def _answer(response: httpx.Response) -> HttpResponse:
    return HttpResponse(response.status_code, dict(response.headers), response.content)


def _broken(error: Exception, url: httpx.URL | None = None) -> Broken:
    """Return the broken attempt, with the server's URL in its reason."""
    at = f" ({url.copy_with(raw_path=b'/')})".replace("/)", ")") if url is not None else ""
    return Broken(not isinstance(error, _NOT_SENT), (str(error) or type(error).__name__) + at)
