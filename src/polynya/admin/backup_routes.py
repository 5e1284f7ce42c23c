"""`/v1/admin/backup/…`: the server side of a backup. The group's leader holds a captured file while
the client fetches it in parts. Any core reads objects for the client, as it has the store's
credentials."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from secrets import token_hex
from typing import Annotated, Any

import msgspec

from polynya import __version__
from polynya.backup.group_file import Header, pack_header
from polynya.backup.source import PART_BYTES, Captured, GroupCommits
from polynya.base.errors import NotLeader, Unavailable
from polynya.base.limits import BACKUP_ROUND_CHARACTERS_MAX, HOLD_MS_MAX
from polynya.config.core_start import CoreStart
from polynya.engine.snapshots.capture import captured
from polynya.engine.snapshots.prepared import PreparedCaptures, backup_of
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response, read_json
from polynya.objectstore import NotFound, ObjectStore, StoreUnavailable, check_key, check_prefix
from polynya.routing.rpc import CoreService
from polynya.service.assembly import CoreRuntime
from polynya.stream.features.transactions.commands import TxnHold
from polynya.stream.features.transactions.state import TransactionState
from polynya.stream.replies import Code
from polynya.tiering.tier import Tier

CAPTURE = 52  # message kinds between cores
PART = 53
COMMITS = 88
CAPTURES_MAX = 4  # per core; each holds up to a group's state and its hot bytes
KEPT_SECONDS = 60.0  # after the last request for it
NAMED = 5  # transactional ids in an answer
PIECES = 16_384  # pieces of a capture counted before yielding to the loop
LISTED = 1000  # objects in one response
READ_BYTES_MAX = 8 << 20
_BYTES = "application/octet-stream"


_Round = Annotated[str, msgspec.Meta(max_length=BACKUP_ROUND_CHARACTERS_MAX)]


class CaptureRequest(msgspec.Struct, forbid_unknown_fields=True):
    group: Annotated[int, msgspec.Meta(ge=0)]
    backup: _Round = ""  # all groups are captured together, in this round
    prepare: bool = False  # encode the group, for a capture of this round that comes next


class CommitsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`hold_ms`: hold commits for so long; 0: count them; None: only tell."""

    group: Annotated[int, msgspec.Meta(ge=0)]
    backup: Annotated[str, msgspec.Meta(min_length=1, max_length=BACKUP_ROUND_CHARACTERS_MAX)]
    hold_ms: Annotated[int, msgspec.Meta(ge=0, le=HOLD_MS_MAX)] | None = None


class PartRequest(msgspec.Struct):
    group: int
    token: str
    offset: int


class CapturedPart(msgspec.Struct, array_like=True):
    """A part of a capture; `data` is None if the capture is no longer held."""

    data: bytes | None


class _Held:
    """A captured file as references to the machine's pieces, without copies."""

    def __init__(self, group: int, backup: str) -> None:
        self.group, self.backup = group, backup
        self._pieces: Sequence[bytes] = ()
        self._begins = [0]

    async def fill(self, found: Sequence[bytes]) -> None:
        """Index the pieces in batches: there may be a million small ones."""
        begins = [0]
        for begin in range(0, len(found), PIECES):
            ends = accumulate(map(len, found[begin : begin + PIECES]), initial=begins[-1])
            begins += islice(ends, 1, None)
            await asyncio.sleep(0)
        self._pieces, self._begins = found, begins

    @property
    def size(self) -> int:
        return self._begins[-1]

    def read(self, offset: int, length: int) -> bytes:
        at = bisect_right(self._begins, offset) - 1
        gathered: list[bytes | memoryview] = []
        while length > 0 and at < len(self._pieces):
            piece = memoryview(self._pieces[at])[offset - self._begins[at] :][:length]
            gathered.append(piece)
            length, offset, at = length - len(piece), offset + len(piece), at + 1
        return b"".join(gathered)


class Backups:
    """The backup routes of one core. Any core answers and forwards to the group's leader."""

    def __init__(self, start: CoreStart, engine: CoreRuntime, tier: Tier | None) -> None:
        self._start, self._engine, self._tier = start, engine, tier
        self._service: CoreService = engine.service
        self._held: dict[str, _Held] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._prepared = PreparedCaptures(engine.snapshotter.encoding)
        self._service.rpc.serve(CAPTURE, CaptureRequest, Captured, self._capture)
        self._service.rpc.serve(PART, PartRequest, CapturedPart, self._part)
        self._service.rpc.serve(COMMITS, CommitsRequest, GroupCommits, self._commits)

    async def handle(self, request: Request) -> Response:
        """Answer a request; `request.segments` follow `/v1/admin/backup`. Raise `Failure` or
        Unavailable."""
        verbs: dict[tuple[str, ...], tuple[str, Any]] = {
            (): ("GET", self._answer_about),
            ("capture",): ("POST", self._answer_capture),
            ("part",): ("GET", self._answer_part),
            ("commits",): ("POST", self._answer_commits),
            ("objects",): ("GET", self._answer_objects),
            ("object",): ("GET", self._answer_object),
        }
        if request.segments not in verbs:
            raise Failure("NO_ROUTE")
        method, answer = verbs[request.segments]
        if request.method != method:
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", method),))
        response: Response = await answer(request)
        return response

    async def _answer_about(self, request: Request) -> Response:
        identity = self._start.identity
        found = {
            "cluster": identity.cluster_id,
            "history": identity.history,
            "groups": identity.groups,
            "release": __version__,
        }
        return Response(200, msgspec.json.encode({**found, "store": self._tier is not None}))

    # --- groups -----------------------------------------------------------------------------------

    async def _answer_capture(self, request: Request) -> Response:
        asked = read_json(request.body or b"{}", CaptureRequest)
        self._check(asked.group)
        return Response(
            200,
            msgspec.json.encode(
                await self._service.rpc.at_home(asked.group, CAPTURE, asked, self._capture)
            ),
        )

    async def _capture(self, question: CaptureRequest) -> Captured:
        """Capture a group. The capture holds every record acknowledged before this call."""
        service, number = self._service, question.group
        await service.local.linearize(number)
        machine = service.local.led.get(number)
        if machine is None:
            raise NotLeader(0)
        group = self._engine.storage.core_replicas.groups[number]
        self._drop_rounds_before(question.backup)
        if question.prepare:
            await self._prepared.prepare(question.backup, number, group)
            return Captured(number, "", 0, 0, 0, 0, 0, 0, 0)
        self._make_room(question.backup)
        token = token_hex(8)
        held = self._held[token] = _Held(number, question.backup)  # reserves the slot
        self._keep(token)
        try:
            found = await self._prepared.fix(question.backup, number)
            if found is None:
                if question.backup:
                    self._prepared.go_first(question.backup)
                found = await captured(group, self._engine.snapshotter.encoding, hot=True)
            log_ms = service.now_ms()
            if service.local.led.get(number) is not machine:
                raise NotLeader(0)
            header = Header(
                number,
                found.term,
                found.index,
                log_ms,
                found.state_bytes,
                found.state_crc,
                found.batches,
            )
            await held.fill([pack_header(header), *found.state, *found.hot])
        except BaseException:
            self._forget(token)
            raise
        self._held[token] = held
        self._keep(token)
        return Captured(
            number,
            token,
            held.size,
            found.term,
            found.index,
            log_ms,
            found.streams,
            found.records,
            found.hot_bytes,
        )

    def _check(self, group: int) -> None:
        if group > self._start.groups:
            raise Failure("INVALID_REQUEST", f"the groups are 0 to {self._start.groups}")

    def _drop_rounds_before(self, round_: str) -> None:
        """Drop the captures of the earlier rounds of a backup, which were in vain: else they take
        the room of this one, while commits are held."""
        for token, held in list(self._held.items()):
            if round_ and held.backup != round_ and backup_of(held.backup) == backup_of(round_):
                self._forget(token)

    def _make_room(self, backup: str) -> None:
        """Refuse a capture beyond the limit; a round needs one of each group, and is one. A round
        takes the room of what was fetched least recently, as commits are held for it: a backup that
        was killed leaves captures, and one that goes on captures again."""
        while self._in_use(backup) >= CAPTURES_MAX:
            if not backup:
                raise Unavailable("other backups are in progress; retry in a minute")
            token = next(each for each in self._timers if self._held[each].backup != backup)
            dropped = self._held[token].backup
            for each, held in list(self._held.items()):
                if each == token or (dropped and held.backup == dropped):
                    self._forget(each)

    def _in_use(self, backup: str) -> int:
        """Count the captures beside those of a round; another round is one."""
        rounds = {held.backup for held in self._held.values() if held.backup}
        return sum(not held.backup for held in self._held.values()) + len(rounds - {backup})

    async def _answer_commits(self, request: Request) -> Response:
        asked = read_json(request.body or b"{}", CommitsRequest)
        self._check(asked.group)
        found = await self._service.rpc.at_home(asked.group, COMMITS, asked, self._commits)
        return Response(200, msgspec.json.encode(found))

    async def _commits(self, question: CommitsRequest) -> GroupCommits:
        """Hold, count or tell the commits of a group that is led here; keep its captures."""
        service, number = self._service, question.group
        await service.local.linearize(number)
        machine = service.local.led.get(number)
        if machine is None:
            raise NotLeader(0)
        for token in [each for each, held in self._held.items() if held.backup == question.backup]:
            self._keep(token)
        detail = None
        if question.hold_ms is not None:
            now_ms = service.now_ms()
            until_ms = now_ms + question.hold_ms if question.hold_ms else 0
            reply = await service.call(number, TxnHold(question.backup, until_ms, now_ms))
            if reply.code == Code.BACKUP_HOLDS:
                return GroupCommits(number, len(machine.transactions), backup=reply.detail)
            detail = (
                reply.detail
            )  # as of this command: commits that waited for it may follow at once
            await service.local.linearize(number)
        known = machine.transactions
        hold = ("", 0) if known.hold is None else (known.hold.backup, known.hold.commits)
        deciding = (
            each.id
            for each in known.active.values()
            if each.state == TransactionState.PREPARE_COMMIT
        )
        backup, commits = detail or hold
        return GroupCommits(number, len(known), list(islice(deciding, NAMED)), backup, commits)

    async def _answer_part(self, request: Request) -> Response:
        group, offset = _number(request, "group"), _number(request, "offset")
        self._check(group)
        question = PartRequest(group, request.query.get("token", ""), offset)
        part: CapturedPart = await self._service.rpc.at_home(group, PART, question, self._part)
        if part.data is None:
            raise Failure("NOT_FOUND", "this capture has expired: capture the group again")
        return Response(200, part.data, _BYTES)

    async def _part(self, question: PartRequest) -> CapturedPart:
        held = self._held.get(question.token)
        if held is None or held.group != question.group:
            return CapturedPart(None)
        self._keep(question.token)
        data = held.read(question.offset, PART_BYTES)
        if question.offset + len(data) >= held.size:
            self._forget(question.token)  # a client that misses this response captures again
        return CapturedPart(data)

    def _keep(self, token: str) -> None:
        if token in self._timers:
            self._timers.pop(token).cancel()
        self._timers[token] = asyncio.get_running_loop().call_later(
            KEPT_SECONDS, self._forget, token
        )

    def _forget(self, token: str) -> None:
        self._held.pop(token, None)
        timer = self._timers.pop(token, None)
        if timer is not None:
            timer.cancel()

    # --- objects ----------------------------------------------------------------------------------

    @property
    def _store(self) -> ObjectStore:
        if self._tier is None:
            raise Failure("INVALID_REQUEST", "this node has no object store: cold.backend is none")
        return self._tier.store.of("backup")

    async def _answer_objects(self, request: Request) -> Response:
        prefix, found = request.query.get("prefix", ""), []
        try:
            async for info in self._store.list(
                check_prefix(prefix), request.query.get("after", "")
            ):
                found.append([info.key, info.size])
                if len(found) == LISTED:
                    break
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be listed: {fault}") from None
        except ValueError as fault:
            raise Failure("INVALID_REQUEST", str(fault)) from None
        return Response(
            200,
            msgspec.json.encode(
                {"objects": found, "next": found[-1][0] if len(found) == LISTED else None}
            ),
        )

    async def _answer_object(self, request: Request) -> Response:
        offset, length = _number(request, "offset"), _number(request, "length")
        try:
            key = check_key(request.query.get("key", ""))
            data = await self._store.get_range(key, offset, min(length, READ_BYTES_MAX))
        except NotFound:
            raise Failure("NOT_FOUND", "the object does not exist") from None
        except StoreUnavailable as fault:
            raise Unavailable(f"the object store cannot be read: {fault}") from None
        except ValueError as fault:
            raise Failure("INVALID_REQUEST", str(fault)) from None
        return Response(200, data, _BYTES)


def _number(request: Request, name: str) -> int:
    text = request.query.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Failure("INVALID_REQUEST", f"{name}: expected a number")
    return int(text)
