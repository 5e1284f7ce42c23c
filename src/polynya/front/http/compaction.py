"""`GET /v1/compaction/NAME`: the key compaction of a stream. `POST` begins a pass."""

from __future__ import annotations

from typing import Any

import msgspec

from polynya.access.grants import Verb
from polynya.base.names import spelled_name
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import NO_STORE, Request, Response
from polynya.front.http.protocol.named import stream_to_see_or_change
from polynya.local.api import Refusal
from polynya.service.stream_compaction import CompactionFinder, StreamCompaction
from polynya.wire.headers import format_instant

PREFIX = "/v1/compaction/"


class CompactionRoute:
    """The handler below `PREFIX`. A caller needs `read` on the stream, or `delete` to begin a pass."""

    def __init__(self, finder: CompactionFinder) -> None:
        self._finder = finder

    async def handle(self, request: Request) -> Response:
        name = stream_to_see_or_change(request, Verb.DELETE)
        if request.method == "POST":
            found = await self._finder.compact(name)
        else:
            found = await self._finder.find(name)
        if found is None:
            if isinstance(await self._finder.info(name), Refusal):
                raise Failure("NOT_FOUND")
            raise Failure(
                "INVALID_REQUEST",
                f"no keys are compacted in {spelled_name(name)}: it needs the retention "
                '{"compact": true}, or as a partition a topic with cleanup.policy=compact, and '
                "the node an object store",
            )
        body = msgspec.json.encode({"name": spelled_name(name), **shown(found)})
        status = 202 if request.method == "POST" else 200
        return Response(status, body, headers=NO_STORE)


def shown(found: StreamCompaction) -> dict[str, Any]:
    """Return the key compaction of a stream as responses show it."""
    last = found.last
    return {
        "bytes": found.bytes,
        "dirty_bytes": found.dirty_bytes,
        "dirty_ratio": round(found.dirty_bytes / found.bytes, 4) if found.bytes else 0.0,
        "cleaned_offset": found.cleaned,
        "tombstones_until": format_instant(found.horizon_ms) if found.horizon_ms else None,
        "passes": found.passes,
        "due": found.is_due,
        "held_by": found.held_by or None,
        "kept_for": found.kept_for or None,
        "last_pass": None
        if last is None
        else {
            "ended_at": format_instant(last.ended_ms),
            "seconds": round(last.seconds, 3),
            "read_bytes": last.read_bytes,
            "dropped_records": last.dropped_records,
            "dropped_bytes": last.dropped_bytes,
            "complete": last.is_complete,
            "damage": last.damage or None,
        },
    }
