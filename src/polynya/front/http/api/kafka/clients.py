"""`GET /v1/kafka/clients`: the Kafka clients that ask which metrics they shall push."""

from __future__ import annotations

from typing import Protocol

import msgspec

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import NO_STORE, Request, Response

CLIENTS = "/v1/kafka/clients"
LISTED_MAX = 1000  # clients of one response


class ClientRow(msgspec.Struct, frozen=True, gc=False):
    """One client, as the core knows it that it asks."""

    client_instance_id: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    metrics: tuple[str, ...]  # the beginnings of the names that it shall push
    interval_ms: int
    pushes: int
    series: int  # numbers in `/metrics`
    silent_seconds: float
    has_ended: bool  # it has said that it pushes no more
    node: int = 0
    core: int = 0


class ClientsQuery(msgspec.Struct, frozen=True, gc=False):
    """The clients whose ids have a prefix, behind an instance id."""

    prefix: str = ""
    after: str = ""


class Clients(Protocol):
    """The clients of all cores."""

    async def listed(self, query: ClientsQuery) -> list[ClientRow]:
        """Return at most `LISTED_MAX`, by their instance ids."""
        ...


class ClientRoutes:
    """The handler of `CLIENTS`."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def handle(self, request: Request) -> Response:
        """List the clients. Raises `Failure`."""
        if any(request.segments):
            raise Failure("NO_ROUTE")
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        query = ClientsQuery(request.query.get("prefix", ""), request.query.get("after", ""))
        rows = await self._clients.listed(query)
        following = rows[-1].client_instance_id if len(rows) == LISTED_MAX else None
        body = msgspec.json.encode({"clients": rows, "next": following})
        return Response(200, body, headers=NO_STORE)
