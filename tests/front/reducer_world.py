"""The routes of reducers in a front of a test, and a worker that speaks to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Unpack

from front_world import World

from polynya.cli.reducers.worker import RunReport, Worker
from polynya.cli.remote.client import Parts
from polynya.front.http.reducers.routes import MODULES, PATH, ReducerRoutes


class Reply:
    """A response as the worker sees it."""

    def __init__(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        self.status_code, self.headers, self.content = status, headers, content

    def json(self) -> Any:
        return json.loads(self.content)


class Loop:
    """The server of a worker that runs in a thread. `lose` counts down the requests until one gets
    no answer."""

    def __init__(self, world: World) -> None:
        self._world, self._loop = world, asyncio.get_running_loop()
        self.asked: list[tuple[str, str]] = []
        self.lose = -1

    def send(self, method: str, path: str, **parts: Unpack[Parts]) -> Reply:
        if self.lose == 0:
            raise ConnectionError
        self.lose -= 1
        self.asked.append((method, path))
        headers = parts.get("headers") or {}
        named = {name.replace("-", "_"): value for name, value in headers.items()}
        asking = self._world.ask(method, path, parts.get("content"), **named)
        answer = asyncio.run_coroutine_threadsafe(asking, self._loop).result()
        return Reply(answer.status, answer.headers, answer.body)


def mount(world: World) -> None:
    """Serve the routes of reducers."""
    routes = ReducerRoutes(world.service)
    router = world.front.context.router
    router._handlers.update({PATH: routes.list, MODULES: routes.modules})
    router._mounts.append((f"{PATH}/", routes.handle))


async def bind(world: World, name: str = "carts", **wanted: Any) -> dict[str, Any]:
    """Add a reducer, by default `latest` for `carts/*`."""
    body = {"pattern": "carts/*", "builtin": "latest"} | wanted
    answer = await world.ask("PUT", f"{PATH}/{name}", json.dumps(body).encode())
    assert answer.status in (200, 201), answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def work(
    world: World, *names: str, everything: bool = True, server: Loop | None = None
) -> list[RunReport]:
    """Let a worker do a round, and return what it told."""
    reports: list[RunReport] = []
    worker = Worker(
        server or Loop(world), names, reports.append, now=lambda: 0.0, shuffle=lambda rows: None
    )
    await asyncio.to_thread(worker.round, everything=everything)
    return reports
