"""`POST /v1/admin/store/verify` and `/v1/admin/store/sweep`: the object store is looked at by the cores whose packs they are.

Each request is for one core, and for a part of its packs; the answer says how to go on.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from polynya.base.errors import Unavailable
from polynya.base.names import spelled_name
from polynya.cold import Part, Swept
from polynya.front.http.errors import Failure
from polynya.front.http.json_bodies import read_json
from polynya.front.http.mount import Request, Response
from polynya.front.http.tables import ReadObject
from polynya.node.tier import Tier
from polynya.objectstore import StoreUnavailable
from polynya.service.node import NodeService

VERIFY = 50  # message kinds between cores
SWEEP = 51
GRACE_SECONDS_MIN = 60  # a put of a node that died may still arrive
ORPHANS_SHOWN = 1000

_Core = Annotated[int, msgspec.Meta(ge=0)]


class VerifyQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Of the packs of `core` behind `after`."""

    core: _Core = 0
    after: str = ""


class SweepQuestion(msgspec.Struct, forbid_unknown_fields=True):
    """Orphans of `core` that are older than `grace_seconds` (null: as the background sweep has it)."""

    core: _Core = 0
    dry_run: bool = False
    grace_seconds: Annotated[int, msgspec.Meta(ge=GRACE_SECONDS_MIN)] | None = None


class StoreChecks:
    """One per core; any core answers for any."""

    def __init__(self, service: NodeService, tier: Tier | None) -> None:
        self._service = service
        self._tier = tier
        service.serve(VERIFY, VerifyQuestion, Part, self._verify)
        service.serve(SWEEP, SweepQuestion, Swept, self._sweep)

    @property
    def read_object(self) -> ReadObject | None:
        """For rooms that know no store."""
        return None if self._tier is None else self._tier.read_object

    async def handle(self, request: Request) -> Response:
        """`request.segments` are those behind `/v1/admin/store`. Raises `Failure`, Unavailable."""
        verbs: dict[tuple[str, ...], Any] = {("verify",): self._answer_verify, ("sweep",): self._answer_sweep}
        answer = verbs.get(request.segments)
        if answer is None:
            raise Failure("NO_ROUTE")
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        if self._tier is None:
            raise Failure("INVALID_REQUEST", "this node has no object store: cold.backend is none")
        return Response(200, msgspec.json.encode(await answer(request.body or b"{}")))

    async def _answer_verify(self, body: bytes) -> dict[str, Any]:
        asked = self._read(body, VerifyQuestion)
        part: Part = await self._ask(asked.core, VERIFY, asked)
        faults = [
            {"pack": fault.pack, "kind": fault.kind, "streams": [spelled_name(name) for name in fault.streams]} for fault in part.faults
        ]
        shown = {"packs": part.packs, "slices": part.slices, "bytes": part.bytes, "faults": faults}
        return {"core": asked.core, "cores": self._service.cores, "next": part.after or None, **shown}

    async def _answer_sweep(self, body: bytes) -> dict[str, Any]:
        asked = self._read(body, SweepQuestion)
        swept: Swept = await self._ask(asked.core, SWEEP, asked)
        return {
            "core": asked.core,
            "cores": self._service.cores,
            "orphans": swept.orphans[:ORPHANS_SHOWN],
            "count": len(swept.orphans),
            "bytes": swept.bytes,
            "deleted": swept.deleted,
        }

    async def _ask(self, core: int, kind: int, question: Any) -> Any:
        if core in self._service.other_cores:
            return await self._service.ask_core(core, kind, question)
        return await (self._verify(question) if kind == VERIFY else self._sweep(question))

    async def _verify(self, question: VerifyQuestion) -> Part:
        assert self._tier is not None
        try:
            return await self._tier.verifier.verify(question.after)
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be read: {fault}") from None

    async def _sweep(self, question: SweepQuestion) -> Swept:
        assert self._tier is not None
        grace_ms = None if question.grace_seconds is None else question.grace_seconds * 1000
        try:
            return await self._tier.collector.sweep(delete=not question.dry_run, grace_ms=grace_ms)
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be listed: {fault}") from None

    def _read(self, body: bytes, shape: Any) -> Any:
        asked = read_json(body, shape)
        if asked.core >= self._service.cores:
            raise Failure("INVALID_REQUEST", f"this node has {self._service.cores} cores, counted from 0")
        return asked
