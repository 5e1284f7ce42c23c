"""Snapshots of streams: the write path of their bodies, and reads of them.

A body is a record of the stream's companion, appended before the mark that names it. A publisher
that dies in between leaves a record that a later publish trims.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.limits import SNAPSHOTS_KEPT_MIN
from polynya.base.names import bucket_of, companion_of, spelled_name
from polynya.local.api import Position, ReadQuery, Refusal, StreamInfo
from polynya.routing.proposals import reply_to
from polynya.service.api import Service
from polynya.service.reducers.registry import Reducers
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.marks.commands import DropSnapshot, PublishSnapshot
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Batch, Encoding, Mark, Retention
from polynya.stream.replies import Code, Reply

ANY_BYTE = -1  # of the record of an offset
_TYPE = "application/octet-stream"


class Body(msgspec.Struct, frozen=True):
    """The facts of the body of a new snapshot."""

    sha256: bytes
    content_type: str
    origin: str = ""


class Staged(msgspec.Struct, frozen=True):
    """A part of a body in the companion: its record, where that begins, and its bytes."""

    companion_uid: int
    record: int
    byte: int
    size: int

    @property
    def position(self) -> tuple[int, int]:
        """The position where the part begins."""
        return self.record, self.byte


async def publish(
    service: Service, info: StreamInfo, at: tuple[int, int], body: Body, parts: Sequence[Staged]
) -> Reply:
    """Publish a snapshot of the stream in `info` at a record and where it begins, with a body that
    is staged."""
    kept, bound = await _rule(service, info)
    command = PublishSnapshot(
        info.name,
        info.uid,
        *at,
        parts[0].companion_uid if parts else 0,
        tuple((part.record, part.byte, part.size) for part in parts),
        sum(part.size for part in parts),
        body.sha256,
        body.content_type,
        body.origin,
        kept,
        bound,
        service.now_ms(),
    )
    return await _call(service, info.name, command)


async def staged_bytes(service: Service, info: StreamInfo) -> int:
    """Return the bytes of the companion that no snapshot names."""
    own = await service.info(companion_of(info.name))
    if isinstance(own, Refusal):
        return 0
    return own.byte - own.first_byte - sum(mark.size for mark in info.marks or ())


async def drop(service: Service, info: StreamInfo, record: int, origin: str = "") -> Reply:
    """Remove the snapshot of an origin at a record."""
    kept, bound = await _rule(service, info)
    command = DropSnapshot(info.name, info.uid, origin, record, kept, bound, service.now_ms())
    return await _call(service, info.name, command)


async def boundary_of(
    service: Service, info: StreamInfo, record: int, byte: int
) -> tuple[int, int] | Refusal:
    """Return the record at an offset and where it begins, which memory alone cannot tell. Another
    byte than that one, or ANY_BYTE, is refused with NOT_A_BOUNDARY."""
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
    if byte not in (found[1], ANY_BYTE) or record not in (found[0], Position.AT_BYTE):
        return Refusal(Code.NOT_A_BOUNDARY, *found)
    return found


async def body_of(
    service: Service, info: StreamInfo, mark: Mark, *, local: bool = False
) -> bytes | memoryview | Refusal:
    """Return the body of a snapshot. A Refusal: the mark is gone by now. Raises CorruptData."""
    parts: list[bytes | memoryview] = []
    for *position, _ in mark.parts:
        part = await part_of(service, info, (position[0], position[1]), local=local)
        if isinstance(part, Refusal):
            return part
        parts.append(part)
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(body) != mark.size:
        raise CorruptData(
            f"the snapshot of {spelled_name(info.name)} at record {mark.record} has {len(body):,} "
            f"bytes; {mark.size:,} were stored"
        )
    return body


async def part_of(
    service: Service, info: StreamInfo, position: tuple[int, int], *, local: bool = False
) -> bytes | memoryview | Refusal:
    """Return a part of a body; `local`: from this node's replica. A Refusal: it is gone, or none
    begins there. Raises CorruptData."""
    query = ReadQuery(
        companion_of(info.name),
        *position,
        bytes_max=1,
        touch=False,
        whole_records=True,
        local=local,
    )
    page = service.read_nowait(query) or await service.read(query)
    if isinstance(page, Refusal):
        return page
    if (page.begin_record, page.record) != (position[0], position[0] + 1):
        return Refusal(Code.PARTS_GONE)
    pieces = [span.payload for span in page.spans]
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def stage(
    service: Service, info: StreamInfo, data: bytes, *, diskless: bool
) -> Staged | Reply:
    """Append a part of a body to the companion. `diskless`: this node has an object store, which
    takes it; otherwise the log does."""
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
    return Staged(uid, reply.record - 1, reply.byte - len(data), len(data))


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
    return await rule_of(service.reducers, info.name, retention)


async def rule_of(
    reducers: Reducers, name: str, retention: Retention | None
) -> tuple[int, list[str] | None]:
    """Return what a retention and the reducers of a stream say of its snapshots: how many of an
    origin are kept, and the origins whose oldest one trims the stream; None: it is not trimmed."""
    rule = None if retention is None else retention.snapshots
    trims = rule is not None and bool(rule.trims)
    kept = SNAPSHOTS_KEPT_MIN if rule is None else rule.kept
    return kept, await reducers.bound_of(name, clients=trims)


async def _call(service: Service, name: str, command: Command) -> Reply:
    return await reply_to(partial(service.open(name).propose, command))


async def touch(service: Service, info: StreamInfo) -> None:
    """Extend the sliding TTL of a stream, one of whose snapshots is read."""
    if info.ttl_seconds is not None:
        await service.read(ReadQuery(info.name, Position.NOW, bytes_max=1))
