"""The object tier's commands: slices of packs take the place of hot batches, and packs are counted down to their end (F19, F20)."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import structs

from polynya.stream.commands import ColdSlice, PackDeleted, PackWritten, PublishSlices, ReleasePack
from polynya.stream.model import Held, Pack, Stream
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_RECORD = attrgetter("record")


def apply_publish_slices(machine: Machine, command: PublishSlices, place: int) -> Reply:
    """Take what fits the index now. What is stale, repeated out of order or of a pack already released is left out and so reported."""
    if command.pack in machine.released:
        return Reply(Code.OK, detail=[])
    accepted = [i for i, (uid, cold) in enumerate(command.slices) if _publish(machine, command, uid, cold)]
    if command.pack not in machine.held:
        machine.release_pack(command.pack, command.home_group, command.now_ms)
    return Reply(Code.OK, detail=accepted)


def _publish(machine: Machine, command: PublishSlices, uid: int, cold: ColdSlice) -> bool:
    stream = machine.by_uid.get(uid)
    if stream is None or cold.pack != command.pack:
        return False
    if stream.cold:
        known = bisect_left(stream.cold, cold.record, key=_RECORD)
        if known < len(stream.cold) and structs.replace(cold, time_ms=stream.cold[known].time_ms) == stream.cold[known]:
            return True
    covered = _covered(stream, cold)
    if covered == 0:
        return False
    assert stream.hot is not None
    machine.hot_bytes -= cold.length
    cold = structs.replace(cold, pack=command.pack, time_ms=cold.time_ms or stream.hot[0].time_ms)  # one string for all slices
    stream.hot = stream.hot[covered:] or None
    if stream.hot is None:
        del machine.hot[uid]
    if stream.cold is None:
        stream.cold = [cold]
    else:
        stream.cold.append(cold)
    held = machine.held.get(command.pack)
    if held is None:
        held = machine.held[command.pack] = Held(command.home_group, 0)
    held.slices += 1
    return True


def _covered(stream: Stream, cold: ColdSlice) -> int:
    """How many of the first hot batches the slice is, to the byte; 0 when it is not exactly a run of them."""
    hot = stream.hot
    if not hot or (cold.record, cold.byte) != (hot[0].record, hot[0].byte):
        return 0
    end = (cold.record + cold.records, cold.byte + cold.length)
    if end == (stream.next_record, stream.next_byte):
        return len(hot)
    index = bisect_left(hot, end[0], key=_RECORD)
    return index if index < len(hot) and (hot[index].record, hot[index].byte) == end else 0


def apply_pack_written(machine: Machine, command: PackWritten, place: int) -> Reply:
    if command.pack in machine.packs:
        return Reply(Code.EXISTS)
    groups = sorted(set(command.groups))
    machine.packs[command.pack] = Pack(groups, command.now_ms, 0 if groups else command.now_ms)
    return Reply(Code.CREATED)


def apply_release_pack(machine: Machine, command: ReleasePack, place: int) -> Reply:
    """The last release condemns the pack; the reply's detail is the time of that, or 0."""
    pack = machine.packs.get(command.pack)
    if pack is None:
        return Reply(Code.NOT_FOUND, detail=0)
    if command.group in pack.groups:
        pack.groups.remove(command.group)
        if not pack.groups:
            pack.condemned_ms = max(command.now_ms, pack.written_ms)
    return Reply(Code.OK, detail=pack.condemned_ms)


def apply_pack_deleted(machine: Machine, command: PackDeleted, place: int) -> Reply:
    pack = machine.packs.get(command.pack)
    if pack is None:
        return Reply(Code.NOT_FOUND)
    if pack.groups:
        return Reply(Code.NOT_YET)
    del machine.packs[command.pack]
    return Reply(Code.OK)
