"""`/v1/cluster` and the paths below it: show the cluster, and change its nodes and their groups."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import (
    NO_STORE,
    Request,
    Response,
    json_response,
    read_json,
)

PATH = "/v1/cluster"
NODE_ACTS = ("cordon", "uncordon", "drain", "remove", "promote")
GROUP_ACTS = ("move", "transfer")


class NewNode(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/cluster/nodes`. `id` 0: the next free one. `replaces`: the node whose disk
    is lost; empty addresses default to its addresses. `reader`: a read replica."""

    id: int = 0
    peer: str = ""
    http: str = ""
    zone: str = ""
    replaces: int = 0
    rebalance: bool = True
    reader: bool = False


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/cluster/nodes/ID/drain`. `replicas`: move the replicas too."""

    replicas: bool = False


class Move(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """Body of `POST /v1/cluster/groups/GROUP/move`."""

    source: int
    target: int


class TransferBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/cluster/groups/GROUP/transfer`."""

    to: int


class Rebalance(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/cluster/rebalance`. `replicas` 0: unchanged."""

    replicas: int = 0


class Promote(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /v1/cluster/nodes/ID/promote`. `rebalance`: also assign groups to the node."""

    rebalance: bool = True


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """An empty body."""


class ClusterRefused(Exception):
    """A cluster operation that is impossible or unsafe. `code` is an error code of HTTP."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ClusterActs(Protocol):
    """The cluster operations behind the routes. They return the new map state, {"epoch": …} and
    what has changed, or raise `ClusterRefused`."""

    async def look(self) -> dict[str, Any]: ...

    async def health(self) -> dict[str, Any]: ...

    async def add(self, node: NewNode) -> dict[str, Any]: ...

    async def set_node(self, node: int, act: str, replicas: bool) -> dict[str, Any]: ...

    async def promote(self, node: int, rebalance: bool) -> dict[str, Any]: ...

    async def move(self, group: int, source: int, target: int) -> dict[str, Any]: ...

    async def transfer(self, group: int, target: int) -> dict[str, Any]: ...

    async def rebalance(self, replicas: int) -> dict[str, Any]: ...


class ClusterRoutes:
    """The handler for `PATH`, and the mount below it."""

    def __init__(self, acts: ClusterActs) -> None:
        self._acts = acts

    async def look(self, request: Request) -> Response:
        """Show the cluster. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        return json_response(await self._acts.look())

    async def health(self, request: Request) -> Response:
        """Return 200 or 503 with the problems, without authentication. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        return _health(await self._acts.health())

    async def guarded_health(self, request: Request) -> Response:
        """Return `health` to an authenticated caller, and only `healthy` to others. Raises
        `Failure`."""
        if request.principal is not None or request.method not in ("GET", "HEAD"):
            return await self.health(request)
        return _health({"healthy": (await self._acts.health())["healthy"]})

    async def handle(self, request: Request) -> Response:
        """Run a cluster operation. Raises `Failure`."""
        if not act_of(request.segments):
            raise Failure("NO_ROUTE")
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        if (
            request.headers.get("content-type", "").partition(";")[0].strip().lower()
            != "application/json"
        ):
            raise Failure(
                "INVALID_REQUEST",
                "cluster operations need Content-Type: application/json and a body, at least {}",
            )
        try:
            return json_response(await self._act(request))
        except ClusterRefused as refused:
            raise Failure(refused.code, str(refused)) from None

    async def _act(self, request: Request) -> dict[str, Any]:
        segments, body = request.segments, request.body or b"{}"
        if segments == ("nodes",):
            return await self._acts.add(read_json(body, NewNode))
        if segments == ("rebalance",):
            return await self._acts.rebalance(read_json(body, Rebalance).replicas)
        kind, text, act = segments
        if not (text.isascii() and text.isdigit() and len(text) < 6):
            raise Failure("INVALID_REQUEST", f"{text!r} is not the number of a {kind[:-1]}")
        number = int(text)
        if act == "move":
            wanted = read_json(body, Move)
            return await self._acts.move(number, wanted.source, wanted.target)
        if act == "transfer":
            return await self._acts.transfer(number, read_json(body, TransferBody).to)
        if act == "promote":
            return await self._acts.promote(number, read_json(body, Promote).rebalance)
        replicas = act == "drain" and read_json(body, Drain).replicas
        if act != "drain":
            read_json(body, Nothing)
        return await self._acts.set_node(number, act, replicas)


def act_of(segments: tuple[str, ...]) -> str:
    """Return the audit name of a request below `PATH`; empty for an unknown path."""
    match segments:
        case ("nodes",):
            return "cluster.add"
        case ("rebalance",):
            return "cluster.rebalance"
        case ("nodes", _, act) if act in NODE_ACTS:
            return f"cluster.{act}"
        case ("groups", _, act) if act in GROUP_ACTS:
            return f"cluster.{act}"
    return ""


def _health(found: dict[str, Any]) -> Response:
    return Response(200 if found["healthy"] else 503, msgspec.json.encode(found), headers=NO_STORE)
