"""POST of STREAM/snapshot/OFFSET/parts, and the publish of a snapshot whose body is such parts.

A part is stored before a snapshot names it. One that none does within ten minutes goes.
"""

from __future__ import annotations

import asyncio
import re
from hashlib import sha256

from polynya.base.limits import (
    APPEND_BYTES_MAX,
    MIB,
    SNAPSHOT_BYTES_MAX,
    SNAPSHOT_EMBEDDED_BYTES,
    SNAPSHOT_PARTS_MAX,
    SNAPSHOT_STAGED_BYTES,
)
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.exchange import Exchange
from polynya.front.http.routes.bodies import decode
from polynya.front.http.routes.conditions import refuse_conditions
from polynya.front.http.snapshots.asked import facts, fail_snapshot, needs_level, parse_offset
from polynya.local.api import Refusal, StreamInfo
from polynya.service.snapshots import Staged, part_of, stage, staged_bytes
from polynya.stream.replies import Reply
from polynya.wire.headers import media_type
from polynya.wire.http.body_coding import CODED
from polynya.wire.json_records import valid_value

PARTS = "stream-snapshot-parts"
NO_JSON = "the Content-Type is application/json, and the body is no JSON value"
_ID = re.compile(r"(\d{1,19})-(\d{1,18})-(\d{1,18})-(\d{1,10})", re.ASCII)


def post_part(exchange: Exchange) -> None:
    """Handle POST. Raises `Failure`."""
    refuse_conditions(exchange)
    needs_level(exchange)
    parse_offset(exchange.route.segments[0])
    if exchange.route.segments[1] != "parts":
        raise Failure("NO_ROUTE")
    exchange.spawn(_post(exchange))


async def _post(exchange: Exchange) -> None:
    if not CODED.isdisjoint(exchange.head.headers):
        await decode(exchange)
    data = exchange.body
    if not data:
        raise Failure("EMPTY_BODY", "the part is empty: send its bytes")
    info = await facts(exchange)
    if info is None:
        return
    service, diskless = exchange.context.service, exchange.context.settings.object_store
    most = SNAPSHOT_STAGED_BYTES if diskless else APPEND_BYTES_MAX
    if (staged := await staged_bytes(service, info)) + len(data) > most:
        raise Failure(
            "SNAPSHOT_STAGED",
            f"the stream has {staged // MIB:,} MiB of parts that no snapshot names, and may have "
            f"{most // MIB:,}: publish them, or retry in ten minutes, when they are gone",
        )
    part = await stage(service, info, data, diskless=diskless)
    if isinstance(part, Reply):
        fail_snapshot(exchange, part, info)
        return
    name = f"{part.companion_uid}-{part.record}-{part.byte}-{part.size}"
    headers = [("Stream-Snapshot-Part", name), ("Stream-Incarnation", str(info.uid))]
    exchange.answer(201, headers)


def named_parts(exchange: Exchange) -> list[Staged]:
    """Return the parts that the body of a publish names, one a line. Raises `Failure`."""
    text, lines = exchange.head.headers[PARTS], exchange.body.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if text != str(len(lines)) or not 1 <= len(lines) <= SNAPSHOT_PARTS_MAX:
        raise Failure(
            "INVALID_HEADER",
            f"Stream-Snapshot-Parts is '{text[:20]}', and the body has {len(lines)} lines: expected "
            f"1 to {SNAPSHOT_PARTS_MAX} ids, one a line",
        )
    parts = [_parsed(line) for line in lines]
    size = sum(part.size for part in parts)
    most = SNAPSHOT_BYTES_MAX if exchange.context.settings.object_store else APPEND_BYTES_MAX
    if size > most:
        raise Failure(
            "BODY_TOO_LARGE", f"the parts have {size:,} bytes; a snapshot here has at most {most:,}"
        )
    if len({part.companion_uid for part in parts}) > 1:
        raise Failure("PARTS_GONE")
    return parts


def _parsed(line: bytes) -> Staged:
    found = _ID.fullmatch(line.decode("latin-1").strip())
    if found is None:
        shown = line[:64].decode("latin-1")
        raise Failure("INVALID_REQUEST", f"'{shown}' is not the Stream-Snapshot-Part of a part")
    return Staged(*map(int, found.groups()))


async def digest_of(
    exchange: Exchange, info: StreamInfo, parts: list[Staged], content_type: str
) -> bytes:
    """Return the digest of the parts together, which are read for it. Raises `Failure`."""
    found, kept, size = sha256(), list[bytes](), sum(part.size for part in parts)
    is_checked = size <= SNAPSHOT_EMBEDDED_BYTES and media_type(content_type) == "application/json"
    for part in parts:
        data = await part_of(exchange.context.service, info, part.position)
        if isinstance(data, Refusal) or len(data) != part.size:
            raise Failure("PARTS_GONE")
        await asyncio.to_thread(found.update, data)
        if is_checked:
            kept.append(bytes(data))
    if is_checked and valid_value(b"".join(kept)) is None:  # it may stand inside of answers
        raise Failure("INVALID_JSON", NO_JSON)
    return found.digest()
