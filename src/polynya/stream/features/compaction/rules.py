"""Turning key compaction on, and completing its passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from polynya.base.levels import COMPACTION_LEVEL
from polynya.stream.command import applies
from polynya.stream.features.compaction.commands import NoteCompaction, SetCompaction
from polynya.stream.features.compaction.progress import compaction_of
from polynya.stream.features.forks.pinned import pinned_until
from polynya.stream.features.lifetimes.rules import is_surely_expired, tail_reply
from polynya.stream.features.retention.trimming import extras_of, tidy
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import Compaction

if TYPE_CHECKING:
    from polynya.stream.machine import Machine


@applies(SetCompaction)
def apply_set_compaction(machine: Machine, command: SetCompaction, position: int) -> Reply:
    """Turn key compaction of a stream on or off. Refusals: NOT_FOUND, GONE, INCARNATION,
    EVICTED."""
    stream = machine.directory.streams.get(command.name)
    if stream is None:
        return machine.directory.absent(command.name)
    machine.counters.raise_level(COMPACTION_LEVEL)  # a standalone node gets no `SetLevel`
    if is_surely_expired(stream, command.now_ms):
        return Reply(Code.NOT_FOUND)
    if stream.deleted:
        return tail_reply(Code.GONE, stream)
    if command.uid and command.uid != stream.uid:
        return tail_reply(Code.INCARNATION, stream)
    known = compaction_of(stream)
    if known.is_wanted != command.is_wanted:
        machine.changes.streams.add(stream.uid)
        wanted = structs.replace(known, is_wanted=command.is_wanted)
        extras_of(stream).compaction = None if wanted == Compaction(0) else wanted
        tidy(stream)
        machine.directory.note_compacted(stream)
    return tail_reply(Code.OK, stream)


@applies(NoteCompaction)
def apply_note_compaction(machine: Machine, command: NoteCompaction, position: int) -> Reply:
    """Record a completed pass. NOT_FOUND: the stream is gone or evicted. NOT_YET: another pass was
    completed since, a fork needs records that the pass may have left, or `cleaned` is not in
    packs."""
    stream = machine.directory.by_uid.get(command.uid)
    if stream is None or stream.deleted:
        return Reply(Code.NOT_FOUND)
    known = compaction_of(stream)
    first, packed = index.span(stream.cold, 0, index.count(stream.cold)) if stream.cold else (0, 0)
    if (
        pinned_until(stream) > first
        or command.generation != known.generation
        or not known.cleaned <= command.cleaned <= packed
        or command.tombstones > command.cleaned
    ):
        return Reply(Code.NOT_YET)
    machine.counters.raise_level(COMPACTION_LEVEL)  # a standalone node gets no `SetLevel`
    machine.changes.streams.add(stream.uid)
    extras_of(stream).compaction = structs.replace(
        known,
        cleaned=command.cleaned,
        horizon_ms=command.horizon_ms,
        generation=known.generation + 1,
        tombstones=command.tombstones,
    )
    return Reply(Code.OK)
