"""Send requests with httpx, from asyncio code."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx

from polynya.client import http
from polynya.client.messages import Broken, HttpRequest, HttpResponse


class AsyncWire(http.Extended):
    """The asyncio HTTP transport."""

    def __init__(self, options: http.Options) -> None:
        super().__init__(options)
        self._http = httpx.AsyncClient(**options.settings())
        # HTTP/1.1 implies keep-alive, and the server recognizes an append's head by its exact bytes
        del self._http.headers["connection"]

    async def close(self) -> None:
        if not self._borrowed:
            await self._http.aclose()

    async def send(self, request: HttpRequest) -> HttpResponse | Broken:
        return await self._tried(request, self._send)

    async def open(self, request: HttpRequest) -> tuple[HttpResponse | Broken, AsyncOpened | None]:
        """Send a request. Return its head, and the open body of a success."""
        opened: list[AsyncOpened] = []

        async def once(built: httpx.Request) -> HttpResponse | Broken:
            try:
                response = await self._http.send(built, stream=True)
                if response.status_code == 200:
                    opened.append(AsyncOpened(response))
                    return http.head_of(response)
                await response.aread()
                return http.response_of(response)
            except (httpx.TransportError, httpx.DecodingError) as error:
                return http.broken_of(error, built.url)

        try:
            answer = await self._tried(request, once)
        except BaseException:  # perhaps while fetching the list of nodes
            for each in opened:
                await each.close()
            raise
        return answer, opened[0] if opened else None

    async def _send(self, built: httpx.Request) -> HttpResponse | Broken:
        try:
            return http.response_of(await self._http.send(built))
        except (httpx.TransportError, httpx.DecodingError) as error:
            return http.broken_of(error, built.url)

    async def _tried(
        self,
        request: HttpRequest,
        once: Callable[[httpx.Request], Awaitable[HttpResponse | Broken]],
    ) -> HttpResponse | Broken:
        """Send to the preferred server, and to the next one while nothing could be sent."""
        router = self.router
        ways = router.ways(request.target, time.monotonic())
        for number, server in enumerate(ways, 1):
            parts = http.parts_of(
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
            if router.on_answer(server, request.target, http.status_of(what), time.monotonic()):
                nodes = await self._send(
                    self._http.build_request(
                        "GET",
                        server + self.extras.target(http.NODE),
                        **http.parts_of(http.NODE, self.extras),
                    )
                )
                router.met(http.nodes_of(nodes))
                router.on_answer(server, request.target, http.status_of(what), time.monotonic())
            if number == len(ways) or not isinstance(what, Broken) or what.sent:
                break
        return what


class AsyncOpened:
    """A response whose body is still arriving."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces: AsyncIterator[bytes] = response.aiter_raw()

    async def more(self) -> bytes | Broken:
        """Return the next bytes; empty at the end."""
        try:
            return await anext(self._pieces, b"")
        except (httpx.TransportError, httpx.StreamError) as error:
            return http.broken_of(error)

    async def close(self) -> None:
        await self._response.aclose()
