"""The slices of a pass, read in order and at the rate of merging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from time import monotonic

from polynya.base.limits import MIB
from polynya.cold.compaction.planner import Pass
from polynya.cold.compaction.work import Piece
from polynya.cold.requests import cut_requests
from polynya.cold.steps import Steps
from polynya.objectstore.api import NotFound
from polynya.stream.parts import UNDECIDED, ColdSlice, Encoding

WINDOW_BYTES = 8 * MIB  # stored bytes that are fetched at once


class PieceReader:
    """Reads the slices of passes from the store."""

    def __init__(self, steps: Steps, bytes_per_second: int) -> None:
        self._steps = steps
        self._bytes_per_second = bytes_per_second

    async def pieces(
        self, made: Pass, begin: int, end: int
    ) -> AsyncIterator[tuple[ColdSlice, Piece | None]]:
        """Yield the entries from one number to another, those that may have keys with the bytes of
        their slices, at the rate that merging has. Raises StoreUnavailable."""
        for first, last in pairwise(_windows(made.entries, begin, end)):
            began = monotonic()
            keyed = [each for each in made.entries[first:last] if is_keyed(each)]
            found = await self._fetch(keyed)
            for entry in made.entries[first:last]:
                piece = None
                if is_keyed(entry):
                    data = found.get((entry.pack, entry.offset), b"")
                    aborted = made.aborted if entry.flags & UNDECIDED else b""
                    piece = Piece(entry, data, aborted)
                yield entry, piece
            size = sum(entry.read_bytes for entry in keyed)
            took = monotonic() - began
            await self._steps.sleep(max(0.0, size / self._bytes_per_second - took))

    async def _fetch(self, entries: Sequence[ColdSlice]) -> dict[tuple[str, int], bytes]:
        """Return the stored bytes of the slices that exist."""
        found: dict[tuple[str, int], bytes] = {}

        async def fetch(request: Sequence[ColdSlice]) -> None:
            begin, end = request[0].offset, request[-1].offset + request[-1].stored
            try:
                data = await self._steps.store.get_range(request[0].pack, begin, end - begin)
            except (NotFound, ValueError):
                return
            for cold in request:
                at = cold.offset - begin
                found[cold.pack, cold.offset] = data[at : at + cold.stored]

        await asyncio.gather(*map(fetch, cut_requests(entries)))
        return found


def _windows(entries: Sequence[ColdSlice], begin: int, end: int) -> list[int]:
    """Return the numbers of the entries at which windows begin, and the end."""
    bounds, size = [begin], 0
    for at in range(begin, end):
        size += entries[at].read_bytes
        if size > WINDOW_BYTES and at > bounds[-1]:
            bounds.append(at)
            size = entries[at].read_bytes
    return [*bounds, end] if end > begin else []


def is_keyed(entry: ColdSlice) -> bool:
    """Report whether an entry may have records with keys: those are in Kafka's batches."""
    return entry.encoding in (-1, Encoding.KAFKA)
