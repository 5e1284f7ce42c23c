"""`GET /v1/segments/NAME`: the segments of a leased stream, their writers and epochs."""

from __future__ import annotations

import msgspec

from polynya.access.grants import Verb
from polynya.base.names import LEASED, BadName, canonical_name, spelled_name
from polynya.base.offsets import format_token
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import Request, Response
from polynya.service.stream_segments import LeasedSegments, SegmentFinder
from polynya.wire.headers import format_instant

PREFIX = "/v1/segments/"


class SegmentRoute:
    """The handler below `PREFIX`. A caller needs `read` on the stream."""

    def __init__(self, finder: SegmentFinder) -> None:
        self._finder = finder

    async def handle(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "GET, HEAD"),))
        try:
            name = canonical_name("/".join(request.segments))
        except BadName as bad:
            raise Failure("INVALID_NAME", str(bad)) from None
        if request.principal is not None and not request.principal.may(Verb.READ, name):
            raise Failure("FORBIDDEN", f"the token does not allow 'read' on {spelled_name(name)}")
        found = await self._finder.find(name)
        if found is None:
            raise Failure("NOT_FOUND", f"no stream {spelled_name(name)} with segments exists")
        body = msgspec.json.encode(_shown(name, found))
        return Response(200, body, headers=(("Cache-Control", "no-store"),))


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
