"""User requests for trims and retention: find the boundary, log the trim, store the settings of
streams and buckets."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from polynya.local.api import Page, Position, ReadQuery, Refusal, StreamInfo, Trimmed, TrimQuery
from polynya.local.hooks import after_applied
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.retention.commands import BucketRetention, Trim, TrimTo
from polynya.stream.parts import Retention
from polynya.stream.replies import Code, Reply


class TrimmingService(Protocol):
    """The interface that this module needs of the routed service."""

    async def info(self, name: str) -> StreamInfo | Refusal: ...

    async def read(self, query: ReadQuery) -> Page | Refusal: ...

    async def call(self, group: int, command: Command) -> Reply: ...

    def now_ms(self) -> int: ...


class TrimCounters(msgspec.Struct):
    """The counters of trims of one core's streams, by any caller. They only grow."""

    trims: int = 0
    records: int = 0
    bytes: int = 0

    @after_applied(Trim, TrimTo)
    def note(self, group: int, command: Trim | TrimTo, reply: Reply) -> None:
        """Count an applied `Trim` or `TrimTo`."""
        for cut in reply.detail or ():
            if cut is not None and cut[2]:
                self.trims += 1
                self.records += cut[2]
                self.bytes += cut[3]


async def trim(service: TrimmingService, query: TrimQuery) -> Trimmed | Refusal:
    """Make the record at a position the first one. A position before the first retained record
    changes nothing."""
    info = await service.info(query.name)
    if isinstance(info, Refusal):
        return info
    if query.incarnation and query.incarnation != info.uid:
        return Refusal(Code.INCARNATION, info.record, info.byte)
    at = _position(query, info)
    if at is None:
        return Trimmed(info.uid, info.first_record, info.first_byte)
    page = await service.read(
        ReadQuery(query.name, *at, bytes_max=1, touch=False, whole_records=True, raw=True)
    )
    if isinstance(page, Page):
        return await _cut(service, info.uid, page, at[0] if query.inside else -1)
    return await _start(service, info.uid, query.name) if page.code == Code.TRIMMED else page


async def _start(service: TrimmingService, uid: int, name: str) -> Trimmed | Refusal:
    """Return the start of a stream. Another stream may have its name by now."""
    info = await service.info(name)
    if isinstance(info, Refusal):
        return info
    if info.uid != uid:  # deleted meanwhile
        return Refusal(Code.NOT_FOUND)
    return Trimmed(uid, info.first_record, info.first_byte)


async def _cut(service: TrimmingService, uid: int, page: Page, inside: int) -> Trimmed | Refusal:
    """Trim up to where a page begins, or (not -1) to a record inside the batch there."""
    if page.info.uid != uid:  # deleted meanwhile
        return Refusal(Code.NOT_FOUND)
    name, record, byte, now_ms = (
        page.info.name,
        page.begin_record,
        page.begin_byte,
        service.now_ms(),
    )
    command: Command = (
        TrimTo(name, uid, inside, byte, now_ms)
        if record < inside
        else Trim([(uid, record, byte)], now_ms, [name])
    )
    reply = await service.call(uid >> 48, command)
    cut: Any = reply.detail[0]
    if cut is None:  # likewise
        return Refusal(Code.NOT_FOUND)
    return Trimmed(uid, *cut)


def _position(query: TrimQuery, info: StreamInfo) -> tuple[int, int] | None:
    """Return the position to read for the boundary; None: nothing to trim."""
    if query.keep_bytes is None:
        return query.record, query.byte
    byte = info.byte - query.keep_bytes
    return (Position.AT_BYTE, byte) if byte > info.first_byte else None


async def set_bucket(service: TrimmingService, bucket: str, retention: Retention | None) -> None:
    """Set the retention of the present and future streams of a bucket that have none of their
    own."""
    await service.call(META_GROUP, BucketRetention(bucket, retention, service.now_ms()))
