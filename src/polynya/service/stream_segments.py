"""The segments of a leased stream: views of them, and rollovers on request. The group's leader
answers."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from polynya.base.errors import NotLeader
from polynya.base.futures import settle
from polynya.local.api import Refusal
from polynya.service.node_service import NodeService
from polynya.stream.features.segments.rules import segments_of
from polynya.stream.replies import Code, Reply
from polynya.stream.state.model import SealedSegment, Stream

SEGMENTS = 58  # messages between cores
ROLL = 59


class SegmentsQuery(msgspec.Struct, array_like=True, frozen=True):
    group: int
    name: str  # canonical


class RollRequest(msgspec.Struct, array_like=True, frozen=True):
    """Close the open segment, if it has this epoch; 0: whichever it has."""

    group: int
    name: str  # canonical
    epoch: int


class SegmentView(msgspec.Struct, array_like=True, frozen=True):
    """A segment: its first record, and what it holds."""

    epoch: int
    writer: int
    record: int
    byte: int
    opened_ms: int
    records: int
    bytes: int


class LeasedSegments(msgspec.Struct, array_like=True, frozen=True):
    """The segments that a stream lists, oldest first; the last one is open. A limit of 0 is the
    node's setting."""

    uid: int
    records_max: int
    bytes_max: int
    segments: list[SegmentView]


class Rolled(msgspec.Struct, array_like=True, frozen=True):
    """`rolled`: the request closed a segment."""

    rolled: bool
    segments: LeasedSegments


class SegmentFinder:
    """The segments of any stream of the cluster. Create one on every core."""

    def __init__(self, service: NodeService) -> None:
        self._service = service
        service.rpc.serve(SEGMENTS, SegmentsQuery, LeasedSegments | None, self._here)
        service.rpc.serve(ROLL, RollRequest, Rolled | None, self._roll_here)

    async def find(self, name: str) -> LeasedSegments | None:
        """Return the segments of a stream; None without such a stream, or if it has none. Raises
        Unavailable."""
        query = SegmentsQuery(self._service.group_of(name), name)
        found: LeasedSegments | None = await self._service.rpc.at_home(
            query.group, SEGMENTS, query, self._here
        )
        return found

    async def roll(self, name: str, epoch: int = 0) -> Rolled | None:
        """Close the open segment of a stream before it is full, unless it has another epoch or no
        records. None without such a stream. Raises Unavailable, and OutcomeUnknown."""
        request = RollRequest(self._service.group_of(name), name, epoch)
        found: Rolled | None = await self._service.rpc.at_home(
            request.group, ROLL, request, self._roll_here, changes=True
        )
        return found

    async def _roll_here(self, request: RollRequest) -> Rolled | None:
        local = self._service.local
        await local.linearize(request.group)
        stream = local.streams.find(request.group, request.name)
        if isinstance(stream, Refusal) or segments_of(stream) is None:
            return None
        if request.group not in local.led:
            raise NotLeader(0)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        rolled = False
        if local.segments.roll(request.group, stream, request.epoch, partial(settle, future)):
            rolled = (await future).code == Code.OK
        found = view_of(stream)
        return None if found is None else Rolled(rolled, found)

    async def _here(self, query: SegmentsQuery) -> LeasedSegments | None:
        local = self._service.local
        await local.linearize(query.group)
        stream = local.streams.find(query.group, query.name)
        return None if isinstance(stream, Refusal) else view_of(stream)


def view_of(stream: Stream) -> LeasedSegments | None:
    """Return the segments of a leased stream that still have records, and the open one."""
    segments = segments_of(stream)
    if segments is None:
        return None
    opened = SealedSegment(
        segments.epoch, segments.writer, segments.record, segments.byte, segments.opened_ms
    )
    chain = [*segments.sealed, opened]
    ends = [(each.record, each.byte) for each in chain[1:]]
    ends.append((stream.next_record, stream.next_byte))
    views = [
        SegmentView(
            each.epoch,
            each.writer,
            each.record,
            each.byte,
            each.opened_ms,
            record - each.record,
            byte - each.byte,
        )
        for each, (record, byte) in zip(chain, ends, strict=True)
        if each is opened or record > stream.first_record
    ]
    return LeasedSegments(stream.uid, segments.records_max, segments.bytes_max, views)
