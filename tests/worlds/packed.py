"""Appends as a diskless writer packs them: their batches in the store of a `World`, and the command
that commits them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from worlds.stream import World

from polynya.stream.features.appends.commands import Append, Produce
from polynya.stream.features.profiles.commands import CommitSlices, PackedAppend, PackedSlice
from polynya.stream.state.model import HotBatch

Packable = Append | Produce


def commit_of(
    world: World,
    pack: str,
    writer: tuple[str, int],
    appends: Sequence[Packable],
    *,
    now_ms: int,
    intent_ms: int = -1,
    owner_group: int = 1,
) -> CommitSlices:
    """Put the batches of these appends into a pack, one slice for each run of a stream and an
    encoding. `writer`: its name, and the number of the commit."""
    slices: list[PackedSlice] = []
    run: list[Packable] = []
    for append in [*appends, None]:
        if run and (append is None or not _continues(run, append)):
            slices.append(_slice(world, pack, run))
            run = []
        if append is not None:
            run.append(append)
    intent = now_ms if intent_ms < 0 else intent_ms
    return CommitSlices(pack, owner_group, *writer, intent, slices, now_ms)


def _continues(run: Sequence[Packable], append: Packable) -> bool:
    known = {each.batch.encoding for each in run if each.batch is not None}
    same = append.batch is None or not known or append.batch.encoding in known
    return same and append.name == run[0].name


def _slice(world: World, pack: str, run: Sequence[Packable]) -> PackedSlice:
    batches = [
        HotBatch(
            -1, -1, batch.records, batch.payload, batch.lengths, batch.crc, append.now_ms,
            batch.record_time_ms_max, batch.encoding, 0, None, batch.flags,
        )
        for append in run
        if (batch := append.batch) is not None
    ]  # fmt: skip
    packed = [_without_payload(append) for append in run]
    if not batches:
        return PackedSlice(0, 0, 0, 0, packed)
    offset = len(world.slices)
    world.slices[pack, offset] = batches
    return PackedSlice(offset, 1 + len(batches), 7, batches[0].encoding, packed)


def _without_payload(append: Packable) -> PackedAppend:
    batch = append.batch
    if batch is None:
        return PackedAppend(append)
    bare = structs.replace(batch, payload=b"", lengths=b"")
    return PackedAppend(structs.replace(append, batch=bare), len(batch.payload))
