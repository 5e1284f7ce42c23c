"""The snapshots that a fork inherits: copies of those of its source at or before the fork point.

They are copied once the fork exists. A fork of trimmed records has none until then, and its bootstrap
is refused as that of any trimmed stream. After a failure the creation is repeated, which completes the
copy.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256

from polynya.base.errors import OutcomeUnknown, PolynyaError
from polynya.base.limits import APPEND_BYTES_MAX, SNAPSHOT_STAGED_BYTES
from polynya.local.api import Refusal, StreamInfo
from polynya.service.api import Service
from polynya.service.snapshots import Body, Staged, part_of, publish, stage, staged_bytes
from polynya.stream.features.marks.held import inherited
from polynya.stream.parts import Mark
from polynya.stream.replies import Code, Reply

# the fork has one that is as new, or no longer the records: nothing is missing
_NOT_NEEDED = (Code.SNAPSHOT_OLDER, Code.SNAPSHOT_CONFLICT, Code.SNAPSHOT_ORIGINS, Code.TRIMMED)


async def inherit_snapshots(
    service: Service, source_name: str, name: str, created: Reply, *, diskless: bool
) -> Reply:
    """Copy to a fork the newest snapshots of its source, of each origin, at or before the fork point.
    `created`: the reply to its creation, which is returned, or SNAPSHOT_NEEDED: they are gone.
    `diskless` is that of `stage`. Raises OutcomeUnknown: create the fork again."""
    try:
        is_whole = await _inherit(service, source_name, name, diskless=diskless)
    except PolynyaError as fault:
        raise OutcomeUnknown(
            f"the fork was created, but its source's snapshot was not copied to it ({fault}): repeat "
            "the request within ten minutes, which completes it"
        ) from None
    is_new = created.code == Code.CREATED
    return created if is_whole or not is_new else Reply(Code.SNAPSHOT_NEEDED, created.uid)


async def _inherit(service: Service, source_name: str, name: str, *, diskless: bool) -> bool:
    """Copy the snapshots. Return whether the fork has all that its source had of its document."""
    source = await service.info(source_name)
    if isinstance(source, StreamInfo) and not source.marks:
        return True
    fork = await service.info(name)
    if isinstance(fork, Refusal) or fork.fork is None:
        return True  # it was deleted meanwhile
    point, own = fork.fork, fork.marks or []
    if isinstance(source, StreamInfo) and source.uid == point.source_uid:
        marks, now_ms = source.marks or [], service.now_ms()
        for mark in inherited(marks, own, (fork.first_record, point.record), now_ms):
            await _copy(service, source, fork, mark, diskless=diskless)
            own = [*own, mark]
    return not fork.first_record or any(mark.record >= fork.first_record for mark in own)


async def _copy(
    service: Service, source: StreamInfo, fork: StreamInfo, mark: Mark, *, diskless: bool
) -> None:
    """Copy a snapshot, part by part. Raises OutcomeUnknown."""
    most = SNAPSHOT_STAGED_BYTES if diskless else APPEND_BYTES_MAX
    if len(mark.parts) > 1 and await staged_bytes(service, fork) + mark.size > most:
        raise OutcomeUnknown("parts of earlier attempts take its place for up to ten minutes")
    digest, parts = sha256(), list[Staged]()
    for record, byte, size in mark.parts:
        data = await part_of(service, source, (record, byte))
        if isinstance(data, Refusal) or len(data) != size:
            raise OutcomeUnknown("it was removed meanwhile")
        await asyncio.to_thread(digest.update, data)
        part = await stage(service, fork, bytes(data), diskless=diskless)
        if isinstance(part, Reply):
            raise OutcomeUnknown(f"a part was refused: {Code(part.code).name}")
        parts.append(part)
    if digest.digest() != mark.sha256:
        raise OutcomeUnknown("its body is another one by now")
    body = Body(mark.sha256, mark.content_type, mark.origin)
    reply = await publish(service, fork, (mark.record, mark.byte), body, parts)
    if reply.code >= Code.NOT_FOUND and reply.code not in _NOT_NEEDED:
        raise OutcomeUnknown(f"it was refused: {Code(reply.code).name}")
