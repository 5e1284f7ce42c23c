"""Create a fork: pin the source, create the target, confirm the pin.

Each step is one idempotent command with an attempt id. The source may be in another group and on
another core. After a crash between two steps, `polynya.service.outbox_sender` completes or
cancels the fork.
"""

from __future__ import annotations

import secrets
from array import array
from contextlib import suppress
from typing import Protocol

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.base.limits import APPEND_BYTES_MAX
from polynya.base.offsets import format_token
from polynya.local.api import Page, Position, ReadQuery, Refusal
from polynya.stream.command import Command
from polynya.stream.features.forks.commands import ConfirmPin, PinSource, Unpin
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Batch, Encoding, Fork
from polynya.stream.replies import Code, Reply

_RECORD, _ENCODING, _PREFIX = 0, 3, 7  # indexes into the detail of a `PinSource` reply
_RECREATED = "the source of the fork was deleted and recreated meanwhile; retry"


class ForkService(Protocol):
    """The service calls that a fork needs."""

    def now_ms(self) -> int: ...
    def group_of(self, name: str) -> int: ...
    async def call(self, group: int, command: Command) -> Reply: ...
    async def read(self, query: ReadQuery) -> Page | Refusal: ...


async def create_fork(
    service: ForkService, create: Create, source: str, point: tuple[int, int, int]
) -> Reply:
    """Create a fork at `point`: (record, byte, sub-offset); record -1 is the source's tail. An
    empty `create.content_type` inherits the source's. Raises Unavailable, OutcomeUnknown."""
    record, byte, sub_offset = point
    attempt = secrets.token_hex(16)
    source_group = service.group_of(source)
    pin = PinSource(
        source,
        attempt,
        create.name,
        service.now_ms(),
        record,
        byte,
        create.content_type,
        sub_offset,
    )
    pinned = await service.call(source_group, pin)
    prefix = 0
    # the record boundary is in the object tier, or in the source's own source
    if pinned.code == Code.NOT_YET:
        found = await _locate(service, source, point)
        if isinstance(found, Refusal):
            return Reply(found.code, pinned.uid, found.record, found.byte)
        at_record, at_byte, prefix = found
        pin = msgspec.structs.replace(
            pin, record=at_record, byte=at_byte, sub_offset=0, resolved=True
        )
        looked_at, pinned = pinned.uid, await service.call(source_group, pin)
        # a recreated source has other record positions
        if pinned.code < Code.NOT_FOUND and pinned.uid != looked_at:
            await _unpin(service, source_group, pinned.uid, attempt)
            raise Unavailable(_RECREATED)
    if pinned.code >= Code.NOT_FOUND:
        return pinned
    # it was parsed for the source's earlier content type
    if create.batch is not None and create.batch.encoding != pinned.detail[_ENCODING]:
        await _unpin(service, source_group, pinned.uid, attempt)
        raise Unavailable(
            "the source of the fork was deleted and recreated with another content type "
            "meanwhile; retry"
        )
    if record >= 0 and pinned.detail[_RECORD] < _wanted(point, pinned.detail[_ENCODING]):
        await _unpin(service, source_group, pinned.uid, attempt)
        return _inside_batch(pinned)
    if prefix:
        pinned.detail[_PREFIX] = prefix
    cut = pinned.detail[_PREFIX]
    if cut and create.batch is not None and cut + len(create.batch.payload) > APPEND_BYTES_MAX:
        # both travel in one log entry, which must fit into a message
        await _unpin(service, source_group, pinned.uid, attempt)
        return Reply(Code.TOO_LARGE)
    try:
        command = await _resolve(
            service,
            create,
            pinned,
            Fork(attempt, source, pinned.uid, 0, 0, _spell(record, byte), sub_offset),
        )
        reply = await service.call(service.group_of(create.name), command)
    except _InsideBatch:
        await _unpin(service, source_group, pinned.uid, attempt)
        return _inside_batch(pinned)
    except Unavailable:  # certainly not created
        await _unpin(service, source_group, pinned.uid, attempt)
        raise
    if reply.code != Code.CREATED:
        await _unpin(service, source_group, pinned.uid, attempt)
        return reply
    try:
        await service.call(source_group, ConfirmPin(pinned.uid, attempt))
    except Unavailable as fault:
        raise OutcomeUnknown(
            f"the fork was created, but its source has not confirmed it ({fault}); repeating the "
            "request is safe"
        ) from None
    return reply


class _InsideBatch(Exception):
    """The fork point lies inside a batch that cannot be divided."""


def _wanted(point: tuple[int, int, int], encoding: int) -> int:
    """Return the record that a fork point names: in a raw stream the sub-offset counts bytes."""
    record, _, sub_offset = point
    return record if encoding == Encoding.BYTES else record + sub_offset


def _inside_batch(pinned: Reply) -> Reply:
    return Reply(
        Code.SUB_OFFSET,
        pinned.uid,
        detail="the fork point lies between records that were appended together with keys, "
        "headers or times: fork at an offset before or behind them",
    )


async def _unpin(service: ForkService, group: int, uid: int, attempt: str) -> None:
    """Try to remove the pin now; otherwise `OutboxSender` removes it."""
    with suppress(Unavailable, OutcomeUnknown):
        await service.call(group, Unpin(uid, attempt, service.now_ms()))


async def _locate(
    service: ForkService, source: str, point: tuple[int, int, int]
) -> tuple[int, int, int] | Refusal:
    """Return (record, its byte, bytes into it) of the fork point by reading the stream; the machine
    lacks that data."""
    record, byte, sub_offset = point
    anchor = await service.read(ReadQuery(source, record, byte, bytes_max=1, touch=False, raw=True))
    if isinstance(anchor, Refusal):
        return anchor
    if anchor.info.encoding != Encoding.BYTES:
        if not sub_offset:
            return *_start_of(anchor), 0
        page = await service.read(
            ReadQuery(source, record + sub_offset, 0, bytes_max=1, touch=False, raw=True)
        )
        if isinstance(page, Refusal):
            return await _beyond(service, source, anchor.info.uid, page)
        return *_start_of(page), 0
    position = anchor.begin_byte + sub_offset
    page = await service.read(
        ReadQuery(
            source,
            Position.AT_BYTE,
            position,
            bytes_max=1,
            touch=False,
            whole_records=True,
            raw=True,
        )
    )
    if isinstance(page, Refusal):
        return await _beyond(service, source, anchor.info.uid, page)
    return *_start_of(page), position - page.begin_byte


def _start_of(page: Page) -> tuple[int, int]:
    """Return where a page begins; a batch there may hold trimmed records too."""
    return page.first_record, page.begin_byte


async def _beyond(service: ForkService, source: str, uid: int, refused: Refusal) -> Refusal:
    """Report a sub-offset beyond the tail as such. The source may also have been trimmed or deleted
    after the first read, which saw the stream `uid`. Raises Unavailable if another stream has
    refused: it has other positions."""
    now = await service.read(ReadQuery(source, Position.NOW, touch=False))
    if isinstance(now, Refusal):
        return now
    if now.info.uid != uid:
        raise Unavailable(_RECREATED)
    return (
        Refusal(Code.SUB_OFFSET, refused.record, refused.byte)
        if refused.code == Code.OFFSET_BEYOND_TAIL
        else refused
    )


def _spell(record: int, byte: int) -> str:
    return "" if record < 0 else format_token(record, byte)


async def _resolve(service: ForkService, create: Create, pinned: Reply, fork: Fork) -> Create:
    """Return the target's command with the inherited settings and the prefix of a record that the
    sub-offset cuts."""
    (
        record,
        byte,
        content_type,
        encoding,
        ttl_seconds,
        expires_at_ms,
        depth,
        prefix,
        first_record,
        first_byte,
        *profile,
    ) = pinned.detail
    batch = create.batch
    if prefix:
        batch = _with_prefix(
            await _read_prefix(service, fork.source_name, (record, byte), prefix), batch
        )
    if create.ttl_seconds is not None or create.expires_at_ms is not None:
        ttl_seconds, expires_at_ms = create.ttl_seconds, create.expires_at_ms
    fork = msgspec.structs.replace(
        fork, record=record, byte=byte, depth=depth, first_record=first_record, first_byte=first_byte
    )  # fmt: skip
    return msgspec.structs.replace(
        create,
        content_type=create.content_type or content_type,
        encoding=encoding,
        ttl_seconds=ttl_seconds,
        expires_at_ms=expires_at_ms,
        batch=batch,
        fork=fork,
        profile=create.profile or (profile[0] if profile and create.segments is None else 0),
    )


async def _read_prefix(
    service: ForkService, source: str, at: tuple[int, int], length: int
) -> bytes:
    record, byte = at
    parts: list[bytes] = []
    left = length
    while left:
        page = await service.read(ReadQuery(source, record, byte, touch=False, raw=True))
        if isinstance(page, Refusal) or not page.spans:
            raise Unavailable("the source of the fork changed while it was read; retry")
        if page.spans[0].encoding == Encoding.KAFKA:
            raise _InsideBatch
        data = b"".join(span.payload for span in page.spans)[:left]
        parts.append(data)
        left -= len(data)
        byte += len(data)
    return b"".join(parts)


def _with_prefix(prefix: bytes, batch: Batch | None) -> Batch:
    """Return a batch with the prefix as the fork's first record, followed by the request's own
    body."""
    if batch is None:
        return Batch(0, 1, prefix, crc32c(prefix))
    payload = prefix + batch.payload
    return Batch(
        batch.encoding,
        2,
        payload,
        crc32c(payload),
        array("I", (len(prefix), len(batch.payload))).tobytes(),
    )
