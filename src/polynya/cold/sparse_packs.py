"""Choose packs that are too small and too many, and the slices that keep them., also
those that only evicted streams name.

An interval of a core's diskless streams is a pack, however few bytes it has. A stream that is
written rarely keeps each pack that has a slice of it. Such slices move together into one pack, also
those that have no neighbours to be merged with. The smallest packs are chosen first, so a byte
moves once for each size that its pack grows to.

The index of an evicted stream is a part of its state in the object store. So the merger does not
see which packs it names, and could not replace them. States are read only if the packs of a core
are too many for its bytes, which stubs tell; and not again before there are more. A block of states
with few streams is emptied as well: its streams return, and later go into one block with others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from polynya.base import limits
from polynya.base.errors import CorruptData
from polynya.cold.groups import SURVEY_STREAMS, Groups
from polynya.cold.requests import cut_requests
from polynya.cold.settings import EvictSettings
from polynya.objectstore.api import NotFound, ObjectStore
from polynya.stream.features.pages.eviction import evicted_view, slice_of, stub_of, whole_of
from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.model import Stream

FULL_SHARE = 0.8  # of a pack's size: fuller packs stay
VAIN_RETURNS_MAX = 3  # of streams for the same packs, with nothing gained: then they rest

Segment = tuple[int, int]  # entry numbers: first, end (exclusive)
PackNumber = tuple[int, int]  # group, number of the pack there


class PackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one pack of merged slices has, the packs of a core beyond those that its bytes
    fill, and the most bytes and slices that move at once."""

    pack_bytes: int
    pack_slices: int
    spare: int
    bytes_max: int
    slices_max: int

    def wanted(self, size: int) -> int:
        """Return how many packs a core may have for so many bytes."""
        return self.spare + size * 6 // (5 * self.pack_bytes)

    def filled(self, size: int, slices: int) -> int:
        """Return how many packs so many bytes and slices fill."""
        return max(-(-size // self.pack_bytes), -(-slices // self.pack_slices))


def choose_packs(live: Mapping[str, tuple[int, int]], limits: PackLimits) -> list[str]:
    """Return the packs to empty, by the bytes and slices that are alive in each pack.

    None if there are not too many, or if their slices would fill half as many again. Else so many
    that half of the spare packs are free again."""
    wanted = limits.wanted(sum(size for size, _ in live.values()))
    if len(live) <= wanted:
        return []
    chosen: list[str] = []
    filled = total = slices = 0
    for key in sorted(live, key=lambda key: (*live[key], key)):
        size, count = live[key]
        total, slices = total + size, slices + count
        if total > limits.bytes_max or slices > limits.slices_max:
            break
        if size > FULL_SHARE * limits.pack_bytes:
            break
        chosen.append(key)
        filled = limits.filled(total, slices)
        if len(live) - len(chosen) + filled <= wanted - limits.spare // 2:
            break
    return chosen if is_worth(len(chosen), filled) else []


def is_worth(emptied: int, written: int) -> bool:
    """Report whether so many packs may be replaced by those. With less gain, slices that cannot be
    in fewer packs would move without end."""
    return emptied >= 2 * max(written, 1)


def runs_in(
    packs: Sequence[str],
    lengths: Sequence[int],
    segments: Iterable[Segment],
    chosen: Container[str],
    bytes_max: int,
) -> Iterator[Segment]:
    """Yield the runs of entries whose packs are chosen. Each becomes one slice of at most
    `bytes_max`. `packs` has the key of each entry's pack."""
    for begin, end in segments:
        first, size = begin, 0
        for at in range(begin, end):
            if packs[at] not in chosen:
                if first < at:
                    yield first, at
                first, size = at + 1, 0
                continue
            if size + lengths[at] > bytes_max and first < at:
                yield first, at
                first, size = at, 0
            size += lengths[at]
        if first < end:
            yield first, end


class PackUses(msgspec.Struct):
    """The payload bytes and slices of each pack that are alive, by key, as far as they are
    known."""

    sizes: Counter[str] = msgspec.field(default_factory=Counter)
    slices: Counter[str] = msgspec.field(default_factory=Counter)
    numbers: set[PackNumber] = msgspec.field(default_factory=set)

    def add(self, group: int, machine: Machine, stream: Stream) -> None:
        """Count the slices of a stream."""
        for number, length in packs_of(stream):
            key = machine.packs.by_number.get(number, "")
            if key:
                self.numbers.add((group, number))
                self.sizes[key] += length
                self.slices[key] += 1

    def live(self) -> dict[str, tuple[int, int]]:
        """Return the bytes and slices of each pack."""
        return {key: (size, self.slices[key]) for key, size in self.sizes.items()}


class _Stubs(msgspec.Struct):
    """The contents of the stubs of a core, added up."""

    payload: int = 0  # bytes of all records
    sizes: Counter[PackNumber] = msgspec.field(default_factory=Counter)  # of states, by block
    names: dict[PackNumber, list[str]] = msgspec.field(default_factory=dict)  # by block


class HiddenPacks:
    """The packs that evicted streams of a core name. `eviction` are the settings of the core's
    evictor."""

    def __init__(self, groups: Groups, store: ObjectStore, eviction: EvictSettings) -> None:
        self._groups = groups
        self._store = store
        self._block_limits = _block_limits(eviction)
        self._count = 0  # packs of the groups that no stream in memory names
        self._look_from = 0  # with fewer of them a look would find nothing new
        self._has_found = False
        self._stubs = _Stubs()
        self._blocks: dict[str, set[PackNumber]] = {}  # with streams that name a pack
        self._vain: set[str] = set()  # packs whose streams were returned, and nothing was gained
        self._vain_returns = 0
        self._has_returned = False  # streams, for what is chosen now

    async def look(self, uses: PackUses, packs: PackLimits) -> None:
        """Add what evicted streams name to `uses`, if there may be too many packs. Return streams
        whose blocks have few. Raises StoreError, Unavailable, OutcomeUnknown."""
        self._stubs, self._blocks, self._has_found = _Stubs(), {}, False
        held = sum(len(machine.packs.held) for machine in self._groups.machines().values())
        self._count = held - len(uses.numbers)
        self._look_from = min(self._look_from, self._next_count(packs))
        if self._count <= packs.spare or self._count < self._look_from:
            return
        stubs = await self._read_stubs()
        if self._data_packs(stubs) > packs.wanted(uses.sizes.total() + stubs.payload):
            self._stubs, self._has_found = stubs, True
            for block, names in stubs.names.items():
                await self._add_named(uses, block, names)
        sparse = list(_sparse_blocks(stubs, self._block_limits))
        for block in sparse:
            await self._return(block[0], stubs.names[block])
        self._look_from = 0 if sparse else self._next_count(packs)

    async def return_named(self, chosen: set[str]) -> None:
        """Return the evicted streams that name chosen packs, as far as `look` has found such.
        Raises StoreError, Unavailable, OutcomeUnknown."""
        self._has_returned = False
        rests = chosen <= self._vain and self._vain_returns >= VAIN_RETURNS_MAX
        blocks = {
            block
            for key, named in self._blocks.items()
            if key in chosen and not rests
            for block in named
        }
        for block in sorted(blocks):
            names = [
                stream.name
                async for machine, stream in self._states(block, self._stubs.names[block])
                if any(
                    machine.packs.by_number.get(number) in chosen for number, _ in packs_of(stream)
                )
            ]
            self._has_returned |= bool(names)
            await self._return(block[0], names)
        self._stubs, self._blocks = _Stubs(), {}  # they may be large

    def go_on(self) -> None:
        """Look again next time, if the last look found something: it was of use, or failed."""
        if self._has_found:
            self._look_from = 0

    def gained_nothing(self, chosen: set[str]) -> None:
        """Note that these packs were not emptied: streams that are returned for them, and evicted
        again, would move without end."""
        if not self._has_returned:
            return
        self._vain_returns = self._vain_returns + 1 if chosen <= self._vain else 1
        machines = self._groups.machines().values()
        there = {
            key for key in self._vain if any(key in machine.packs.held for machine in machines)
        }
        self._vain = there | chosen

    def _next_count(self, packs: PackLimits) -> int:
        return self._count + max(packs.spare // 2, self._count // 8)

    async def _read_stubs(self) -> _Stubs:
        found = _Stubs()
        for group, machine in list(self._groups.machines().items()):
            for number, name in enumerate(list(machine.directory.evicted)):
                if number % SURVEY_STREAMS == SURVEY_STREAMS - 1:
                    await asyncio.sleep(0)
                stub = stub_of(machine, name)
                if stub is not None:
                    block = group, stub.pack
                    found.payload += stub.next_byte - stub.first_byte
                    found.sizes[block] += stub.length
                    found.names.setdefault(block, []).append(name)
        return found

    def _data_packs(self, stubs: _Stubs) -> int:
        """Return the number of packs that are no blocks of states."""
        return len(
            {
                key
                for group, machine in self._groups.machines().items()
                for number, key in machine.packs.by_number.items()
                if (group, number) not in stubs.sizes
            }
        )

    async def _add_named(self, uses: PackUses, block: PackNumber, names: Sequence[str]) -> None:
        async for machine, stream in self._states(block, names):
            uses.add(block[0], machine, stream)
            for number, _ in packs_of(stream):
                key = machine.packs.by_number.get(number, "")
                self._blocks.setdefault(key, set()).add(block)

    async def _states(
        self, block: PackNumber, names: Sequence[str]
    ) -> AsyncIterator[tuple[Machine, Stream]]:
        """Yield the streams of a block that are still evicted, as far as their states are
        intact."""
        machine = self._groups.machines().get(block[0])
        if machine is None:
            return
        found = [evicted_view(machine, name) for name in names]
        views = {slice_of(machine, each): each for each in found if each is not None}
        for request in cut_requests(list(views)):
            begin, end = request[0].offset, request[-1].offset + request[-1].stored
            try:
                data = await self._store.get_range(request[0].pack, begin, end - begin)
            except (NotFound, ValueError):
                continue
            for cold in request:
                state = data[cold.offset - begin : cold.offset - begin + cold.stored]
                try:
                    yield machine, whole_of(views[cold], state)
                except CorruptData:
                    continue

    async def _return(self, group: int, names: list[str]) -> None:
        for begin in range(0, len(names), limits.RECALL_STREAMS):
            await self._groups.bring(group, names[begin : begin + limits.RECALL_STREAMS])


def _block_limits(eviction: EvictSettings) -> PackLimits:
    """Return the limits of the blocks that the evictor writes. With wider limits, blocks that it
    writes again as they were would be emptied without end."""
    return PackLimits(
        pack_bytes=eviction.block_bytes,
        pack_slices=eviction.block_streams,
        spare=4,  # of each group, as a block has streams of one group
        bytes_max=limits.RECALL_BYTES_MAX,
        slices_max=16 * limits.RECALL_STREAMS,
    )


def _sparse_blocks(stubs: _Stubs, block_limits: PackLimits) -> Iterator[PackNumber]:
    """Yield the blocks to empty, of each group."""
    of_groups: dict[int, dict[str, tuple[int, int]]] = {}
    for (group, number), size in stubs.sizes.items():
        live = size, len(stubs.names[group, number])
        of_groups.setdefault(group, {})[str(number)] = live
    for group, blocks in of_groups.items():
        for key in choose_packs(blocks, block_limits):
            yield group, int(key)


def packs_of(stream: Stream) -> list[tuple[int, int]]:
    """Return the pack number and the payload bytes of each slice; of a page 0, which is none."""
    if not stream.cold:
        return []
    entries = list(zip(index.pack_numbers(stream.cold), index.lengths(stream.cold), strict=True))
    for begin, _ in index.pages(stream.cold):
        entries[begin] = 0, entries[begin][1]
    return entries
