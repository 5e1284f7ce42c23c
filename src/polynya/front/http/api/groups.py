"""`/v1/groups`: the Kafka consumer groups, their lag, new offsets, deletion."""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec

from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.front.http.protocol.json_bodies import read_json
from polynya.service.consumer_groups.admin import EARLIEST, LATEST, GroupAdmin, GroupRefused
from polynya.stream.consumer_groups.calls import GroupError

GROUPS = "/v1/groups"
LISTED_MAX = 1000  # groups of one response
_NO_STORE = (("Cache-Control", "no-store"),)


class _Reset(msgspec.Struct):
    to: str | int
    topics: list[str] | None = None


class GroupRoutes:
    """The handler of `GROUPS` and what is below it."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin

    async def handle(self, request: Request) -> Response:
        """List, describe, reset or delete. Raises `Failure` and `Unavailable`."""
        first, *rest = request.segments or ("",)
        if first:
            raise Failure("NO_ROUTE")
        try:
            match (request.method, *filter(None, rest)):
                case ("GET" | "HEAD",):
                    return await self._list(request)
                case ("GET" | "HEAD", id_):
                    details = await self._admin.describe(id_)
                    return _json({**msgspec.to_builtins(details), "lag": details.lag})
                case ("DELETE", id_):
                    await self._admin.delete(id_)
                    return Response(204, headers=_NO_STORE)
                case ("POST", id_, "offsets"):
                    return await self._reset(id_, request)
        except GroupRefused as refused:
            raise _failure(refused.error) from None
        raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD, POST, DELETE"),))

    async def _list(self, request: Request) -> Response:
        prefix, after = request.query.get("prefix", ""), request.query.get("after", "")
        named = (
            each
            for each in await self._admin.list_groups()
            if each.group.startswith(prefix) and each.group > after
        )
        page = list(islice(named, LISTED_MAX))
        shown = [
            {"group": each.group, "state": each.state, "protocol_type": each.protocol_type}
            for each in page
        ]
        return _json({"groups": shown, "next": page[-1].group if len(page) == LISTED_MAX else None})

    async def _reset(self, id_: str, request: Request) -> Response:
        asked = read_json(request.body, _Reset)
        if isinstance(asked.to, str) and asked.to not in (EARLIEST, LATEST):
            raise Failure("INVALID_REQUEST", f"'to' is '{EARLIEST}', '{LATEST}' or an offset")
        try:
            rows = await self._admin.reset(id_, asked.to, asked.topics)
        except LookupError as missing:
            why = (
                f"topic '{missing}' does not exist" if str(missing) else "the group has no offsets"
            )
            raise Failure("INVALID_REQUEST", f"{why}: name existing topics") from None
        return _json({"group": id_, "offsets": msgspec.to_builtins(rows)})


def _failure(error: GroupError) -> Failure:
    if error == GroupError.GROUP_ID_NOT_FOUND:
        return Failure("GROUP_NOT_FOUND")
    if error in (GroupError.NON_EMPTY_GROUP, GroupError.UNKNOWN_MEMBER_ID):
        return Failure("GROUP_NOT_EMPTY")
    if error in (GroupError.NOT_COORDINATOR, GroupError.COORDINATOR_NOT_AVAILABLE):
        return Failure("UNAVAILABLE")
    return Failure("INVALID_REQUEST", f"the group's coordinator refused: {error.name}")


def _json(value: Any) -> Response:
    return Response(200, msgspec.json.encode(value), headers=_NO_STORE)
