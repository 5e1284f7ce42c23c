"""The schema registry over a real front of a core, and a client that sends JSON."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from worlds.service import World

from polynya.front.http.api.kafka.topics import TopicRoutes
from polynya.front.http.protocol.exchange import Protection
from polynya.front.http.protocol.settings import HttpSettings
from polynya.front.http.registry.log import RegistryLog
from polynya.front.http.registry.routes import MOUNT, ROOT, RegistryRoutes
from polynya.front.http.server import HttpFront

RECORD = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}


def grown(**defaults: Any) -> dict[str, Any]:
    """Return the record with more fields that have defaults."""
    more = [{"name": name, "type": "int", "default": each} for name, each in defaults.items()]
    return {**RECORD, "fields": [*RECORD["fields"], *more]}  # type: ignore[misc]


class RegistryClient:
    """Sends requests to one core; `log` is what that core knows."""

    def __init__(self, port: int, log: RegistryLog) -> None:
        self._port = port
        self.log = log

    async def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Return the status and the body of a response: JSON if it has the type of the API."""
        data = b"" if body is None else json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = [f"{method} /registry{path} HTTP/1.0", "Host: test", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), json.loads(answer) if answer else None

    async def register(
        self, subject: str, schema: Any, type_: str | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Register a schema; the answer is its id, or the error code."""
        body = self.body(schema, type_, **more)
        status, answer = await self.ask("POST", f"/subjects/{subject}/versions", body)
        return status, answer["id"] if status == 200 else answer["error_code"]

    def body(self, schema: Any, type_: str | None = None, **more: Any) -> dict[str, Any]:
        """Return a body with a schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return {"schema": text, **({"schemaType": type_} if type_ else {}), **more}


@asynccontextmanager
async def registry(
    world: World, protection: Protection | None = None
) -> AsyncIterator[RegistryClient]:
    """Serve the registry of a core."""
    ids = iter(range(1, 100))
    topics = TopicRoutes(world.service, lambda: next(ids).to_bytes(16), partitions=1).topics
    log = RegistryLog(world.service, topics)
    routes = RegistryRoutes(log)
    front = HttpFront(
        world.service,
        HttpSettings(),
        {ROOT: routes.handle},
        {MOUNT: routes.handle},
        protection=protection,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    await front.start([listener])
    try:
        yield RegistryClient(listener.getsockname()[1], log)
    finally:
        await front.stop(0.1)
