"""`/v1/groups`: the Kafka consumer groups, their lag, new offsets, deletion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import msgspec

from polynya.access import Principal
from polynya.access.grants import Verb
from polynya.base.limits import GROUP_OFFSETS_MAX
from polynya.base.names import consumer_group_folder, topic_folder
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import (
    NO_STORE,
    Request,
    Response,
    json_response,
    read_json,
)
from polynya.service.consumer_groups.admin import (
    KINDS,
    GroupAdmin,
    GroupRefused,
    ResetRefused,
    Target,
    Wanted,
)
from polynya.stream.features.consumer_groups.calls import GroupError
from polynya.wire.headers import BadField, parse_instant_ms

GROUPS = "/v1/groups"
OFFSET_MAX = 2**62
LISTED_MAX = 1000  # groups of one response


class _Reset(msgspec.Struct, forbid_unknown_fields=True):
    """One of `to`, `time`, `shift_by` and `offsets` says where the offsets go. `offsets`: by topic
    and partition."""

    to: str | int | None = None
    time: str | None = None
    shift_by: int | None = None
    offsets: dict[str, dict[int, int]] | None = None
    topics: list[str] | None = None
    dry_run: bool = False

    def wanted(self) -> Wanted:
        """Return the reset target. Raises `Failure`."""
        named = (self.to, self.time, self.shift_by, self.offsets)
        if sum(each is not None for each in named) != 1:
            raise Failure(
                "INVALID_REQUEST", "expected one of 'to', 'time', 'shift_by' and 'offsets'"
            )
        if self.offsets is not None:
            return Wanted(Target.OFFSETS, offsets=self._offsets(self.offsets))
        if self.shift_by is not None:
            return Wanted(Target.SHIFT, self.shift_by)
        if self.time is not None:
            try:
                return Wanted(Target.TIME, parse_instant_ms(self.time))
            except BadField:
                raise Failure(
                    "INVALID_REQUEST",
                    f"'time' is '{self.time[:64]}'; expected a time such as 2026-11-01T00:00:00Z",
                ) from None
        if isinstance(self.to, int) and self.to >= 0:
            return Wanted(Target.OFFSET, self.to)
        if self.to in (Target.EARLIEST.value, Target.LATEST.value):
            return Wanted(Target(self.to))
        raise Failure(
            "INVALID_REQUEST",
            f"'to' is '{str(self.to)[:64]}'; expected 'earliest', 'latest' or an offset",
        )

    def _offsets(self, offsets: dict[str, dict[int, int]]) -> dict[tuple[str, int], int]:
        """Return the offsets by partition. Raises `Failure`."""
        if self.topics is not None:
            raise Failure("INVALID_REQUEST", "'offsets' names its topics: leave 'topics' out")
        found = {(topic, each): at for topic, some in offsets.items() for each, at in some.items()}
        if not found or len(found) > GROUP_OFFSETS_MAX:
            raise Failure(
                "INVALID_REQUEST",
                f"'offsets' has {len(found)} partitions; expected 1 to {GROUP_OFFSETS_MAX}",
            )
        if bad := next((each for each in found.items() if not 0 <= each[1] <= OFFSET_MAX), None):
            (topic, number), at = bad
            raise Failure(
                "INVALID_REQUEST", f"'offsets' has {at} for partition {number} of '{topic[:249]}'"
            )
        return found


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
                    details = await self._admin.describe(id_, sees=_seen_by(request.principal))
                    return json_response({**msgspec.to_builtins(details), "lag": details.lag})
                case ("DELETE", id_):
                    await self._admin.delete(id_)
                    return Response(204, headers=NO_STORE)
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
            if each.group.startswith(prefix)
            and each.group > after
            and _may_use(each.group, request.principal)
        )
        page = list(islice(named, LISTED_MAX))
        shown = [
            {
                "group": each.group,
                "state": each.state,
                "protocol_type": each.protocol_type,
                "kind": KINDS[each.kind],
            }
            for each in page
        ]
        return json_response(
            {"groups": shown, "next": page[-1].group if len(page) == LISTED_MAX else None}
        )

    async def _reset(self, id_: str, request: Request) -> Response:
        asked = read_json(request.body, _Reset)
        wanted = asked.wanted()
        try:
            rows = await self._admin.reset(
                id_,
                wanted,
                asked.topics,
                dry_run=asked.dry_run,
                sees=_seen_by(request.principal),
            )
        except ResetRefused as refused:
            raise Failure("INVALID_REQUEST", str(refused)) from None
        return json_response({"group": id_, "offsets": msgspec.to_builtins(rows)})


def _may_use(group: str, principal: Principal | None) -> bool:
    return principal is None or principal.may(Verb.SUBSCRIBE, consumer_group_folder(group))


def _seen_by(principal: Principal | None) -> Callable[[str], bool]:
    """Return the test of the topics that a caller may read."""
    if principal is None:
        return lambda topic: True
    return lambda topic: principal.may(Verb.READ, topic_folder(topic))


def _failure(error: GroupError) -> Failure:
    if error == GroupError.GROUP_ID_NOT_FOUND:
        return Failure("GROUP_NOT_FOUND")
    if error in (GroupError.NON_EMPTY_GROUP, GroupError.UNKNOWN_MEMBER_ID):
        return Failure("GROUP_NOT_EMPTY")
    if error in (GroupError.NOT_COORDINATOR, GroupError.COORDINATOR_NOT_AVAILABLE):
        return Failure("UNAVAILABLE")
    return Failure("INVALID_REQUEST", f"the group's coordinator refused: {error.name}")
