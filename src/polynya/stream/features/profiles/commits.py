"""Commits of packs to the streams of a group: the rule of `CommitSlices`.

Each append is judged by the code that judges logged ones. An accepted batch moves the tail and
continues a run; each run of a slice becomes one index entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from polynya.base.levels import COMPRESSION_LEVEL
from polynya.base.limits import WRITE_MS_MAX, WRITER_IDLE_MS, WRITERS_MAX
from polynya.stream.command import applies, level_of
from polynya.stream.features.appends.commands import (
    Append,
    AppendIf,
    MirrorBatch,
    Produce,
    TxnProduce,
)
from polynya.stream.features.appends.conditions import apply_append_if
from polynya.stream.features.appends.kafka import apply_produce
from polynya.stream.features.appends.mirror import apply_mirror_batch
from polynya.stream.features.appends.rules import apply_append
from polynya.stream.features.profiles.commands import CommitSlices, PackedAppend, PackedSlice
from polynya.stream.features.profiles.rules import judge_packed
from polynya.stream.features.subscriptions.links import note_append
from polynya.stream.parts import COMPRESSED, TRANSACTIONAL, UNDECIDED, Batch, ColdSlice
from polynya.stream.replies import Code, Reply
from polynya.stream.state import index
from polynya.stream.state.model import Stream, WriterState

if TYPE_CHECKING:
    from polynya.stream.machine import Machine

_LEVEL = level_of(CommitSlices)
_FLAGS = 3  # transactional, control
_PRODUCES = (Produce, TxnProduce)
_AGAIN = (Code.NOT_YET, Code.EVICTED)  # the writer proposes these appends again from the same pack
_encode = msgspec.msgpack.encode
_replies = msgspec.msgpack.Decoder(list[Reply])


@applies(CommitSlices)
def apply_commit_slices(machine: Machine, command: CommitSlices, position: int) -> Reply:
    """Judge the appends of a pack; see `CommitSlices` for the replies. Refusals of the whole:
    FENCED, GONE, MEMORY_PRESSURE (too many writers)."""
    compressed = any(part.is_compressed for part in command.slices)
    # a standalone node gets no `SetLevel`
    machine.counters.raise_level(COMPRESSION_LEVEL if compressed else _LEVEL)
    _forget_idle(machine)
    settled = _judge_writer(machine, command) or _judge_pack(machine, command)
    if settled is not None:
        return settled
    replies = [reply for part in command.slices for reply in _Runs(command, part).judge(machine)]
    if command.pack not in machine.packs.held and not any(
        reply.code in _AGAIN for reply in replies
    ):
        machine.packs.release_pack(command.pack, command.owner_group, command.now_ms)
    _remember(machine, command, replies)
    return Reply(Code.OK, detail=replies)


def _judge_writer(machine: Machine, command: CommitSlices) -> Reply | None:
    """Return the reply to a repeat, or the refusal of a writer's number, or None."""
    known = machine.diskless.writers.get(command.writer)
    if known is None:
        is_full = len(machine.diskless.writers) >= WRITERS_MAX
        return Reply(Code.MEMORY_PRESSURE) if is_full else None
    if command.sequence > known.sequence:
        return None
    if command.sequence < known.sequence:
        return Reply(Code.FENCED, detail=known.sequence)
    return Reply(Code.OK, detail=_replies.decode(known.replies))


def _judge_pack(machine: Machine, command: CommitSlices) -> Reply | None:
    """Return the refusal of a pack whose object may be deleted, or None."""
    if command.pack in machine.packs.released:
        return Reply(Code.GONE)
    if abs(machine.counters.log_ms - command.intent_ms) > WRITE_MS_MAX:
        return Reply(
            Code.GONE, detail=machine.counters.log_ms
        )  # perhaps by the clock of another leader
    return None


def _forget_idle(machine: Machine) -> None:
    """Drop the writers whose last commit is too old to be repeated."""
    before_ms = machine.counters.log_ms - WRITER_IDLE_MS
    for name in [
        name for name, state in machine.diskless.writers.items() if state.time_ms < before_ms
    ]:
        del machine.diskless.writers[name]
        machine.changes.writers.add(name)


def _remember(machine: Machine, command: CommitSlices, replies: list[Reply]) -> None:
    """Keep the replies, and drop those to the writer's commit before."""
    machine.diskless.writers[command.writer] = WriterState(
        command.writer, command.sequence, _encode(replies), machine.counters.log_ms
    )
    machine.changes.writers.add(command.writer)


class _Run(msgspec.Struct, gc=False):
    """Neighbouring batches of a slice that were accepted: a part of it, or all of it."""

    record: int
    byte: int
    first_batch: int
    time_ms: int
    time_ms_max: int
    record_time_ms_max: int = 0
    records: int = 0
    length: int = 0
    batches: int = 0
    flags: int = 0


class _Runs:
    """The appends of one slice while they are judged."""

    def __init__(self, command: CommitSlices, part: PackedSlice) -> None:
        self._command = command
        self._part = part
        self._batches = 0  # of the slice, judged so far …
        self._accepted = 0  # … and accepted
        self._packed = part.appends[0]  # which is judged
        self._open: _Run | None = None
        self._runs: list[_Run] = []

    def judge(self, machine: Machine) -> list[Reply]:
        """Judge all appends in order, and add the accepted batches to the index."""
        replies = [self._judge(machine, packed) for packed in self._part.appends]
        if self._runs:
            stream = machine.directory.streams[self._packed.command.name]
            for run in self._runs:
                self._publish(machine, stream, run)
        return replies

    def _judge(self, machine: Machine, packed: PackedAppend) -> Reply:
        self._packed = packed
        # judged at the time of the log; the index has the append time that the slice has
        command = structs.replace(packed.command, now_ms=self._command.now_ms)
        stream = machine.directory.streams.get(command.name)
        reply = None if stream is None else judge_packed(machine, stream)
        accepted = self._accepted
        if reply is None and type(command) in _PRODUCES:
            assert isinstance(command, Produce)
            reply = apply_produce(machine, command, 0, self._add)
        elif reply is None and type(command) is MirrorBatch:
            if stream is not None and command.record != stream.next_record:
                self._open = None  # a gap is in no entry
            reply = apply_mirror_batch(machine, command, 0, self._add)
        elif reply is None and type(command) is AppendIf:
            reply = apply_append_if(machine, command, 0, self._add)
        elif reply is None:
            assert type(command) is Append
            reply = apply_append(machine, command, 0, self._add)
        if command.batch is not None:
            self._batches += 1
            if accepted == self._accepted:
                self._open = None  # it was refused: the next one begins a run
        return reply

    def _add(
        self,
        machine: Machine,
        stream: Stream,
        command: Append | Produce,
        batch: Batch,
        position: int,
    ) -> int:
        """Add an accepted batch to the run, and move the tail. An `AddBatch`."""
        packed, run = self._packed, self._open
        size, time_ms = packed.length, packed.command.now_ms
        if run is None:
            run = self._open = _Run(
                stream.next_record, stream.next_byte, self._batches, time_ms, time_ms
            )
            self._runs.append(run)
        self._accepted += 1
        run.batches += 1
        run.records += batch.records
        run.length += size
        run.flags |= batch.flags & _FLAGS
        if batch.flags & TRANSACTIONAL:  # it may be aborted later, and its slice stays
            run.flags |= UNDECIDED
        run.time_ms_max = max(run.time_ms_max, time_ms)
        run.record_time_ms_max = max(run.record_time_ms_max, batch.record_time_ms_max or time_ms)
        stream.next_record += batch.records
        stream.next_byte += size
        if stream.links is not None:
            note_append(machine.subscriptions, stream)
        return size

    def _publish(self, machine: Machine, stream: Stream, run: _Run) -> None:
        """Add a run to the index. Append times along an index never decrease."""
        command, part = self._command, self._part
        cold = ColdSlice(
            run.record,
            run.byte,
            run.records,
            run.length,
            command.pack,
            part.offset,
            part.stored,
            part.crc,
            run.time_ms,
            part.of_batches,
            run.record_time_ms_max,
            flags=run.flags | (COMPRESSED if part.is_compressed else 0),
            first_batch=run.first_batch,
            batches=run.batches,
        )
        largest_ms = index.time_ms_max(stream.cold, -1) if stream.cold else 0
        number = machine.packs.hold_slice(command.pack, command.owner_group)
        entry = index.packed(cold, number, max(run.time_ms_max, largest_ms))
        stream.cold = index.appended(stream.cold, entry)
