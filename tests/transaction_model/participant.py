"""A participant's rules: streams and consumer groups refuse the numbers that they have ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transaction_model.state import (
    ABORT,
    COMMIT,
    PRODUCERS_MAX,
    UNDECIDED,
    Batch,
    Code,
    CommitOffsets,
    CommitSlices,
    Consumers,
    Create,
    Delete,
    Entry,
    Evict,
    FetchOffset,
    Fork,
    GroupState,
    JoinGroup,
    Open,
    Produce,
    Producer,
    Recall,
    Reply,
    Row,
    Stream,
    TxnMarkers,
    TxnOffsets,
    TxnSettle,
    Unpin,
)

RECEIPTS = 5


def apply_produce(state: GroupState, command: Produce, now_ms: int) -> Reply:
    stream, reply = judged(state, command)
    if stream is None:
        return reply
    batch = accept(stream, command, now_ms)
    flags = 0
    add_entry(state, stream, Entry(0, (batch,), hot=True, flags=flags))
    return Reply(Code.OK, batch.base)


def apply_slices(state: GroupState, command: CommitSlices, now_ms: int) -> Reply:
    """Commit a pack: refused batches are in no entry."""
    replies, batches, target = [], [], None
    for produce in command.produces:
        stream, reply = judged(state, produce)
        if stream is not None:
            target = stream
            batches.append(accept(stream, produce, now_ms))
            reply = Reply(Code.OK, batches[-1].base)
        replies.append(reply)
    if target is not None:
        undecided = any(batch.transactional for batch in batches)
        entry = Entry(0, tuple(batches), flags=UNDECIDED if undecided else 0)
        add_entry(state, target, entry)
    return Reply(Code.OK, replies)


def judged(state: GroupState, command: Produce) -> tuple[Stream | None, Reply]:
    """Judge in the order of the design: stream, uid, epoch, receipts, ended, open, sequence."""
    stream, reply = find(state, command.uid, command.name)
    if stream is None:
        return None, reply
    if command.pid == -1:
        return stream, Reply(Code.OK)
    producer = stream.producers.get(command.pid)
    if producer is not None and command.epoch < producer.epoch:
        return None, Reply(Code.FENCED)
    if producer is not None and command.epoch == producer.epoch:
        for sequence, base in producer.receipts:
            if sequence == command.sequence:
                return None, Reply(Code.OK, base)
    if command.number and command.number <= stream.ended.get(command.pid, 0):
        return None, Reply(Code.TXN_ENDED)
    opened = stream.open.get(command.pid)
    if opened is not None and opened.number != command.number:
        return None, Reply(Code.OTHER_OPEN if command.number else Code.TXN_STATE, opened.number)
    last = producer.last if producer is not None and command.epoch == producer.epoch else -1
    if producer is not None and command.sequence != last + 1:
        return None, Reply(Code.SEQUENCE)
    return stream, Reply(Code.OK)


def find(state: GroupState, uid: int, name: str) -> tuple[Stream | None, Reply]:
    stream = state.streams.get(uid)
    if stream is not None:
        return stream, Reply(Code.OK)
    if is_evicted(state, uid, name):
        return None, Reply(Code.EVICTED)
    return None, Reply(Code.INCARNATION)


def is_evicted(state: GroupState, uid: int, name: str) -> bool:
    return name in state.stubs and state.stubs[name].uid == uid


def accept(stream: Stream, command: Produce, now_ms: int) -> Batch:
    """Give the batch its offsets, and note its producer and transaction."""
    base = stream.next
    records = tuple((base + n, key, value) for n, (key, value) in enumerate(command.values))
    last = base + len(records) - 1
    stream.next = last + 1
    pid, epoch, sequence = command.pid, command.epoch, command.sequence
    if pid != -1:
        known = stream.producers.pop(pid, None)
        receipts = known.receipts if known is not None and known.epoch == epoch else ()
        if known is None:
            make_room(stream)
        receipts = (*receipts[-RECEIPTS + 1 :], (sequence, base))
        stream.producers[pid] = Producer(epoch, sequence, receipts)
    if command.number and pid not in stream.open:
        stream.open[pid] = Open(base, command.number, now_ms)
    return Batch(base, last, records, pid, epoch, sequence, command.number)


def make_room(stream: Stream) -> None:
    """Drop the longest idle producer that has no open transaction."""
    if len(stream.producers) >= PRODUCERS_MAX:
        idle = next((pid for pid in stream.producers if pid not in stream.open), None)
        if idle is not None:
            del stream.producers[idle]


def add_entry(state: GroupState, stream: Stream, entry: Entry) -> None:
    stream.entries.append(replace(entry, id=state.next_entry))
    state.next_entry += 1


def apply_markers(state: GroupState, command: TxnMarkers, now_ms: int) -> Reply:
    """End the transaction here. The reply lists the streams that must be recalled first."""
    evicted = tuple(name for uid, name in command.uids if is_evicted(state, uid, name))
    for uid, _ in command.uids:
        stream = state.streams.get(uid)
        if stream is not None:
            end_in_stream(state, stream, command.producer, command.number, command)
    for group in command.groups:
        end_in_group(state, group, command.producer, command.number, command.commit)
    return Reply(Code.EVICTED if evicted else Code.OK, evicted)


def end_in_stream(
    state: GroupState, stream: Stream, pid: int, number: int, markers: TxnMarkers
) -> None:
    if number <= stream.ended.get(pid, 0):
        return
    opened = stream.open.get(pid)
    if opened is not None and opened.number <= number:
        write_marker(state, stream, pid, markers)
    stream.ended[pid] = number
    producer = stream.producers.get(pid)
    if producer is not None and markers.epoch > producer.epoch:
        stream.producers[pid] = Producer(markers.epoch, -1)


def write_marker(state: GroupState, stream: Stream, pid: int, markers: TxnMarkers) -> None:
    """Write the control batch. An abort leaves a row, and flag 4 on the hot batches."""
    opened = stream.open.pop(pid)
    offset = stream.next
    stream.next += 1
    kind = COMMIT if markers.commit else ABORT
    marker = Batch(offset, offset, (), pid, markers.epoch, -1, opened.number, kind)
    inline = stream.diskless and not any(entry.hot for entry in stream.entries)
    add_entry(state, stream, Entry(0, (marker,), hot=not inline, inline=inline))
    if not markers.commit:
        stream.entries = [
            flagged(entry, pid, opened.first) if entry.hot else entry for entry in stream.entries
        ]
        stream.rows.append(Row(pid, opened.first, offset))
        drop_rows(stream)


def flagged(entry: Entry, pid: int, first: int) -> Entry:
    """Return a hot entry with flag 4 on the batches of an aborted transaction."""
    batches = tuple(
        replace(batch, aborted=True)
        if batch.pid == pid and batch.base >= first and batch.transactional and not batch.control
        else batch
        for batch in entry.batches
    )
    return replace(entry, batches=batches)


def drop_rows(stream: Stream) -> None:
    """Drop the rows that no hot batch and no undecided entry overlaps."""
    stream.rows = [row for row in stream.rows if is_needed(stream, row)]


def is_needed(stream: Stream, row: Row) -> bool:
    return any(
        (entry.hot or entry.flags & UNDECIDED)
        and entry.begin < row.marker
        and row.first < entry.end
        for entry in stream.entries
        if not entry.paged
    )


def apply_settle(state: GroupState, command: TxnSettle, now_ms: int) -> Reply:
    """End an orphan by its coordinator's answer, or what a restore found open."""
    if command.group:
        end_in_group(state, command.group, command.producer, command.number, command.commit)
        return Reply(Code.OK)
    stream = state.streams.get(command.uid)
    if stream is not None:
        pid, number = command.producer, command.number
        markers = TxnMarkers(pid, command.epoch, number, command.commit, (), ())
        end_in_stream(state, stream, pid, number, markers)
    return Reply(Code.OK)


def apply_create(state: GroupState, command: Create, now_ms: int) -> Reply:
    stream = Stream(command.uid, command.name, command.diskless, command.compacted)
    state.streams[command.uid] = stream
    state.names[command.name] = command.uid
    return Reply(Code.OK)


def apply_delete(state: GroupState, command: Delete, now_ms: int) -> Reply:
    stream = state.streams.pop(command.uid, None)
    if stream is None:
        return Reply(Code.INCARNATION)
    del state.names[stream.name]
    if stream.pins:
        release(stream)
        state.released[stream.uid] = stream
    return Reply(Code.OK)


def release(stream: Stream) -> None:
    """Keep a deleted stream for its forks: what they inherit is decided."""
    stream.open = {}


def mark_of(stream: Stream) -> Any:
    """Return what must be equal for an eviction: the state that the copy in the store has."""
    return (
        stream.next,
        tuple(entry.id for entry in stream.entries),
        tuple(stream.producers.items()),
        tuple(stream.ended.items()),
        tuple(stream.rows),
        stream.pins,
    )


def apply_evict(state: GroupState, command: Evict, now_ms: int) -> Reply:
    stream = state.streams.get(command.uid)
    if stream is None or stream.open or any(entry.hot for entry in stream.entries):
        return Reply(Code.CHANGED)
    if mark_of(stream) != command.mark:
        return Reply(Code.CHANGED)
    del state.streams[command.uid]
    state.stubs[stream.name] = command.copy
    return Reply(Code.OK)


def apply_recall(state: GroupState, command: Recall, now_ms: int) -> Reply:
    stream = state.stubs.pop(command.name, None)
    if stream is not None:
        state.streams[stream.uid] = stream
    return Reply(Code.OK)


def apply_fork(state: GroupState, command: Fork, now_ms: int) -> Reply:
    stream = state.streams.get(command.uid)
    if stream is None or command.point > stream.stable_end:
        return Reply(Code.CHANGED)
    stream.pins = (*stream.pins, command.point)
    return Reply(Code.OK)


def apply_unpin(state: GroupState, command: Unpin, now_ms: int) -> Reply:
    stream = state.streams.get(command.uid) or state.released.get(command.uid)
    if stream is not None and command.point in stream.pins:
        pins = [*stream.pins]
        pins.remove(command.point)
        stream.pins = tuple(pins)
        if not pins:
            state.released.pop(command.uid, None)
    return Reply(Code.OK)


def apply_join(state: GroupState, command: JoinGroup, now_ms: int) -> Reply:
    group = state.consumers.setdefault(command.group, Consumers())
    group.generation += 1
    return Reply(Code.OK, group.generation)


def apply_txn_offsets(state: GroupState, command: TxnOffsets, now_ms: int) -> Reply:
    """Keep the offsets aside until the marker."""
    group = state.consumers.setdefault(command.group, Consumers())
    if command.number <= group.ended.get(command.producer, 0):
        return Reply(Code.TXN_ENDED)
    number, pending = group.pending.get(command.producer, (command.number, {}))
    if number != command.number:
        return Reply(Code.OTHER_OPEN, number)
    if command.generation not in (-1, group.generation):
        return Reply(Code.GENERATION)
    group.pending[command.producer] = (number, {**pending, **dict(command.positions)})
    return Reply(Code.OK)


def apply_commit_offsets(state: GroupState, command: CommitOffsets, now_ms: int) -> Reply:
    """Move positions at once; pending ones of the same streams are older, and dropped."""
    group = state.consumers.setdefault(command.group, Consumers())
    for stream, offset in command.positions:
        group.positions[stream] = offset
        drop_pending(group, stream)
    return Reply(Code.OK)


def drop_pending(group: Consumers, stream: str) -> None:
    for _, pending in group.pending.values():
        pending.pop(stream, None)


def end_in_group(state: GroupState, name: str, pid: int, number: int, commit: bool) -> None:
    group = state.consumers.setdefault(name, Consumers())
    if number <= group.ended.get(pid, 0):
        return
    _, pending = group.pending.pop(pid, (0, {}))
    if commit:
        for stream, offset in pending.items():
            group.positions[stream] = offset
            drop_pending(group, stream)
    group.ended[pid] = number


def read_offset(state: GroupState, command: FetchOffset, now_ms: int) -> Reply:
    """Return a stable position; UNSTABLE while a transaction may move it."""
    group = state.consumers.setdefault(command.group, Consumers())
    if any(command.stream in pending for _, pending in group.pending.values()):
        return Reply(Code.UNSTABLE)
    return Reply(Code.OK, group.positions.get(command.stream, 0))
