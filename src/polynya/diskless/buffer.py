"""The appends of the next pack, by stream and in order, and the pack that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs

from polynya.base.errors import Unavailable
from polynya.base.limits import COMMIT_APPENDS_MAX, SLICE_BYTES_MAX
from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.profiles.commands import IS_COMPRESSED, PackedAppend, PackedSlice
from polynya.stream.parts import COMPRESSED, Batch, Encoding
from polynya.stream.replies import Done
from polynya.stream.state.model import HotBatch
from polynya.wire.pack import PackBuilder, PackEntry, pressed
from polynya.wire.slice_building import build_slice
from polynya.wire.slice_format import RECORDS_MAX
from polynya.wire.slices import SliceMeta

APPEND_COST = 256  # assumed bytes of an append in a commit, besides its name and payload
YIELD_BATCHES = 256  # batches packed between two pauses, about 0.3 ms
_NEIGHBOURS = attrgetter("group", "name")

Packable = Append | Produce


class Taken(msgspec.Struct, gc=False):
    """An append in the hands of the writer, and the callback for its outcome."""

    group: int
    command: Packable
    done: Done

    @property
    def size(self) -> int:
        """The bytes that the append takes in memory, and in a commit without its payload."""
        return cost_of(self.command)


class SliceBuffer(msgspec.Struct):
    """The appends of one slice, in order. One that only closes the stream has no batch in it."""

    group: int
    name: str
    content_type: str
    encoding: int = -1  # of the batches; -1: none yet
    taken: list[Taken] = []
    records: int = 0
    bytes: int = 0

    def takes(self, batch: Batch | None) -> bool:
        """Report whether the batch may follow in this slice."""
        if batch is None or self.encoding < 0:
            return True
        return (
            self.encoding == batch.encoding
            and self.bytes + len(batch.payload) <= SLICE_BYTES_MAX
            and self.records + batch.records <= RECORDS_MAX
        )

    def add(self, taken: Taken) -> None:
        """Add an append that the slice `takes`."""
        self.taken.append(taken)
        batch = taken.command.batch
        if batch is not None:
            self.encoding = batch.encoding
            self.records += batch.records
            self.bytes += len(batch.payload)


class PackBuffer:
    """The appends of one pack."""

    def __init__(self) -> None:
        self.slices: list[SliceBuffer] = []
        self.size = 0  # bytes of payload, and of the commits
        self.count = 0  # appends
        self._open: dict[str, SliceBuffer] = {}

    def add(self, taken: Taken) -> None:
        """Add an append behind the others of its stream."""
        command = taken.command
        current = self._open.get(command.name)
        if current is None or not current.takes(command.batch):
            current = self._open[command.name] = SliceBuffer(
                taken.group, command.name, _content_type(command)
            )
            self.slices.append(current)
        current.add(taken)
        self.size += taken.size
        self.count += 1

    def is_full(self, bytes_max: int) -> bool:
        """Report whether the pack has so many bytes, or as many appends as a commit may have."""
        return self.size >= bytes_max or self.count >= COMMIT_APPENDS_MAX

    @property
    def taken(self) -> Iterator[Taken]:
        """All appends, those of a stream in order."""
        return (taken for each in self.slices for taken in each.taken)

    @property
    def groups(self) -> list[int]:
        """The groups that will hold a part of the pack, or release it."""
        return sorted({each.group for each in self.slices if each.encoding >= 0})


class BuiltSlice(msgspec.Struct):
    """A slice as the pack has it, with the appends that are in it."""

    packed: PackedSlice
    taken: list[Taken]
    parts: list[bytes]  # of the slice, not compressed; none without a batch

    @property
    def name(self) -> str:
        return self.taken[0].command.name


class BuiltPack(msgspec.Struct):
    """The object's parts, its slices by group, and the appends that could not be packed."""

    parts: list[bytes]
    slices: dict[int, list[BuiltSlice]]
    failed: list[tuple[Taken, Exception]]
    payload_bytes: int


def build(
    buffer: PackBuffer,
    owner_group: int,
    now_ms: int,
    levels: Mapping[int, int],
    between: Callable[[], None] = lambda: None,
) -> BuiltPack:
    """Build the pack. May run in a thread. `levels` of zstd are by group. `between` is called after
    every YIELD_BATCHES.

    If a slice cannot be built, that stream's later appends fail too: they must not overtake it."""
    builder, work = PackBuilder(), 0
    found: dict[int, list[BuiltSlice]] = {}
    failed: list[tuple[Taken, Exception]] = []
    broken: set[str] = set()
    for each in sorted(buffer.slices, key=_NEIGHBOURS):
        entry: PackEntry | None = None
        stored: list[bytes] = []
        try:
            if each.name in broken:
                raise Unavailable("an earlier append to the stream could not be stored; retry")
            if each.encoding >= 0:
                made = _slice(each)
                stored = made[1]
                entry = builder.add(
                    0,
                    each.group,
                    pressed(made, levels.get(each.group, 0)),
                    path=each.name,
                    content_type=each.content_type,
                )
        except MemoryError:
            raise
        except Exception as fault:  # noqa: BLE001 (bad data of one stream must not affect others)
            broken.add(each.name)
            failed += [(taken, fault) for taken in each.taken]
            continue
        found.setdefault(each.group, []).append(
            BuiltSlice(_packed(each, entry), each.taken, stored)
        )
        work += len(each.taken)
        if work >= YIELD_BATCHES:
            between()
            work = 0
    parts, entries = builder.finish(owner_group=owner_group, created_ms=now_ms)
    payload_bytes = sum(entry.length for entry in entries)
    return BuiltPack(parts if entries else [], found, failed, payload_bytes)


def cost_of(command: Packable) -> int:
    """Return the bytes that an append takes in a pack and in its commit."""
    size = APPEND_COST + 2 * len(command.name)
    return size if command.batch is None else size + len(command.batch.payload)


def _slice(each: SliceBuffer) -> tuple[SliceMeta, list[bytes]]:
    batches = [
        _stored(taken.command, taken.command.batch)
        for taken in each.taken
        if taken.command.batch is not None
    ]
    return build_slice(each.encoding, -1, -1, batches)


def _stored(command: Packable, batch: Batch) -> HotBatch:
    """Return a batch as the slice has it. Its place in the stream is not known yet."""
    producer = command.producer
    origin: tuple[Any, ...] | None = None
    if producer is not None:
        origin = (producer.id, producer.epoch, producer.sequence)
        if producer.kind:
            origin += (producer.sequence_last, producer.kind)
    return HotBatch(
        -1,
        -1,
        batch.records,
        batch.payload,
        batch.lengths,
        batch.crc,
        command.now_ms,
        batch.record_time_ms_max,
        batch.encoding,
        0,
        origin,
        batch.flags,
    )


def _packed(each: SliceBuffer, entry: PackEntry | None) -> PackedSlice:
    appends = [_without_payload(taken.command) for taken in each.taken]
    if entry is None:
        return PackedSlice(0, 0, 0, Encoding.BYTES, appends)
    encoding = entry.encoding + (IS_COMPRESSED if entry.flags & COMPRESSED else 0)
    return PackedSlice(entry.offset, entry.stored, entry.crc, encoding, appends)


def _without_payload(command: Packable) -> PackedAppend:
    batch = command.batch
    if batch is None:
        return PackedAppend(command)
    bare = structs.replace(batch, payload=b"", lengths=b"")
    return PackedAppend(structs.replace(command, batch=bare), len(batch.payload))


def _content_type(command: Packable) -> str:
    return command.content_type if isinstance(command, Append) else ""


def taken_of(slices: Sequence[BuiltSlice]) -> Iterator[Taken]:
    """Yield the appends of some slices, in order."""
    return (taken for each in slices for taken in each.taken)
