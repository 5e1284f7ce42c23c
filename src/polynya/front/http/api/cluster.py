"""`/v1/cluster` and what is below it: look at the cluster, and say which nodes belong to it and what they are to have."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.protocol.json_bodies import read_json

PATH = "/v1/cluster"
NODE_ACTS = ("cordon", "uncordon", "drain", "remove", "promote")
GROUP_ACTS = ("move", "transfer")
_NO_STORE = (("Cache-Control", "no-store"),)


class NewNode(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/cluster/nodes`. `id` 0: the next free one. `replaces`: the node whose disk is gone; addresses left empty are then that one's.
    `reader`: a read replica."""

    id: int = 0
    peer: str = ""
    http: str = ""
    zone: str = ""
    replaces: int = 0
    rebalance: bool = True
    reader: bool = False


class Drain(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/cluster/nodes/ID/drain`. `replicas`: of them, too."""

    replicas: bool = False


class Move(msgspec.Struct, forbid_unknown_fields=True, rename={"source": "from", "target": "to"}):
    """`POST /v1/cluster/groups/GROUP/move`."""

    source: int
    target: int


class TransferBody(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/cluster/groups/GROUP/transfer`."""

    to: int


class Rebalance(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/cluster/rebalance`. `replicas` 0: as before."""

    replicas: int = 0


class Promote(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /v1/cluster/nodes/ID/promote`. `rebalance`: and it gets its share of the groups."""

    rebalance: bool = True


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """No field is taken."""


class ClusterRefused(Exception):
    """What was asked for would break something, or cannot be done. `code` is one of HTTP's."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ClusterActs(Protocol):
    """What the routes lead to. Acts return what the map has now: {"epoch": …} and what is new; they raise `ClusterRefused`."""

    async def look(self) -> dict[str, Any]: ...

    async def health(self) -> dict[str, Any]: ...

    async def add(self, node: NewNode) -> dict[str, Any]: ...

    async def set_node(self, node: int, act: str, replicas: bool) -> dict[str, Any]: ...

    async def promote(self, node: int, rebalance: bool) -> dict[str, Any]: ...

    async def move(self, group: int, source: int, target: int) -> dict[str, Any]: ...

    async def transfer(self, group: int, target: int) -> dict[str, Any]: ...

    async def rebalance(self, replicas: int) -> dict[str, Any]: ...


class ClusterRoutes:
    """A handler for `PATH`, and a mount below it."""

    def __init__(self, acts: ClusterActs) -> None:
        self._acts = acts

    async def look(self, request: Request) -> Response:
        """Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        return _json(await self._acts.look())

    async def health(self, request: Request) -> Response:
        """For anybody: 200 or 503, and what is wrong. Raises `Failure`."""
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        return _health(await self._acts.health())

    async def guarded_health(self, request: Request) -> Response:
        """As `health` for one who has proven who it is; anybody else learns `healthy` alone. Raises `Failure`."""
        if request.principal is not None or request.method not in ("GET", "HEAD"):
            return await self.health(request)
        return _health({"healthy": (await self._acts.health())["healthy"]})

    async def handle(self, request: Request) -> Response:
        """Raises `Failure`."""
        if not act_of(request.segments):
            raise Failure("NO_ROUTE")
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Failure("INVALID_REQUEST", "acts on the cluster are sent as Content-Type: application/json, if only with the body {}")
        try:
            return _json(await self._act(request))
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
            raise Failure("INVALID_REQUEST", f"{text!r} is no number of a {kind[:-1]}")
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
    """What a request below `PATH` does, as the audit log names it; empty when there is nothing."""
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


def _health(told: dict[str, Any]) -> Response:
    return Response(200 if told["healthy"] else 503, msgspec.json.encode(told), headers=_NO_STORE)


def _json(value: Any) -> Response:
    return Response(200, msgspec.json.encode(value), headers=_NO_STORE)
