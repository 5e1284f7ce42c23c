"""Verify that every slice that an index names is in the store, unchanged. Each call checks a part
of the packs, beside normal work."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Collection, Sequence

import msgspec
from google_crc32c import value as crc32c

from polynya.base.errors import CorruptData
from polynya.base.limits import MIB
from polynya.cold.groups import SURVEY_STREAMS, Groups, survey
from polynya.cold.requests import cut_requests
from polynya.objectstore.api import NotFound, ObjectStore
from polynya.stream.features.pages.eviction import evicted_views, slice_of, stubs, whole_of
from polynya.stream.machine import Machine
from polynya.stream.parts import FLAGS
from polynya.stream.state.index import Index, pack_numbers
from polynya.stream.state.model import ColdSlice, Stream
from polynya.wire.page import read_page
from polynya.wire.slices import batch_flags_in, flags_of

PART_BYTES = 32 * MIB  # read for one response; one larger pack may exceed it
PART_PACKS = 256
REQUESTS = 4  # concurrent requests
STREAMS_NAMED_MAX = 20  # streams named with each fault
EVICTED = "(streams that are idle)"  # the slices they need are known only after they are restored
TABLE_SECONDS = 600.0  # time for which the survey of packs is kept between parts
TABLES_MAX = 2  # surveys kept, one per verification in progress

MISSING = "missing"
DAMAGED = "damaged"
UNMARKED = "unmarked"  # an index entry lacks flags that batches of its slice have
KINDS = ("", UNMARKED, DAMAGED, MISSING)  # the worst last


class Fault(msgspec.Struct, array_like=True):
    """A pack that does not match its indexes. `kind` is one of KINDS; `streams` are some canonical
    names that need it."""

    pack: str
    kind: str
    streams: list[str]


class VerifiedPart(msgspec.Struct, array_like=True):
    """The result of one part.

    `after` is the last pack, or "" when all are checked. `left` are groups led elsewhere, which
    were not checked.
    """

    after: str = ""
    packs: int = 0
    slices: int = 0
    bytes: int = 0
    faults: list[Fault] = []
    left: list[int] = []


class _Table(msgspec.Struct):
    """The slices that the indexes name, by pack, as of the time `made`. `keys` are the packs in
    order, pages included."""

    packs: dict[str, list[ColdSlice]]
    keys: list[str]
    made: float
    pages: dict[str, set[str]]  # pack -> pages that name it


class PackVerifier:
    """The verifier of one core. It checks the packs of the groups that the core leads. Raises
    StoreUnavailable."""

    def __init__(self, groups: Groups, store: ObjectStore) -> None:
        self._groups = groups
        self._store = store
        self._tables: dict[frozenset[int], _Table] = {}

    async def verify(self, after: str, groups: Collection[int]) -> VerifiedPart:
        """Check the packs of these groups after key `after`, in key order.

        A pack released during the check is no fault. Faults of a group that another node now leads
        are not reported.
        """
        asked = frozenset(groups)
        table = self._tables.pop(asked, None)
        if table is None or not after or time.monotonic() > table.made + TABLE_SECONDS:
            table = await self._survey(asked)
        part = VerifiedPart()
        begin = bisect_right(table.keys, after)
        for key in table.keys[begin : begin + PART_PACKS]:
            slices = _stored(table.packs[key])
            part.after = key
            part.packs += 1
            part.slices += len(slices)
            part.bytes += sum(cold.stored for cold in slices)
            kind = await self._look(table.packs[key])
            if kind and (streams := self._streams_of(key, asked, table.pages.get(key, ()))):
                part.faults.append(Fault(key, kind, streams))
            if part.bytes >= PART_BYTES:
                break
        if begin + part.packs >= len(table.keys):
            part.after = ""
        else:
            self._keep(asked, table)
        return part

    def _keep(self, asked: frozenset[int], table: _Table) -> None:
        """Keep a survey for the next part; the oldest survey is dropped."""
        self._tables[asked] = table
        while len(self._tables) > TABLES_MAX:
            del self._tables[next(iter(self._tables))]

    async def _survey(self, groups: frozenset[int]) -> _Table:
        """Collect the slices that the indexes name now."""
        table: dict[str, list[ColdSlice]] = {}
        for machine in list(self._machines(groups)):
            await self._survey_evicted(machine, table)
            async for streams in survey(machine.directory.streams.values()):
                for stream in streams:
                    for cold in machine.packs.whole_index_of(stream):
                        _add(table, cold)
        pages = await self._survey_pages(table)
        return _Table(table, sorted(table), time.monotonic(), pages)

    async def _survey_pages(self, table: dict[str, list[ColdSlice]]) -> dict[str, set[str]]:
        """Add the slices that pages of indexes name. Return the pages by pack."""
        named: dict[str, set[str]] = {}
        pages = [slices[0] for slices in table.values() if slices[0].is_page]
        for cold in pages:
            try:
                page = read_page(cold.pack, await self._store.get(cold.pack))
            except (NotFound, CorruptData):  # the check of this page reports it
                continue
            for each in page.index:
                _add(table, each)
            for key, _ in page.packs:
                named.setdefault(key, set()).add(cold.pack)
            await asyncio.sleep(0)
        return named

    def _machines(self, groups: Collection[int]) -> list[Machine]:
        return [machine for group, machine in self._groups.machines().items() if group in groups]

    async def _survey_evicted(self, machine: Machine, table: dict[str, list[ColdSlice]]) -> None:
        """Add the states of evicted streams and the slices that those states name, block by
        block."""
        blocks: dict[str, list[tuple[Stream, ColdSlice]]] = {}
        for number, view in enumerate(evicted_views(machine), 1):
            location = slice_of(machine, view)
            table.setdefault(location.pack, []).append(location)
            blocks.setdefault(location.pack, []).append((view, location))
            if number % SURVEY_STREAMS == 0:
                await asyncio.sleep(0)
        for key, some in blocks.items():
            try:
                data = await self._store.get(key)
            except NotFound:  # the check of this pack reports it
                continue
            for view, location in some:
                for cold in _named_by(
                    machine, view, data[location.offset : location.offset + location.stored]
                ):
                    _add(table, cold)

    async def _look(self, slices: Sequence[ColdSlice]) -> str:
        """Return the worst fault of these slices, or "" if there is none."""
        requests, worst = cut_requests(slices), ""
        for begin in range(0, len(requests), REQUESTS):
            found = await asyncio.gather(
                *(self._check(request) for request in requests[begin : begin + REQUESTS])
            )
            worst = max(worst, *found, key=KINDS.index)
            if worst in (DAMAGED, MISSING):
                break
        return worst

    async def _check(self, request: Sequence[ColdSlice]) -> str:
        begin, end = request[0].offset, request[-1].offset + request[-1].stored
        try:
            data = memoryview(await self._store.get_range(request[0].pack, begin, end - begin))
        except NotFound:
            return MISSING
        except ValueError:  # the object is too short
            return DAMAGED
        return await asyncio.to_thread(_fault_of, request, data)

    def _streams_of(self, key: str, groups: frozenset[int], pages: Collection[str]) -> list[str]:
        """Return some streams that still name the pack, or a page that does."""
        found: list[str] = []
        for machine in self._machines(groups):
            held = {each for each in (key, *pages) if each in machine.packs.held}
            if not held:
                continue
            for stream in machine.directory.streams.values():
                if any(cold.pack in held for cold in machine.packs.whole_index_of(stream)):
                    found.append(stream.name)
                    if len(found) == STREAMS_NAMED_MAX:
                        return found
            numbers = {machine.packs.held[each].number for each in held}
            found += [name for name, stub in stubs(machine) if stub.pack in numbers]
            found = found[:STREAMS_NAMED_MAX] or [EVICTED]
        return found


def _add(table: dict[str, list[ColdSlice]], cold: ColdSlice) -> None:
    """Add a slice, unless it is in no pack."""
    if not cold.is_inline:
        table.setdefault(cold.pack, []).append(cold)


def _stored(entries: Sequence[ColdSlice]) -> list[ColdSlice]:
    """Return one entry for each stored slice: others may name further parts of it."""
    return list({(cold.offset, cold.stored, cold.crc): cold for cold in entries}.values())


def _named_by(machine: Machine, view: Stream, state: bytes) -> list[ColdSlice]:
    """Return the slices that an evicted stream's state names, if the state is intact and the stream
    is still evicted."""
    if view.name not in machine.directory.evicted:
        return []
    try:
        cold = whole_of(view, state).cold
    except CorruptData:
        return []
    return (
        list(Index(cold, machine.packs.by_number))
        if all(number in machine.packs.by_number for number in set(pack_numbers(cold)))
        else []
    )


def _fault_of(entries: Sequence[ColdSlice], data: memoryview) -> str:
    """Return the fault of slices whose bytes these are, from the offset of the first on. Several
    entries may name parts of one slice."""
    begin, kind, at, stored = entries[0].offset, "", -1, b""
    for cold in entries:
        if cold.offset != at:
            at = cold.offset
            stored = bytes(data[at - begin : at - begin + cold.stored])
            if crc32c(stored) != cold.crc:
                return DAMAGED
        if flags_of(batch_flags_in(stored), cold) & FLAGS[1] & ~cold.flags:
            kind = UNMARKED
    return kind
