"""`POST /v1/ranges`: where the records of streams lie in the object store, for readers with access
to it (Spark). The JSON is specified in docs/formats/tables.md, section "Ranges".
"""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Annotated, Any

import msgspec

from polynya.access.grants import Verb
from polynya.base.limits import RANGES_STREAMS_MAX
from polynya.base.names import BadName, canonical_name, spelled_name
from polynya.front.http.api.table_views import part_of
from polynya.front.http.protocol.errors import Failure
from polynya.front.http.protocol.extension import NO_STORE, Request, Response, read_json
from polynya.service.stream_slices import SliceFinder, StreamSlices, members_of
from polynya.wire.tables import StoreRef

PATH = "/v1/ranges"
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    first: _Number = 0
    end: _Number | None = None


class _RangeQuery(msgspec.Struct, forbid_unknown_fields=True):
    streams: Annotated[list[_Wanted], msgspec.Meta(min_length=1, max_length=RANGES_STREAMS_MAX)]
    flush: bool = False


class RangeRoute:
    """The handler of `PATH`. A caller needs `read` on every stream."""

    def __init__(self, finder: SliceFinder, store: StoreRef) -> None:
        self._finder = finder
        self._store = store

    async def handle(self, request: Request) -> Response:
        if request.method != "POST":
            raise Failure("METHOD_NOT_ALLOWED", headers=(("Allow", "POST"),))
        query = read_json(request.body, _RangeQuery)
        names = [_readable(request, wanted.name) for wanted in query.streams]
        if query.flush:
            await self._finder.flush(_common(min(names), max(names)))
        found = await asyncio.gather(
            *(
                self._finder.find(name, wanted.first, -1 if wanted.end is None else wanted.end)
                for name, wanted in zip(names, query.streams, strict=True)
            )
        )
        streams = [
            None if each is None else _stream(name, each)
            for name, each in zip(names, found, strict=True)
        ]
        body = msgspec.json.encode({"store": self._store, "streams": streams})
        return Response(200, body, headers=NO_STORE)


def _common(first: str, last: str) -> str:
    """Return the common prefix of sorted names, from the first and the last of them."""
    equal = sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )
    return first[:equal]


def _readable(request: Request, spelled: str) -> str:
    """Return the canonical name of a stream that the caller may read. Raises Failure."""
    try:
        name = canonical_name(spelled)
    except BadName as bad:
        raise Failure("INVALID_NAME", str(bad)) from None
    if request.principal is not None and not request.principal.may(Verb.READ, name):
        raise Failure("FORBIDDEN", f"the token does not allow 'read' on {spelled_name(name)}")
    return name


def _stream(name: str, found: StreamSlices) -> dict[str, Any]:
    spelled = spelled_name(name)
    return {
        "name": spelled,
        "uid": str(found.uid),
        "content_type": found.content_type,
        "first": found.first_record,
        "next": found.next_record,
        "own": found.own_record,
        "end": found.end,
        "ranges": [
            {
                "stream": spelled,
                "uid": found.uid,
                "group": found.uid >> 48,
                "content_type": found.content_type,
                "encoding": found.encoding,
                "record": cold.record,
                "byte": cold.byte,
                "records": cold.records - cold.missing_records,
                "length": cold.length - cold.missing_bytes,
                "pack": cold.pack,
                "offset": cold.offset,
                "stored": cold.stored,
                "crc": cold.crc,
                "time_ms": cold.time_ms,
                **part_of(cold),
                **members_of(cold, found.aborted),
            }
            for cold in found.slices
            if not cold.is_inline  # a marker has no rows
        ],
    }
