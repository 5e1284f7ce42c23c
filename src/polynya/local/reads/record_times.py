"""Find positions by record times, which clients set: they may decrease, so nothing is bisected.

Whole chunks of an index are passed by their largest record time, then entries; one slice is read.
An entry of version 1 does not say its record times, and is read too.
"""

from __future__ import annotations

from polynya.local.dependencies import ColdReader
from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.model import HotBatch, Stream

Boundary = tuple[int, int]  # record, byte


async def first_at(
    machine: Machine,
    stream: Stream,
    reader: ColdReader | None,
    time_ms: int,
    begin: int,
    *,
    past: bool = False,
) -> Boundary | None:
    """Return where the first own batch from record `begin` on begins that has a record of this time
    or later. `past`: also where only forks need it."""
    while True:
        entries = machine.packs.whole_index_of(stream) if past else machine.packs.index_of(stream)
        number = index.first_dated(entries.data, index.entries_before(entries.data, begin), time_ms)
        if number == len(entries):
            break
        cold = entries[number]
        assert reader is not None, "a cold slice without an object store"
        found = await reader.position_of_record_time(cold, time_ms, begin)
        if found is not None:
            return found
        begin = cold.record + cold.records
    for batch in stream.hot or ():
        if batch.record + batch.records > begin and time_of(batch) >= time_ms:
            return batch.record, batch.byte
    return None


async def newest_of(
    machine: Machine, stream: Stream, reader: ColdReader | None, begin: int
) -> int | None:
    """Return the largest record time of the stream's own batches that end behind record `begin`;
    None without such batches."""
    hot = [time_of(each) for each in stream.hot or () if each.record + each.records > begin]
    newest = max(hot, default=None)
    entries = machine.packs.index_of(stream)
    first = index.entries_before(entries.data, begin)
    slices = sorted(
        ((index.record_time_ms_max(entries.data, at), at) for at in range(first, len(entries))),
        reverse=True,
    )
    slices_by_time = [(ms, entries[at]) for ms, at in slices if newest is None or ms > newest]
    for largest_ms, cold in slices_by_time:
        if newest is not None and largest_ms <= newest:
            break
        assert reader is not None, "a cold slice without an object store"
        found = await reader.newest_record_time(cold, begin)
        if found is not None and (newest is None or found > newest):
            newest = found
    return newest


def time_of(batch: HotBatch) -> int:
    """Return the largest record time of a batch; of one without it is the append time."""
    return batch.record_time_ms_max or batch.time_ms
