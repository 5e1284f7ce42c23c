"""`/v1/reducers`, `/v1/reducers/NAME` and `/v1/modules`: the reducers and their modules."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from polynya.base.levels import SNAPSHOTS_LEVEL
from polynya.base.limits import MODULE_BYTES_MAX
from polynya.base.names import BadName, canonical_name, spelled_name
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import REFUSALS, Failure
from polynya.front.http.protocol.extension import Request, Response, json_response, read_json
from polynya.local.api import Refusal
from polynya.reducers.bindings import NAME, NAME_RULE, Wanted, check
from polynya.reducers.reducer import ReducerFault
from polynya.reducers.wasm.faults import NotInstalled
from polynya.service.api import Service
from polynya.service.reducers.due import find_due
from polynya.service.reducers.modules import MAGIC, module_of, store_module
from polynya.service.reducers.registry import Bound, Fault, TooManyReducers
from polynya.service.reducers.states import COMPACTED, NoWorker, TooFarBehind, verify
from polynya.stream.features.subscriptions.globs import BadPattern, check_pattern
from polynya.stream.replies import Reply
from polynya.wire.headers import format_instant

PATH = "/v1/reducers"
MODULES = "/v1/modules"
DUE = "due"  # instead of a name
FAULT, MODULE, VERIFY = "fault", "module", "verify"  # below a name
_RETRY_MS, _RETRY_MS_MAX = 60_000, 3_600_000
_NOTED_MAX = 16  # faults that one look at what is due notes


class _FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    stream: str
    revision: int
    reason: str


class _StreamBody(msgspec.Struct, forbid_unknown_fields=True):
    stream: str


class ReducerRoutes:
    """The handlers of `PATH` and `MODULES`, and the mount below `PATH`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        """List the reducers. Raises `Failure`."""
        _allow(request, "GET", "HEAD")
        known = await self._service.reducers.current()
        return json_response({"reducers": [self._shown(each) for each in known.values()]})

    async def modules(self, request: Request) -> Response:
        """Store a module. Raises `Failure`."""
        _allow(request, "PUT")
        self._needs_level()
        data = request.body
        if not data.startswith(MAGIC):
            raise Failure(
                "INVALID_REQUEST",
                "the body is no WebAssembly module: it does not begin with \\0asm",
            )
        if len(data) > MODULE_BYTES_MAX:
            raise Failure(
                "BODY_TOO_LARGE",
                f"the module has {len(data):,} bytes; at most {MODULE_BYTES_MAX:,}: strip it",
            )
        stored = await store_module(self._service, data)
        if isinstance(stored, Reply):
            raise Failure(REFUSALS.get(stored.code, "INTERNAL"))
        digest, is_new = stored
        return json_response({"sha256": digest, "bytes": len(data)}, 201 if is_new else 200)

    async def handle(self, request: Request) -> Response:
        """Get, set or remove a reducer, and what is below its name. Raises `Failure`."""
        name, *rest = request.segments
        if name == DUE and not rest:
            return await self._due(request)
        if not NAME.fullmatch(name) or name == DUE:
            raise Failure("INVALID_NAME", f"{NAME_RULE}, and is not '{DUE}'")
        if not rest:
            return await self._one(name, request)
        if rest == [FAULT]:
            return await self._fault(name, request)
        if rest == [MODULE]:
            return await self._module(name, request)
        if rest == [VERIFY]:
            return await self._verify(name, request)
        raise Failure("NO_ROUTE")

    async def _one(self, name: str, request: Request) -> Response:
        _allow(request, "GET", "HEAD", "PUT", "DELETE")
        reducers = self._service.reducers
        if request.method == "PUT":
            return await self._put(name, request)
        if request.method == "DELETE":
            if not await reducers.remove(name):
                raise no_reducer(name)
            return Response(204)
        return json_response(self._shown(await self._found(name)))

    async def _put(self, name: str, request: Request) -> Response:
        self._needs_level()
        wanted = read_json(request.body, Wanted)
        wanted = structs.replace(wanted, pattern=wanted.pattern.strip("/"))
        try:
            check_pattern(wanted.pattern)
        except BadPattern as bad:
            raise Failure("INVALID_REQUEST", str(bad)) from None
        if why := check(wanted):
            raise Failure("INVALID_REQUEST", why)
        if wanted.module and await module_of(self._service, wanted.module) is None:
            raise Failure(
                "MODULE_NOT_FOUND",
                f"no module with the SHA-256 {wanted.module} is stored: PUT {MODULES} first",
            )
        try:
            _, is_new = await self._service.reducers.put(name, wanted)
        except TooManyReducers as full:
            raise Failure("REDUCERS_FULL", str(full)) from None
        return json_response(self._shown(await self._found(name)), 201 if is_new else 200)

    async def _due(self, request: Request) -> Response:
        _allow(request, "GET", "HEAD")
        known = await self._service.reducers.current()
        query = request.query
        chosen = [each for each in known.values() if query.get("reducer", each.name) == each.name]
        after, everything = query.get("after", ""), query.get("all", "") == "1"
        page = await find_due(self._service, chosen, after, everything=everything)
        for name, stream in page.unfit[:_NOTED_MAX]:
            await self._note_unfit(known[name], stream)
        rows = [structs.asdict(each) | {"stream": spelled_name(each.stream)} for each in page.due]
        return json_response({"due": rows, "after": page.after})

    async def _note_unfit(self, bound: Bound, stream: str) -> None:
        """Note that a reducer cannot be computed on a stream, unless it is noted."""
        reducers, now_ms = self._service.reducers, self._service.now_ms()
        old = reducers.faults.get((bound.name, stream))
        revision = bound.binding.revision
        if old is not None and old.revision == revision and now_ms < old.again_ms:
            return
        fault = Fault(
            reason=COMPACTED,
            revision=revision,
            since_ms=now_ms if old is None else old.since_ms,
            again_ms=now_ms + _RETRY_MS_MAX,
            tries=1 if old is None else old.tries + 1,
        )
        with suppress(TooManyReducers):
            await reducers.set_fault(bound.name, stream, fault)

    async def _fault(self, name: str, request: Request) -> Response:
        """Note a fault on a stream that a worker reports."""
        _allow(request, "POST")
        asked = read_json(request.body, _FaultBody)
        stream = _canonical(asked.stream)
        found = await self._found(name)
        if not found.fits(stream):
            raise Failure("INVALID_REQUEST", f"the pattern of '{name}' does not fit the stream")
        if found.binding.revision != asked.revision:
            raise revision_differs(found, asked.revision)
        now_ms = self._service.now_ms()
        old = self._service.reducers.faults.get((name, stream))
        again = old if old is not None and old.revision == asked.revision else None
        tries = 1 if again is None else again.tries + 1
        wait_ms = min(_RETRY_MS_MAX, _RETRY_MS << min(tries - 1, 10))
        fault = Fault(
            reason=asked.reason[:500],
            revision=asked.revision,
            since_ms=now_ms if again is None else again.since_ms,
            again_ms=now_ms + wait_ms,
            tries=tries,
        )
        try:
            await self._service.reducers.set_fault(name, stream, fault)
        except TooManyReducers as full:
            raise Failure("REDUCERS_FULL", str(full)) from None
        return json_response({"retry_after_seconds": wait_ms // 1000})

    async def _module(self, name: str, request: Request) -> Response:
        _allow(request, "GET", "HEAD")
        bound = await self._found(name)
        digest = bound.binding.module
        data = await module_of(self._service, digest) if digest else None
        if data is None:
            raise Failure("MODULE_NOT_FOUND", f"the reducer '{name}' has no module")
        headers = (
            ("ETag", f'"{digest}"'),
            ("Cache-Control", "no-cache"),
            ("Stream-Reducer", bound.binding.origin(name)),  # of the states that it made
        )
        return Response(200, data, "application/wasm", headers)

    async def _verify(self, name: str, request: Request) -> Response:
        """Compute the newest snapshot of a stream again, and stop the reducer if it differs."""
        _allow(request, "POST")
        stream = _canonical(read_json(request.body, _StreamBody).stream)
        bound = await self._found(name)
        if not bound.fits(stream):
            raise Failure("INVALID_REQUEST", f"the pattern of '{name}' does not fit the stream")
        info = await self._service.open(stream).info()
        if isinstance(info, Refusal):
            raise Failure(REFUSALS.get(info.code, "INTERNAL"))
        try:
            async with self._service.reducers.runs:
                found = await verify(self._service, info, bound)
        except (NoWorker, NotInstalled) as missing:
            raise Failure("NO_WORKER", str(missing)) from None
        except ReducerFault as fault:
            raise Failure("REDUCER_FAULT", str(fault)) from None
        except TooFarBehind:
            raise Failure("NO_WORKER", "the records are too many for an answer") from None
        if isinstance(found, Refusal):
            raise Failure(REFUSALS.get(found.code, "INTERNAL"))
        if found is None:
            raise Failure("NO_SNAPSHOT", f"no snapshot of '{name}' can be computed again")
        if found.computed != found.published:
            reason = (
                f"nondeterministic: the snapshot of {spelled_name(stream)} at record "
                f"{found.record} is another one when it is computed again"
            )
            await self._service.reducers.stop(name, bound.binding.revision, reason)
        return json_response(
            {
                "stream": spelled_name(stream),
                "offset": format_token(found.record, found.byte),
                "from_record": found.begin,
                "published": found.published.hex(),
                "computed": found.computed.hex(),
                "equal": found.computed == found.published,
            }
        )

    async def _found(self, name: str) -> Bound:
        found = (await self._service.reducers.current()).get(name)
        if found is None:
            raise no_reducer(name)
        return found

    def _shown(self, bound: Bound) -> dict[str, Any]:
        faults = [
            {
                "stream": spelled_name(stream),
                "reason": fault.reason,
                "since": format_instant(fault.since_ms),
                "retry_at": format_instant(fault.again_ms),
                "tries": fault.tries,
            }
            for (name, stream), fault in self._service.reducers.faults.items()
            if name == bound.name and fault.revision == bound.binding.revision
        ]
        shown = {
            field: value for field, value in structs.asdict(bound.binding).items() if value != ""
        }
        return {"name": bound.name, **shown, "faults": faults}

    def _needs_level(self) -> None:
        if self._service.level < SNAPSHOTS_LEVEL:
            raise Failure("UPGRADE_PENDING")


def _canonical(stream: str) -> str:
    try:
        return canonical_name(stream)
    except BadName as bad:
        raise Failure("INVALID_NAME", str(bad)) from None


def no_reducer(name: str) -> Failure:
    """Return the failure for a name that no reducer has."""
    return Failure("NO_REDUCER", f"there is no reducer '{name}'; GET {PATH} lists them")


def revision_differs(found: Bound, revision: int) -> Failure:
    """Return the failure for a worker that has an older revision, or a newer one."""
    return Failure(
        "REDUCER_REVISION",
        f"the reducer '{found.name}' has the revision {found.binding.revision}, not {revision}: "
        "begin again with that",
    )


def _allow(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", ", ".join(methods)),))
