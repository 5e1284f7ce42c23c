"""HTTP for both shells: requests of the session over httpx, and whatever happens to them as an answer or a break.

httpx, and not a client of our own: it is kept well, is in the package already, has the same face for both shells, and brings TLS, proxies
and connection pools. What the session sends is few and large (pages, batches), so the library's cost per request is not what limits it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec

import polynya
from polynya.client.messages import CONNECT_SECONDS, Answer, Broken, Request
from polynya.client.values import SERVER_DEFAULT

KEEP_SECONDS = 30.0  # an idle connection; the server keeps it longer, so that it is not closed just as it is used
KEPT_MAX = 32
_LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))

# Raised before anything reached the server, so that nothing can have been applied.
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Where and as whom. `verify`: whether the server's certificate is checked, or an `ssl.SSLContext`."""

    server: str
    token: str = ""
    verify: Any = True

    def settings(self) -> dict[str, Any]:
        """The arguments of both of httpx's clients. Raises ValueError when the server is no URL."""
        url = httpx.URL(self.server)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"{self.server!r} is no server's URL; it looks like {SERVER_DEFAULT}")
        headers = {"user-agent": f"polynya-python/{polynya.__version__}", "accept": "*/*", "accept-encoding": "identity"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        return {
            "headers": headers,
            "verify": self.verify,
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_MAX, keepalive_expiry=KEEP_SECONDS),
            "trust_env": url.host not in _LOOPBACK,  # a proxy of the environment cannot reach this machine's loopback
        }


def options_of(server: str, token: str, verify: Any) -> Options:
    return Options(server=(server if "://" in server else f"http://{server}").rstrip("/"), token=token, verify=verify)


class Wire:
    """Blocking. Calls may come from any thread."""

    def __init__(self, options: Options) -> None:
        self._server = options.server
        self._http = httpx.Client(**options.settings())
        del self._http.headers["connection"]  # keep-alive goes without saying, and the server knows an append's head by its bytes

    def close(self) -> None:
        self._http.close()

    def send(self, request: Request) -> Answer | Broken:
        try:
            return _answer(self._http.send(self._built(request)))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error)

    def open(self, request: Request) -> tuple[Answer | Broken, Opened | None]:
        """The head, and what follows it when it is that of a success."""
        try:
            response = self._http.send(self._built(request), stream=True)
            if response.status_code == 200:
                return _head(response), Opened(response)
            response.read()
            return _answer(response), None
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error), None

    def _built(self, request: Request) -> httpx.Request:
        return self._http.build_request(request.method, self._server + request.target, **_parts(request))


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


class AsyncWire:
    """The same without blocking."""

    def __init__(self, options: Options) -> None:
        self._server = options.server
        self._http = httpx.AsyncClient(**options.settings())
        del self._http.headers["connection"]

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, request: Request) -> Answer | Broken:
        try:
            return _answer(await self._http.send(self._built(request)))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error)

    async def open(self, request: Request) -> tuple[Answer | Broken, AsyncOpened | None]:
        try:
            response = await self._http.send(self._built(request), stream=True)
            if response.status_code == 200:
                return _head(response), AsyncOpened(response)
            await response.aread()
            return _answer(response), None
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _broken(error), None

    def _built(self, request: Request) -> httpx.Request:
        return self._http.build_request(request.method, self._server + request.target, **_parts(request))


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


def _parts(request: Request) -> dict[str, Any]:
    timeout = httpx.Timeout(request.silence_seconds, connect=CONNECT_SECONDS)
    content = request.body if request.body or request.method in ("POST", "PUT") else None
    return {"headers": request.headers, "content": content, "timeout": timeout}


def _head(response: httpx.Response) -> Answer:
    return Answer(response.status_code, dict(response.headers))


def _answer(response: httpx.Response) -> Answer:
    return Answer(response.status_code, dict(response.headers), response.content)


def _broken(error: Exception) -> Broken:
    return Broken(not isinstance(error, _NOT_SENT), str(error) or type(error).__name__)
