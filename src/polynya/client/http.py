"""HTTP for both shells: requests of the session over httpx, and whatever happens to them as an answer or a break.

httpx, and not a client of our own: it is kept well, is in the package already, has the same face for both shells, and brings TLS, proxies
and connection pools. What the session sends is few and large (pages, batches), so the library's cost per request is not what limits it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

import polynya
from polynya.client.extras import Extras, extras_of
from polynya.client.messages import CONNECT_SECONDS, Broken, HttpRequest, HttpResponse
from polynya.client.routing import NEXT_SECONDS, OWNER_SECONDS, NodeRouter, is_loopback, server_list
from polynya.client.values import SERVER_DEFAULT

KEEP_SECONDS = 30.0  # an idle connection; the server keeps it longer, so that it is not closed just as it is used
KEPT_MAX = 32
NODE = HttpRequest("GET", "/v1/node", silence_seconds=NEXT_SECONDS)

# Raised before anything reached the server, so that nothing can have been applied.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom: `servers` are nodes that act as one. `verify`: whether the server's certificate is checked, or an `ssl.SSLContext`."""

    servers: tuple[str, ...]
    token: str = ""
    verify: Any = True
    extras: Extras = Extras()

    @property
    def is_secret(self) -> bool:
        """Whether requests may carry a secret: a token, or a custom header or parameter."""
        return bool(self.token or self.extras)

    def settings(self) -> dict[str, Any]:
        """The arguments of both of httpx's clients. Raises ValueError when the server is no URL."""
        if not self.servers:
            raise ValueError(f"no server's URL is given; it looks like {SERVER_DEFAULT}")
        for server in self.servers:
            url = httpx.URL(server)
            if url.scheme not in ("http", "https") or not url.host:
                raise ValueError(f"{server!r} is no server's URL; it looks like {SERVER_DEFAULT}")
        if len({httpx.URL(server).scheme for server in self.servers}) > 1:
            raise ValueError("servers that act as one are all https, or all http")
        headers = {"user-agent": f"polynya-python/{polynya.__version__}", "accept": "*/*", "accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "headers": headers,
            "verify": self.verify,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_MAX, keepalive_expiry=KEEP_SECONDS),
            "trust_env": not all(map(is_loopback, self.servers)),  # a proxy of the environment cannot reach this machine's loopback
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
    """Check what a client is made with. Raises ValueError."""
    extras = extras_of(headers, params)
    if token and "authorization" in extras.headers:
        raise ValueError("token= and an Authorization header were both given; give one of them")
    return Options(servers=tuple(server_list(server)), token=token, verify=verify, extras=extras)


class _Extended:
    """The part that both wires share: which way requests go, and what goes with each."""

    def __init__(self, options: Options) -> None:
        self.compass = NodeRouter(options.servers, with_token=options.is_secret)
        self.extras = options.extras
        self._borrowed = False

    def extended(self: W, extras: Extras) -> W:
        """Return a wire that adds more to each request. It uses the same connections, which it does not close."""
        other = copy.copy(self)
        other.extras = self.extras.joined(extras)
        other.compass = self.compass.guarded() if extras else self.compass
        other._borrowed = True
        return other


W = TypeVar("W", bound=_Extended)


class Wire(_Extended):
    """Blocking. Calls may come from any thread."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._http = httpx.Client(**options.settings())
        del self._http.headers["connection"]  # keep-alive goes without saying, and the server knows an append's head by its bytes

    def close(self) -> None:
        if not self._borrowed:
            self._http.close()

    def send(self, request: HttpRequest) -> HttpResponse | Broken:
        return self._tried(request, self._send)

    def open(self, request: HttpRequest) -> tuple[HttpResponse | Broken, Opened | None]:
        """The head, and what follows it when it is that of a success."""
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

    def _tried(self, request: HttpRequest, once: Callable[[httpx.Request], HttpResponse | Broken]) -> HttpResponse | Broken:
        """By the best way, and by the next as long as nothing could be sent."""
        compass = self.compass
        ways = compass.ways(request.target, time.monotonic())
        for number, server in enumerate(ways, 1):
            parts = _parts(request, self.extras, alone=len(ways) == 1, owner=compass.owns(server, request.target))
            what = once(self._http.build_request(request.method, server + self.extras.target(request), **parts))
            if compass.heard(server, request.target, _told(what), time.monotonic()):
                nodes = self._send(self._http.build_request("GET", server + self.extras.target(NODE), **_parts(NODE, self.extras)))
                compass.met(_nodes(nodes))
                compass.heard(server, request.target, _told(what), time.monotonic())
            if number == len(ways) or not isinstance(what, Broken) or what.sent:
                break
        return what


class Opened:
    """An answer whose body is still to come."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces: Iterator[bytes] = response.iter_raw()

    def more(self) -> bytes | Broken:
        """The next bytes; none at the end."""
        try:
            return next(self._pieces, b"")
        except (httpx.TransportError, httpx.StreamError) as error:
            return _broken(error)

    def close(self) -> None:
        self._response.close()


class AsyncWire(_Extended):
    """The same without blocking."""

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
        except BaseException:  # cancelled, perhaps while the nodes were asked for
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
        self, request: HttpRequest, once: Callable[[httpx.Request], Awaitable[HttpResponse | Broken]]
    ) -> HttpResponse | Broken:
        compass = self.compass
        ways = compass.ways(request.target, time.monotonic())
        for number, server in enumerate(ways, 1):
            parts = _parts(request, self.extras, alone=len(ways) == 1, owner=compass.owns(server, request.target))
            what = await once(self._http.build_request(request.method, server + self.extras.target(request), **parts))
            if compass.heard(server, request.target, _told(what), time.monotonic()):
                nodes = await self._send(self._http.build_request("GET", server + self.extras.target(NODE), **_parts(NODE, self.extras)))
                compass.met(_nodes(nodes))
                compass.heard(server, request.target, _told(what), time.monotonic())
            if number == len(ways) or not isinstance(what, Broken) or what.sent:
                break
        return what


class AsyncOpened:
    """The same without blocking."""

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


def _parts(request: HttpRequest, extras: Extras, *, alone: bool = True, owner: bool = False) -> dict[str, Any]:
    """`alone`: there is no other way; `owner`: the node is asked because it owns the stream."""
    short = owner and "live=" not in request.target
    seconds = min(request.silence_seconds, OWNER_SECONDS) if short else request.silence_seconds
    timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS if alone else NEXT_SECONDS)
    content = request.body if request.body or request.method in ("POST", "PUT") else None
    return {"headers": extras.headers | request.headers, "content": content, "timeout": timeout}


def _told(what: HttpResponse | Broken) -> tuple[int, dict[str, str]] | None:
    return (what.status, what.headers) if isinstance(what, HttpResponse) else None


def _nodes(what: HttpResponse | Broken) -> list[str]:
    """The nodes of the cluster, as `/v1/node` names them."""
    try:
        return (
            list(msgspec.json.decode(what.body, type=_Node).nodes.values()) if isinstance(what, HttpResponse) and what.status == 200 else []
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def _head(response: httpx.Response) -> HttpResponse:
    return HttpResponse(response.status_code, dict(response.headers))


def _answer(response: httpx.Response) -> HttpResponse:
    return HttpResponse(response.status_code, dict(response.headers), response.content)


def _broken(error: Exception, url: httpx.URL | None = None) -> Broken:
    """The break, with the server that it happened with."""
    at = f" ({url.copy_with(raw_path=b'/')})".replace("/)", ")") if url is not None else ""
    return Broken(not isinstance(error, _NOT_SENT), (str(error) or type(error).__name__) + at)
