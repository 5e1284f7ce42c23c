"""One core with its subscriptions, asked as over HTTP, without sockets of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from worlds.service import World

from polynya.front.http.api.subscriptions import SubscriptionRoutes
from polynya.front.http.protocol.extension import Request, Response
from polynya.subscriptions import Subscriptions

BASE = "http://node:4437"


class Shell:
    """`ask` is a request below `/v1/stream/__ds/`; log time stands still unless the test moves
    it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.subscriptions = Subscriptions(world.service, allow_loopback=True)
        world.engine.after_turn.append(self.subscriptions.pump)
        self._routes = SubscriptionRoutes(self.subscriptions)

    async def respond(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str = "",
        scheme: str = "Bearer",
        **query: str,
    ) -> Response:
        segments = tuple(part.replace("%2F", "/") for part in path.split("/"))
        headers = {"authorization": f"{scheme} {token}"} if token else {}
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        )
        return await self._routes.handle(
            Request(method, f"/v1/stream/__ds/{path}", segments, query, headers, raw, BASE)
        )

    async def ask(
        self, method: str, path: str, body: Any = None, token: str = "", **query: str
    ) -> tuple[int, Any]:
        response = await self.respond(method, path, body, token, **query)
        return response.status, msgspec.json.decode(response.body) if response.body else None

    async def put(self, key: str, **config: Any) -> tuple[int, Any]:
        return await self.ask("PUT", f"subscriptions/{key}", config)


@asynccontextmanager
async def shell(world: World | None = None) -> AsyncIterator[Shell]:
    found = Shell(world or World().start())
    await found.subscriptions.start()
    try:
        yield found
    finally:
        await found.subscriptions.stop()
        await found.world.stop()
