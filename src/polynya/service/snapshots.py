"""Snapshots of streams: the write path of their bodies, and reads of them.

A body is a record of the stream's companion, appended before the mark that names it. A publisher
that dies in between leaves a record that a later publish trims.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.futures import settle
from polynya.base.limits import SNAPSHOTS_KEPT_DEFAULT
from polynya.base.names import bucket_of, companion_of, spelled_name
from polynya.local.api import Page, Position, ReadQuery, Refusal, StreamInfo
from polynya.service.api import Service
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.marks.commands import DropSnapshot, PublishSnapshot
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Batch, Encoding, Retention
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import Mark

_TYPE = "application/octet-stream"


class Body(msgspec.Struct, frozen=True):
    """The body of a new snapshot."""

    data: bytes
    sha256: bytes
    content_type: str
    origin: str = ""


async def publish(
    service: Service, info: StreamInfo, at: tuple[int, int], body: Body, *, diskless: bool
) -> Reply:
    """Publish a snapshot of the stream in `info` at a record and where it begins. `diskless`: this
    node has an object store, which takes the body; otherwise the log does."""
    staged = await _stage(service, info, body.data, diskless=diskless) if body.data else (0, None)
    if isinstance(staged, Reply):
        return staged
    companion_uid, part = staged
    kept, bound = await _rule(service, info)
    command = PublishSnapshot(
        info.name,
        info.uid,
        *at,
        companion_uid,
        () if part is None else (part,),
        len(body.data),
        body.sha256,
        body.content_type,
        body.origin,
        kept,
        bound,
        service.now_ms(),
    )
    return await _call(service, info.name, command)


async def drop(service: Service, info: StreamInfo, record: int, origin: str = "") -> Reply:
    """Remove the snapshot of an origin at a record."""
    kept, bound = await _rule(service, info)
    command = DropSnapshot(info.name, info.uid, origin, record, kept, bound, service.now_ms())
    return await _call(service, info.name, command)


async def boundary_of(
    service: Service, info: StreamInfo, record: int, byte: int
) -> tuple[int, int] | Refusal:
    """Return the record at an offset and where it begins, which memory alone cannot tell. Another
    byte than that one is refused with NOT_A_BOUNDARY."""
    if record != Position.AT_BYTE and record >= info.record:
        found = (info.record, info.byte)
        if record > found[0]:
            return Refusal(Code.OFFSET_BEYOND_TAIL, *found)
    else:
        query = ReadQuery(
            info.name, record, byte, bytes_max=1, touch=False, whole_records=True, raw=True
        )
        page = await service.read(query)
        if isinstance(page, Refusal):
            return page
        if page.info.uid != info.uid:
            return Refusal(Code.NOT_FOUND)
        found = (page.begin_record, page.begin_byte)
    if found[1] != byte or record not in (found[0], Position.AT_BYTE):
        return Refusal(Code.NOT_A_BOUNDARY, *found)
    return found


async def body_of(service: Service, info: StreamInfo, mark: Mark) -> bytes | memoryview | Refusal:
    """Return the body of a snapshot. A Refusal: the mark is gone by now. Raises CorruptData."""
    parts: list[bytes | memoryview] = []
    for record, byte in mark.parts:
        query = ReadQuery(
            companion_of(info.name), record, byte, bytes_max=1, whole_records=True, touch=False
        )
        page = await service.read(query)
        if isinstance(page, Refusal):
            return page
        parts += [span.payload for span in page.spans]
        _check(page, record)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(body) != mark.size:
        raise CorruptData(
            f"the snapshot of {spelled_name(info.name)} at record {mark.record} has {len(body):,} "
            f"bytes; {mark.size:,} were stored"
        )
    return body


def _check(page: Page, record: int) -> None:
    if (page.begin_record, page.record) != (record, record + 1):
        raise CorruptData(
            f"a read of record {record} of {page.info.name} found {page.begin_record} to "
            f"{page.record}"
        )


async def _stage(
    service: Service, info: StreamInfo, data: bytes, *, diskless: bool
) -> tuple[int, tuple[int, int]] | Reply:
    """Append a body to the companion. Return the companion's uid, and the body's record and where
    it begins."""
    name = companion_of(info.name)
    uid = await _companion(service, name, diskless=diskless)
    if isinstance(uid, Reply):
        return uid
    batch = Batch(Encoding.BYTES, 1, data, crc32c(data))
    reply = await _call(
        service, name, Append(name, service.now_ms(), _TYPE, batch, incarnation=uid)
    )
    if reply.code in (Code.NOT_FOUND, Code.INCARNATION):  # deleted meanwhile, with its owner
        return Reply(Code.INCARNATION, info.uid)
    if reply.code >= Code.NOT_FOUND:
        return reply
    return uid, (reply.record - 1, reply.byte - len(data))


async def _companion(service: Service, name: str, *, diskless: bool) -> int | Reply:
    """Return the uid of a companion, which the first publish creates. The core that takes it
    decides the profile."""
    info = await service.info(name)
    if isinstance(info, StreamInfo):
        if info.profile == Profile.DISKLESS:
            service.expect_diskless(name)
        return info.uid
    profile = Profile.DISKLESS if diskless else Profile.REPLICATED
    command = Create(name, service.now_ms(), _TYPE, Encoding.BYTES, profile=profile)
    reply = await _call(service, name, command)
    if reply.code in (Code.CREATED, Code.EXISTS, Code.EXISTS_DIFFERENT):
        return reply.uid
    return reply


async def _rule(service: Service, info: StreamInfo) -> tuple[int, list[str] | None]:
    """Return how many snapshots of an origin are kept, and the origins whose oldest one trims the
    stream; None: it is not trimmed."""
    retention = info.retention or (await service.buckets()).get(bucket_of(info.name))
    return SNAPSHOTS_KEPT_DEFAULT if retention is None else kept_by(retention), bound_by(retention)


def kept_by(retention: Retention) -> int:
    """Return how many snapshots of an origin a retention keeps."""
    return SNAPSHOTS_KEPT_DEFAULT


def bound_by(retention: Retention | None) -> list[str] | None:
    """Return the origins whose oldest snapshot trims the stream; None: it is not trimmed."""
    return None


async def _call(service: Service, name: str, command: Command) -> Reply:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    service.propose(name, command, partial(settle, future))
    return await future
