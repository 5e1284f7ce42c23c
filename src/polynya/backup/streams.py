"""Read the records of single streams from a backup, as they were appended, to restore streams one
by one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator

import msgspec

from polynya.backup.manifest import Manifest
from polynya.backup.repository import RepositoryReader
from polynya.backup.verifying import read_group
from polynya.base.errors import CorruptData
from polynya.objectstore import NotFound
from polynya.stream.features.pages.eviction import evicted_views, slice_of, where_of, whole_of
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.record_lengths import lengths_of
from polynya.stream.state import record_gaps
from polynya.stream.state.model import HotBatch, Stream
from polynya.wire.inline_markers import slice_of as slice_of_marker
from polynya.wire.page import Page, read_page, spread
from polynya.wire.slices import parse_run

MACHINES_MAX = 2  # in memory: the groups of a fork and of its source


class BackupPiece(msgspec.Struct, frozen=True, gc=False):
    """The retained records of one append. JSON records keep their trailing commas. `record` and
    `byte` are the start position.

    Kafka batches stay whole: of those that begin at `record`, only the records from `first` to
    `end` (exclusive) are retained."""

    record: int
    byte: int
    records: int
    payload: bytes
    encoding: int
    first: int
    end: int


class BackupStreams:
    """The streams of one backup. All methods raise CorruptData, ConfigError, StoreUnavailable."""

    def __init__(self, repository: RepositoryReader, manifest: Manifest) -> None:
        self.manifest = manifest
        self._repository = repository
        self._machines: OrderedDict[int, Machine] = OrderedDict()

    async def machine(self, group: int) -> Machine:
        """Return the state machine of a group, with its hot payload."""
        if group not in self._machines:
            while len(self._machines) >= MACHINES_MAX:
                self._machines.popitem(last=False)
            self._machines[group] = await read_group(self._repository, self.manifest.files[group])
        self._machines.move_to_end(group)
        return self._machines[group]

    async def pieces(self, machine: Machine, stream: Stream) -> AsyncIterator[BackupPiece]:
        """Yield all records that a reader of `stream` would get, in order, including inherited
        ones. `stream` comes from `streams_of`."""
        stream = await self._whole(machine, stream)
        async for piece in self._between(machine, stream, stream.first_record, stream.next_record):
            yield piece

    async def _between(
        self, machine: Machine, stream: Stream, begin: int, end: int
    ) -> AsyncIterator[BackupPiece]:
        fork = stream.fork
        if fork is not None and begin < fork.record:
            owner = await self.machine(fork.source_uid >> 48)
            source = owner.directory.by_uid.get(fork.source_uid) or next(
                (each for each in evicted_views(owner) if each.uid == fork.source_uid), None
            )
            if source is None:
                raise CorruptData(
                    f"{stream.name} was forked from {fork.source_name}, which the backup does not "
                    "have"
                )
            async for piece in self._between(
                owner, await self._whole(owner, source), begin, min(end, fork.record)
            ):
                yield piece
            begin = fork.record
        for cold in await self._slices(machine, stream, begin, end):
            if cold.record < end and begin < cold.record + cold.records:
                for piece in _cut(await self._batches(stream, cold), begin, end):
                    yield piece
        for piece in _cut(stream.hot or (), begin, end):
            yield piece

    async def _slices(
        self, machine: Machine, stream: Stream, begin: int, end: int
    ) -> list[ColdSlice]:
        """Return the slices of a stream, of pages those that have some of these records."""
        slices = list(machine.packs.whole_index_of(stream))
        pages: dict[str, Page] = {}
        for cold in slices:
            if cold.is_page:
                data = await self._read(stream, cold)
                pages[cold.pack] = await asyncio.to_thread(read_page, cold.pack, data)
        return spread(slices, pages, begin, end)

    async def _whole(self, machine: Machine, stream: Stream) -> Stream:
        """Return the stream with its state, read from the backup if it was evicted."""
        return (
            stream
            if where_of(stream) is None
            else whole_of(stream, await self._read(stream, slice_of(machine, stream)))
        )

    async def _batches(self, stream: Stream, cold: ColdSlice) -> list[HotBatch]:
        if cold.is_inline:
            return [*slice_of_marker(cold).hot_batches(record=cold.record, byte=cold.byte)]
        data = await self._read(stream, cold)
        try:
            found = await asyncio.to_thread(parse_run, data, cold)
        except CorruptData as fault:
            raise CorruptData(
                f"objects/{cold.pack}, which {stream.name} needs, is damaged: {fault}"
            ) from None
        return list(found.hot_batches(record=cold.record, byte=cold.byte))

    async def _read(self, stream: Stream, cold: ColdSlice) -> bytes:
        try:
            return await self._repository.get_range(
                f"objects/{cold.pack}", cold.offset, cold.stored
            )
        except (NotFound, ValueError):
            raise CorruptData(
                f"objects/{cold.pack}, which {stream.name} needs, is missing or too short"
            ) from None


def streams_of(machine: Machine) -> list[Stream]:
    """Return all streams except soft-deleted ones; evicted ones as their views
    (`eviction.evicted_views`)."""
    return [
        *(stream for stream in machine.directory.streams.values() if not stream.deleted),
        *evicted_views(machine),
    ]


def size_of(stream: Stream) -> tuple[int, int]:
    """Return the numbers of records and bytes that a reader would get.

    The record count is too high for a fork that inherits across a record gap.
    """
    size = stream.next_byte - stream.first_byte
    if where_of(stream) is not None:
        return record_gaps.between(stream.first_record, stream.next_record), size
    missing = record_gaps.missing(stream, stream.first_record) if stream.fork is None else 0
    return stream.next_record - stream.first_record - missing, size


def _cut(
    batches: list[HotBatch] | tuple[HotBatch, ...], begin: int, end: int
) -> Iterator[BackupPiece]:
    """Yield the records from `begin` to `end` (exclusive)."""
    for batch in batches:
        first, last = max(begin, batch.record), min(end, batch.record + batch.records)
        if first >= last:
            continue
        bounds = batch.encoding, first, last
        if last - first == batch.records or batch.encoding == Encoding.KAFKA:
            payload = bytes(batch.payload)
            yield BackupPiece(batch.record, batch.byte, last - first, payload, *bounds)
        else:
            lengths = lengths_of(batch.lengths)
            at = sum(lengths[: first - batch.record])
            size = sum(lengths[first - batch.record : last - batch.record])
            yield BackupPiece(
                first, batch.byte + at, last - first, bytes(batch.payload[at : at + size]), *bounds
            )
