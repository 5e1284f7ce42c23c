"""`POST /v1/admin/store/shares | verify | sweep`: the leaders of the groups check their packs in
the object store. `shares` returns which groups have a common leader. Each other request covers
groups of one share and some of their packs. Its response has the position to resume from and the
groups whose leader moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from polynya.base.errors import NotLeader, Unavailable
from polynya.base.names import spelled_name
from polynya.cold import Swept, VerifiedPart
from polynya.front.http.api.table_views import ReadObject
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, read_json
from polynya.objectstore import StoreUnavailable
from polynya.routing.rpc import CoreService
from polynya.stream.machine import Machine
from polynya.tiering.tier import Tier

VERIFY = 54  # message kinds between cores
SWEEP = 55
SETTLE = 56
# a dead node's put may still arrive, and a slow one still be logged (`polynya.cold.steps`)
GRACE_SECONDS_MIN = 600
ORPHANS_SHOWN = 1000

_Group = Annotated[int, msgspec.Meta(ge=0)]
_Groups = Annotated[list[_Group], msgspec.Meta(min_length=1)]


class SharesRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request for the shares of these groups; null means all."""

    groups: list[_Group] | None = None


class VerifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request to verify the packs of `groups` after `after`."""

    groups: _Groups
    after: str = ""


class SweepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request to delete orphans of `groups` older than `grace_seconds`; null means the background
    sweep's grace."""

    groups: _Groups
    dry_run: bool = False
    grace_seconds: Annotated[int, msgspec.Meta(ge=GRACE_SECONDS_MIN)] | None = None


class SettleRequest(msgspec.Struct):
    """Packs of `owner_group` that `group` has not released, as far as the former knows."""

    group: int
    owner_group: int = msgspec.field(name="home")
    packs: list[str]


class StoreChecks:
    """The store check routes of one core. Any core answers and forwards to the groups' leader."""

    def __init__(self, service: CoreService, tier: Tier | None) -> None:
        self._service = service
        self._tier = tier
        service.rpc.serve(VERIFY, VerifyRequest, VerifiedPart, self._verify)
        service.rpc.serve(SWEEP, SweepRequest, Swept, self._sweep)
        service.rpc.serve(SETTLE, SettleRequest, None, self._settle)
        if tier is not None:
            tier.collector.elsewhere = self._ask_to_settle

    @property
    def read_object(self) -> ReadObject | None:
        """Return the object reader for rooms without access to the store, or None."""
        return None if self._tier is None else self._tier.read_object

    async def handle(self, request: Request) -> Response:
        """Answer a request; `request.segments` follow `/v1/admin/store`. Raise `Failure` or
        Unavailable."""
        verbs: dict[tuple[str, ...], Any] = {
            ("shares",): self._answer_shares,
            ("verify",): self._answer_verify,
            ("sweep",): self._answer_sweep,
        }
        answer = verbs.get(request.segments)
        if answer is None:
            raise Failure("NO_ROUTE")
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        if self._tier is None:
            raise Failure("INVALID_REQUEST", "this node has no object store: cold.backend is none")
        return Response(200, msgspec.json.encode(await answer(request.body or b"{}")))

    async def _answer_shares(self, body: bytes) -> dict[str, Any]:
        service, asked = self._service, self._read(body, SharesRequest)
        shares: dict[tuple[int, int], list[int]] = {}
        leaderless: dict[str, list[int]] = {}
        for group in range(service.groups + 1) if asked.groups is None else asked.groups:
            try:
                shares.setdefault(
                    (service.rpc.home_of(group, through=True), service.directory.leader(group)), []
                ).append(group)
            except NotLeader:
                leaderless.setdefault(_why(service.directory.voters_of(group)), []).append(group)
        return {
            "shares": [{"node": node, "groups": groups} for (_, node), groups in shares.items()],
            "leaderless": [{"why": why, "groups": groups} for why, groups in leaderless.items()],
        }

    async def _answer_verify(self, body: bytes) -> dict[str, Any]:
        asked = self._read(body, VerifyRequest)
        part: VerifiedPart = await self._service.rpc.at_home(
            asked.groups[0], VERIFY, asked, self._verify
        )
        faults = [
            {
                "pack": fault.pack,
                "kind": fault.kind,
                "streams": [spelled_name(name) for name in fault.streams],
            }
            for fault in part.faults
        ]
        after = asked.after if part.left else part.after or None
        shown = {"packs": part.packs, "slices": part.slices, "bytes": part.bytes, "faults": faults}
        return {"left": part.left, "next": after, **shown}

    async def _answer_sweep(self, body: bytes) -> dict[str, Any]:
        asked = self._read(body, SweepRequest)
        swept: Swept = await self._service.rpc.at_home(asked.groups[0], SWEEP, asked, self._sweep)
        return {
            "left": swept.left,
            "next": "" if swept.left else None,
            "orphans": swept.orphans[:ORPHANS_SHOWN],
            "count": len(swept.orphans),
            "bytes": swept.bytes,
            "deleted": swept.deleted,
        }

    async def _verify(self, question: VerifyRequest) -> VerifiedPart:
        tier, before = self._of(question.groups), dict(self._service.local.led)
        if left := self._moved(question.groups, before):
            return VerifiedPart(left=left)
        try:
            # a deposed leader names deleted packs
            await self._service.local.linearize_all(question.groups)
            part = await tier.verifier.verify(question.after, question.groups)
            if not question.after:
                part.faults += await tier.copy_verifier.faults(question.groups)
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be read: {fault}") from None
        left = self._moved(question.groups, before)
        return VerifiedPart(left=left) if left else part

    async def _sweep(self, question: SweepRequest) -> Swept:
        tier, before = self._of(question.groups), dict(self._service.local.led)
        if left := self._moved(question.groups, before):
            return Swept([], left=left)
        grace_ms = None if question.grace_seconds is None else question.grace_seconds * 1000
        try:
            # a deposed leader misses packs written since
            await self._service.local.linearize_all(question.groups)
            swept = await tier.collector.sweep(
                delete=not question.dry_run, grace_ms=grace_ms, groups=frozenset(question.groups)
            )
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be listed: {fault}") from None
        left = self._moved(question.groups, before)
        return Swept([], left=left) if left and not swept.deleted else swept

    async def _ask_to_settle(self, group: int, owner_group: int, packs: list[str]) -> None:
        await self._service.rpc.at_home(
            group, SETTLE, SettleRequest(group, owner_group, packs), self._settle
        )

    async def _settle(self, question: SettleRequest) -> None:
        await self._of([question.group]).collector.settle(
            question.group, question.owner_group, question.packs
        )

    def _moved(self, groups: list[int], before: Mapping[int, Machine]) -> list[int]:
        """Return the groups not led here now, or not continuously since `before` was taken."""
        led = self._service.local.led
        return [
            group
            for group in groups
            if led.get(group) is None or led[group] is not before.get(group)
        ]

    def _of(self, groups: list[int]) -> Tier:
        """Return the tier of a core that leads at least the first group. Raise NotLeader or
        Unavailable."""
        if groups[0] not in self._service.local.led:
            raise NotLeader(self._service.directory.leader(groups[0]))
        if self._tier is None:
            raise Unavailable("the leader of the group has no object store: cold.backend is none")
        return self._tier

    def _read(self, body: bytes, shape: Any) -> Any:
        asked = read_json(body, shape)
        if any(group > self._service.groups for group in asked.groups or ()):
            raise Failure("INVALID_REQUEST", f"the groups are 0 to {self._service.groups}")
        return asked


def _why(voters: dict[int, bool]) -> str:
    """Return why a group has no leader. `voters` maps its nodes to whether each is up."""
    away = [str(node) for node, is_there in voters.items() if not is_there]
    if not away:
        return "no leader yet"
    return (
        f"no leader; of nodes {', '.join(map(str, voters))} the one asked is not connected to "
        f"{', '.join(away)}"
    )
