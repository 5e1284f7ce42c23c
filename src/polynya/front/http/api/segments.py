"""`GET /v1/segments/NAME`: the segments of a leased stream, their writers and epochs. `POST` closes
the open one."""

from __future__ import annotations

import msgspec

from polynya.access.grants import Verb
from polynya.base.names import LEASED, spelled_name
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import NO_STORE, Request, Response
from polynya.front.http.protocol.named import stream_to_see_or_change
from polynya.service.stream_segments import LeasedSegments, SegmentFinder
from polynya.wire.headers import format_instant

PREFIX = "/v1/segments/"


class SegmentRoute:
    """The handler below `PREFIX`. A caller needs `read` on the stream, or `append` to close a
    segment."""

    def __init__(self, finder: SegmentFinder) -> None:
        self._finder = finder

    async def handle(self, request: Request) -> Response:
        name = stream_to_see_or_change(request, Verb.APPEND)
        if request.method == "POST":
            rolled = await self._finder.roll(name, _epoch(request))
            found = None if rolled is None else rolled.segments
            more = {} if rolled is None else {"rolled": rolled.rolled}
        else:
            found, more = await self._finder.find(name), {}
        if found is None:
            raise Failure(
                "NOT_FOUND", f"{spelled_name(name)} is no leased stream, so it has no segments"
            )
        body = msgspec.json.encode(_shown(name, found) | more)
        return Response(200, body, headers=NO_STORE)


def _epoch(request: Request) -> int:
    """Return the epoch of the segment to close; 0: whichever is open."""
    given = request.query.get("epoch", "0")
    if given.isascii() and given.isdecimal() and len(given) <= 16:
        return int(given)
    raise Failure(
        "INVALID_REQUEST", f"'epoch' is '{given[:64]}'; expected the number of the open segment"
    )


def _shown(name: str, found: LeasedSegments) -> dict[str, object]:
    opened = found.segments[-1]
    return {
        "name": spelled_name(name),
        "incarnation": str(found.uid),
        "profile": LEASED,
        "segment_records": found.records_max or None,
        "segment_bytes": found.bytes_max or None,
        "epoch": opened.epoch,
        "writer": opened.writer,
        "rollovers": opened.epoch - 1,
        "segments": [
            {
                "epoch": each.epoch,
                "writer": each.writer,
                "sealed": each is not opened,
                "offset": format_token(each.record, each.byte),
                "records": each.records,
                "bytes": each.bytes,
                "opened": format_instant(each.opened_ms),
            }
            for each in found.segments
        ],
    }
