"""Verify a backup: read everything, compare every checksum, and resolve every reference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

import msgspec
from google_crc32c import extend

from polynya.backup.group_file import machine_of, parse
from polynya.backup.manifest import CopiedObject, FileEntry, Manifest, decode_rows
from polynya.backup.repository import READ_BYTES, RepositoryReader, parts_of
from polynya.base.errors import CorruptData
from polynya.objectstore import NotFound
from polynya.stream.features.pages.eviction import evicted_views, slice_of, where_of
from polynya.stream.machine import Machine
from polynya.stream.parts import FLAGS, ColdSlice
from polynya.wire.pack import damaged_slices, read_footer
from polynya.wire.page import Page, read_page
from polynya.wire.slices import batch_flags_in, flags_of

STREAMS_NAMED_MAX = 20
# larger packs get only a checksum comparison, not a check of their slices
WHOLE_BYTES_MAX = 64 << 20
READERS = 4
_UNMARKED = (
    "an index entry lacks the marks of transactions that its slice has: other readers than Kafka's "
    "may get aborted records"
)


class Damage(msgspec.Struct, frozen=True):
    """A damaged part of a backup. `name` is its name in the repository; `streams` are some
    canonical names that need it."""

    name: str
    what: str
    streams: list[str] = []


class Verified(msgspec.Struct):
    """Counters of verified parts; they only grow."""

    groups: int = 0
    streams: int = 0
    records: int = 0
    objects: int = 0
    bytes: int = 0
    damages: list[Damage] = []


class BackupVerifier:
    """The verifier of one backup. `on_damage` is called with each damage when it is found."""

    def __init__(
        self,
        repository: RepositoryReader,
        manifest: Manifest,
        on_damage: Callable[[Damage], None] = lambda damage: None,
    ) -> None:
        self.found = Verified()
        self._repository, self._manifest, self._on_damage = repository, manifest, on_damage
        self._objects: dict[str, CopiedObject] = {}
        self._bad: dict[str, str] = {}  # damaged objects -> fault
        self._needing: dict[str, list[str]] = {}  # damaged packs -> streams that need them
        # packs -> the flags of the batches of their slices, where some have any
        self._flags: dict[str, dict[int, memoryview[int]]] = {}
        self._unmarked: dict[str, list[str]] = {}  # packs -> streams whose entries lack flags

    async def run(self) -> Verified:
        """Verify everything. Damage is returned, not raised. Raises StoreUnavailable."""
        await self._read_list()
        await self._compare_sizes()
        await self._read_objects()
        for entry in self._manifest.files:
            await self._group(entry)
        for key, what in self._bad.items():
            self._damaged(f"objects/{key}", what, self._needing.get(key, []))
        for key, streams in self._unmarked.items():
            self._damaged(f"objects/{key}", _UNMARKED, streams)
        return self.found

    def _damaged(self, name: str, what: str, streams: list[str] | None = None) -> None:
        damage = Damage(name, what, streams or [])
        self.found.damages.append(damage)
        self._on_damage(damage)

    async def _read_list(self) -> None:
        entry = self._manifest.objects
        try:
            async for part in parts_of(self._repository, entry.name, entry.size, entry.crc):
                self._objects |= {row.key: row for row in decode_rows(part)}
        except CorruptData as fault:
            self._damaged(entry.name, str(fault))
        if len(self._objects) != entry.count and not self.found.damages:
            self._damaged(
                entry.name,
                f"the list names {len(self._objects)} objects; the manifest says {entry.count}",
            )

    # --- objects ----------------------------------------------------------------------------------

    async def _compare_sizes(self) -> None:
        """Record objects that are longer than written. A restore reads whole objects and refuses
        these."""
        async for info in self._repository.list("objects/"):
            row = self._objects.get(info.key.removeprefix("objects/"))
            if row is not None and info.size > row.size:
                self._bad[row.key] = (
                    f"the object is {info.size - row.size:,} bytes longer than the {row.size:,} "
                    "that were written"
                )

    async def _read_objects(self) -> None:
        todo = iter(self._objects.values())

        async def work() -> None:
            for row in todo:
                what = await self._look(row)
                if what:
                    self._bad.setdefault(row.key, what)
                self.found.objects += 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(READERS):
                tasks.create_task(work())

    async def _look(self, row: CopiedObject) -> str:
        """Return the fault of an object, or "" if it is intact."""
        name, crc, kept = f"objects/{row.key}", 0, []
        try:
            for begin in range(0, row.size, READ_BYTES):
                piece = await self._repository.get_range(
                    name, begin, min(READ_BYTES, row.size - begin)
                )
                crc = int(extend(crc, piece))
                self.found.bytes += len(piece)
                if row.size <= WHOLE_BYTES_MAX:
                    kept.append(piece)
            if not row.size:
                await self._repository.get(name)
        except NotFound:
            return "missing"
        except ValueError:
            return "truncated"
        if crc != row.crc:
            return "its checksum is wrong"
        if "/packs/" in row.key and kept:
            pack = b"".join(kept)
            slices = await asyncio.to_thread(damaged_slices, pack)
            if slices:
                return "the object was already damaged in the store when it was backed up"
            flags = await asyncio.to_thread(_flags_by_slice, pack)
            if flags:
                self._flags[row.key] = flags
        return ""

    # --- groups -----------------------------------------------------------------------------------

    async def _group(self, entry: FileEntry) -> None:
        try:
            machine = await read_group(self._repository, entry)
        except CorruptData as fault:
            self._damaged(entry.name, str(fault))
            return
        self.found.bytes += entry.size
        self.found.groups += 1
        self.found.streams += machine.directory.count
        pages = await self._pages_of(machine)
        await asyncio.to_thread(self._references, machine, pages)

    async def _pages_of(self, machine: Machine) -> dict[str, Page]:
        """Return the pages of the group's indexes that can be read."""
        found: dict[str, Page] = {}
        for key in machine.packs.held.pages():
            try:
                found[key] = read_page(key, await self._repository.get(f"objects/{key}"))
            except NotFound:
                continue  # it is not in the list of objects, or is missing
            except (CorruptData, ValueError) as fault:
                self._bad.setdefault(key, str(fault))
        return found

    def _references(self, machine: Machine, pages: dict[str, Page]) -> None:
        """Check that the pack of every slice exists and is long enough, and collect the streams
        that need a damaged pack."""
        named = {pack for page in pages.values() for pack, _ in page.packs}
        wanted = {key for key in (*machine.packs.held, *named) if key not in self._objects}
        self._bad |= dict.fromkeys(wanted, "missing, and not in the list of objects")
        for stream in (*machine.directory.streams.values(), *evicted_views(machine)):
            self.found.records += stream.next_record - stream.first_record
            for cold in _with_pages(
                machine.packs.whole_index_of(stream)
                if where_of(stream) is None
                else [slice_of(machine, stream)],
                pages,
            ):
                row = None if cold.is_inline else self._objects.get(cold.pack)
                if row is not None and cold.offset + cold.stored > row.size:
                    self._bad.setdefault(cold.pack, "the object is shorter than a stream requires")
                if cold.pack in self._bad:
                    _name(self._needing, cold.pack, stream.name)
                elif self._lacks_flags(cold):
                    _name(self._unmarked, cold.pack, stream.name)

    def _lacks_flags(self, cold: ColdSlice) -> bool:
        """Report whether an index entry lacks flags that batches of its slice have."""
        flags = self._flags.get(cold.pack, {}).get(cold.offset)
        return flags is not None and bool(flags_of(flags, cold) & FLAGS[1] & ~cold.flags)


def _flags_by_slice(pack: bytes) -> dict[int, memoryview[int]]:
    """Return the flags of the batches of each slice that has some, by its offset in the pack."""
    found: dict[int, memoryview[int]] = {}
    for entry in read_footer(pack).entries:
        flags = batch_flags_in(pack[entry.offset : entry.offset + entry.stored])
        if any(flags):
            found[entry.offset] = memoryview(flags.tobytes()).cast("I")  # without the slice
    return found


def _name(streams: dict[str, list[str]], pack: str, name: str) -> None:
    """Add a stream to those that are named for a pack."""
    named = streams.setdefault(pack, [])
    if len(named) < STREAMS_NAMED_MAX and name not in named:
        named.append(name)


def _with_pages(slices: Iterable[ColdSlice], pages: dict[str, Page]) -> Iterator[ColdSlice]:
    """Yield slices, and the slices of pages behind each page."""
    for cold in slices:
        yield cold
        if cold.is_page and cold.pack in pages:
            yield from pages[cold.pack].index


async def read_group(repository: RepositoryReader, entry: FileEntry) -> Machine:
    """Return the state machine of a group, with its hot payload. Raises CorruptData,
    StoreUnavailable."""
    data = b"".join(
        [part async for part in parts_of(repository, entry.name, entry.size, entry.crc)]
    )
    return await asyncio.to_thread(lambda: machine_of(parse(data, entry.group)))
