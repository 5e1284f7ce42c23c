"""The object tier's commands: pack slices replace hot batches and smaller slices; owner groups count
down the references to packs."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.levels import COMPACTION_LEVEL, COMPRESSION_LEVEL, ENTRY_LEVEL
from polynya.stream.command import applies
from polynya.stream.features.appends.transactions import forget_aborted
from polynya.stream.features.appends.undecided import decided_end
from polynya.stream.features.compaction.progress import note_rewrite
from polynya.stream.features.forks.pinned import pinned_until
from polynya.stream.features.packs.commands import (
    PackDeleted,
    PackWritten,
    PublishSlices,
    ReleasePack,
    ReplaceSlices,
)
from polynya.stream.features.pages.rules import crosses_a_claim, is_late
from polynya.stream.features.retention.trimming import release_trimmed
from polynya.stream.parts import UNDECIDED, ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import Pack, Stream

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_RECORD = attrgetter("record")
_RECORDS = attrgetter("records")


@applies(PublishSlices)
def apply_publish_slices(machine: Machine, command: PublishSlices, position: int) -> Reply:
    """Accept the slices that fit the index now. The reply omits slices that are stale, repeated out
    of order, or in a released pack."""
    taken = (_publish(machine, command, uid, cold) for uid, cold in command.slices)
    return machine.packs.take_slots(command.pack, command.owner_group, command.now_ms, taken)


def _publish(machine: Machine, command: PublishSlices, uid: int, cold: ColdSlice) -> bool:
    stream = machine.directory.by_uid.get(uid)
    if stream is None or cold.pack != command.pack:
        return False
    if _is_known(machine, stream, cold):
        return True
    covered = _covered(stream, cold)
    if covered == 0:
        return False
    assert stream.hot is not None
    machine.changes.streams.add(uid)
    machine.directory.hot_bytes -= cold.length
    cold = structs.replace(cold, time_ms=cold.time_ms or stream.hot[0].time_ms)
    largest_ms = max(
        stream.hot[covered - 1].time_ms, index.time_ms_max(stream.cold, -1) if stream.cold else 0
    )
    stream.hot = stream.hot[covered:] or None
    if stream.hot is None:
        del machine.directory.hot[uid]
    entry = index.packed(cold, machine.packs.hold_slice(cold.pack, command.owner_group), largest_ms)
    stream.cold = index.appended(stream.cold, entry)
    _note_level(machine, cold)
    forget_aborted(stream, cold.record, cold.record + cold.records)
    if stream.first_record > cold.record:
        release_trimmed(machine, stream, command.now_ms)
    return True


def _note_level(machine: Machine, cold: ColdSlice) -> None:
    if cold.encoding >= 0:  # a standalone node gets no `SetLevel`
        machine.counters.raise_level(COMPRESSION_LEVEL if cold.is_compressed else ENTRY_LEVEL)


def _is_known(machine: Machine, stream: Stream, cold: ColdSlice) -> bool:
    """Report whether the index, or the past kept for forks, already has this slice."""
    entries = machine.packs.whole_index_of(stream)
    at = index.holding(entries.data, cold.record)
    if at < 0:
        return False
    known = entries[at]  # it may have been decided meanwhile
    flags = cold.flags & ~UNDECIDED | known.flags & UNDECIDED
    return structs.replace(cold, time_ms=known.time_ms, flags=flags) == known


def _covered(stream: Stream, cold: ColdSlice) -> int:
    """Return how many of the first hot batches the slice covers exactly, to the byte; 0 if it is
    not such a run."""
    hot = stream.hot
    if not hot or (cold.record, cold.byte) != (hot[0].record, hot[0].byte):
        return 0
    end = (cold.record + cold.records, cold.byte + cold.length)
    at = bisect_left(hot, end[0], key=_RECORD)
    end_byte = hot[at].byte if at < len(hot) else stream.next_byte
    if end[0] > decided_end(stream)[0] or end[1] != end_byte or cold.missing_bytes:
        return 0
    records = sum(map(_RECORDS, hot[:at]))
    return at if records == cold.records - cold.missing_records else 0


@applies(ReplaceSlices)
def apply_replace_slices(machine: Machine, command: ReplaceSlices, position: int) -> Reply:
    """Accept the slices that replace whole present entries. The reply omits the others, as in
    `apply_publish_slices`."""
    taken = (_replace(machine, command, uid, cold) for uid, cold in command.replacements)
    return machine.packs.take_slots(command.pack, command.owner_group, command.now_ms, taken)


def _replace(machine: Machine, command: ReplaceSlices, uid: int, cold: ColdSlice) -> bool:
    stream = machine.directory.by_uid.get(uid)
    if stream is None or stream.cold is None or cold.pack != command.pack:
        return False
    if _is_known(machine, stream, cold):
        return True
    covered = _entries_of(machine, stream, cold)
    if covered is None or crosses_a_claim(stream, cold.record, cold.record + cold.records):
        return False
    begin, end = covered
    is_shorter = _records_in(stream, begin, end) > cold.records - cold.missing_records
    if is_shorter and _is_held(stream, cold.record, cold.record + cold.records):
        return False
    cold = structs.replace(cold, time_ms=machine.packs.index_of(stream)[begin].time_ms)
    largest_ms = index.time_ms_max(stream.cold, end - 1)
    old = index.pack_numbers(stream.cold, begin, end)
    number = machine.packs.hold_slice(cold.pack, command.owner_group)
    machine.changes.streams.add(uid)
    stream.cold = index.replaced(stream.cold, begin, end, index.packed(cold, number, largest_ms))
    _note_level(machine, cold)
    if is_shorter:
        machine.counters.raise_level(COMPACTION_LEVEL)
        note_rewrite(stream)
    forget_aborted(stream, cold.record, cold.record + cold.records)
    for each in old:
        machine.packs.drop_slice(each, command.now_ms)
    return True


def _records_in(stream: Stream, begin: int, end: int) -> int:
    """Return the records of these entries, without missing numbers."""
    assert stream.cold is not None
    return index.records_in(index.cut(stream.cold, begin, end), 0)


def _is_held(stream: Stream, begin: int, end: int) -> bool:
    """Report whether a fork, or the running job of a table, may need all records of the range: key
    compaction then leaves them."""
    if begin < pinned_until(stream):
        return True
    claims = (stream.tables or {}).values()
    return any(claim.published < end and begin < claim.claimed for claim in claims)


def _entries_of(machine: Machine, stream: Stream, cold: ColdSlice) -> tuple[int, int] | None:
    """Return the range of entries that the slice covers exactly, to the record and byte, or
    None."""
    begin, end = (
        index.first_from(stream.cold, cold.record),
        index.first_from(stream.cold, cold.record + cold.records),
    )
    if begin == end:
        return None
    entries = machine.packs.index_of(stream)
    first, last = entries[begin], entries[end - 1]
    same_begin = (first.record, first.byte) == (cold.record, cold.byte)
    same_end = (last.record + last.records, last.byte + last.length) == (
        cold.record + cold.records,
        cold.byte + cold.length,
    )
    pages = any(entries[at].is_page for at in range(begin, end))
    return (begin, end) if same_begin and same_end and not pages else None


@applies(PackWritten)
def apply_pack_written(machine: Machine, command: PackWritten, position: int) -> Reply:
    """Register a pack with the groups that will release it: CREATED or EXISTS. Without groups it is
    condemned at once. GONE: the command comes too late; the detail is the log time."""
    if command.pack in machine.packs.owned:
        return Reply(Code.EXISTS)
    if is_late(machine, command.now_ms):
        return Reply(Code.GONE, detail=machine.counters.log_ms)
    groups = sorted(set(command.groups))
    machine.changes.packs.add(command.pack)
    machine.packs.owned[command.pack] = Pack(
        groups, command.now_ms, 0 if groups else command.now_ms
    )
    return Reply(Code.CREATED)


@applies(ReleasePack)
def apply_release_pack(machine: Machine, command: ReleasePack, position: int) -> Reply:
    """Release one group's hold; the last release condemns the pack. The reply's detail is the time
    it was condemned, or 0."""
    pack = machine.packs.owned.get(command.pack)
    if pack is None:
        return Reply(Code.NOT_FOUND, detail=0)
    if command.group in pack.groups:
        pack.groups.remove(command.group)
        if not pack.groups:
            pack.condemned_ms = max(command.now_ms, pack.written_ms)
        machine.packs.owned[command.pack] = pack
        machine.changes.packs.add(command.pack)
    return Reply(Code.OK, detail=pack.condemned_ms)


@applies(PackDeleted)
def apply_pack_deleted(machine: Machine, command: PackDeleted, position: int) -> Reply:
    """Forget a deleted pack. NOT_YET: a group still holds it."""
    pack = machine.packs.owned.get(command.pack)
    if pack is None:
        return Reply(Code.NOT_FOUND)
    if pack.groups:
        return Reply(Code.NOT_YET)
    del machine.packs.owned[command.pack]
    machine.changes.packs.add(command.pack)
    return Reply(Code.OK)
