"""The shared cursors of topics: small streams that no client can name or list.

The cursor of a topic is the stream `_walrus/TOPIC`. Its last `Stream-Seq` is the position, and only
one of two nodes that consume the same message can raise it. An earlier release kept it in the public
stream `walrus-cursors/TOPIC`: that one is closed, its position is taken over, and it is deleted once
the cursor has moved. A group whose nodes are not all upgraded keeps the old stream.
"""

from __future__ import annotations

from functools import partial

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import KIB
from polynya.base.names import FORMER_CURSORS, INTERNAL
from polynya.local.api import Position, Refusal, StreamInfo
from polynya.routing.proposals import reply_to
from polynya.service.api import Service
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create, Delete
from polynya.stream.parts import Batch, Encoding, Retention
from polynya.stream.replies import Code, Reply
from polynya.wire.json_records import parse_records

_JSON = "application/json"
_CURSORS = f"{INTERNAL}walrus/"
_CURSOR_BYTES = 4 * KIB  # kept of a cursor's stream: only its last Stream-Seq is read


class CursorRefused(Exception):
    """A cursor cannot be moved."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Cursor(msgspec.Struct, frozen=True):
    """The position of a topic's readers. `stream` has it from now on."""

    stream: str
    uid: int = 0  # of the topic at the last move; 0: none
    record: int = Position.START
    byte: int = 0
    former: int = 0  # the uid of the stream that had it


class Cursors:
    """The cursors of all topics, as one front reads and moves them."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def read(self, topic: str) -> Cursor:
        """Return the cursor of a topic, by canonical name. Raises `PolynyaError`."""
        own = await self._facts(_CURSORS + topic)
        if own is not None and own.stream_seq is not None:
            return _cursor(_CURSORS + topic, own)
        former = await self._facts(f"{FORMER_CURSORS}/{topic}")
        if former is None:
            return Cursor(_CURSORS + topic)
        if not former.closed:
            try:
                await self._create(_CURSORS + topic)
            except Unavailable:  # nodes of an earlier release may move it as well
                return _cursor(former.name, former)
            close = Append(former.name, self._service.now_ms(), "", None, close=True)
            await self._call(former.name, close)
            former = await self._facts(former.name) or former
        return _cursor(_CURSORS + topic, former, former.uid)

    async def advance(self, cursor: Cursor, uid: int, record: int, byte: int) -> bool:
        """Move a cursor; False if another reader was first. Raises `CursorRefused`,
        `PolynyaError`."""
        name = cursor.stream
        sequence = f"{uid:020d}_{record:016d}_{byte:016d}"
        now_ms = self._service.now_ms()
        command = Append(name, now_ms, _JSON, json_batch(b"0"), stream_seq=sequence)
        try:
            reply = await self._call(name, command)
            if reply.code == Code.NOT_FOUND:
                if not name.startswith(_CURSORS):
                    return False  # another reader has taken the former stream over
                await self._create(name)
                reply = await self._call(name, command)
            if cursor.former and reply.code < Code.NOT_FOUND:
                former = name.replace(_CURSORS, f"{FORMER_CURSORS}/", 1)
                await self._call(former, Delete(former, now_ms, cursor.former))
        except OutcomeUnknown:
            return True  # a message may come twice, but none is lost
        if reply.code >= Code.NOT_FOUND and reply.code not in (Code.SEQ_REGRESSION, Code.CLOSED):
            raise CursorRefused(reply.code)
        return reply.code < Code.NOT_FOUND

    async def _facts(self, name: str) -> StreamInfo | None:
        info = await self._service.open(name).info()
        return None if isinstance(info, Refusal) else info

    async def _create(self, name: str) -> None:
        retention = Retention(bytes=_CURSOR_BYTES)
        now_ms = self._service.now_ms()
        await self._call(name, Create(name, now_ms, _JSON, Encoding.JSON, retention=retention))

    async def _call(self, name: str, command: Command) -> Reply:
        return await reply_to(partial(self._service.open(name).propose, command))


def _cursor(stream: str, info: StreamInfo, former: int = 0) -> Cursor:
    if info.stream_seq is None:
        return Cursor(stream, former=former)
    uid, record, byte = map(int, info.stream_seq.split("_"))
    return Cursor(stream, uid, record, byte, former)


def json_batch(body: bytes) -> Batch:
    """Return the batch of a JSON body."""
    records, payload, lengths = parse_records(body)
    return Batch(Encoding.JSON, records, payload, crc32c(payload), lengths)
