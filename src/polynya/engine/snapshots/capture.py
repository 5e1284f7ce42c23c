"""Capture a group's whole state at one log index, for a copy or a backup, without stalling the
core's turns.

The streams are encoded in slices while the log advances; changed streams are encoded again. The
last changed streams and the small parts are encoded in one step, which fixes the index. The
machine's `changes` track modifications. They belong to the snapshots, so they are put back, and
`lock` (one per core) excludes a snapshot meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
from google_crc32c import extend

from polynya.backup.group_file import hot_pieces
from polynya.base.errors import Unavailable
from polynya.engine.snapshots.encode import SLICE_BYTES
from polynya.replica import Group
from polynya.stream.features.pages.eviction import stream_or_ghost
from polynya.stream.machine import Machine
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state.changes import SinceCopy, keys_of

PASSES = 6  # over the streams that changed during the previous pass
AT_ONCE = 128  # streams that may be left for the last step
HOT_COST = 64  # bytes whose encoding takes as long as one piece of a hot batch
_encode = msgspec.msgpack.encode


class Captured(msgspec.Struct, frozen=True):
    """The group at (`term`, `index`): its state in pieces, and its hot payload in the group file
    format. The counters are the machine's."""

    term: int
    index: int
    state: list[bytes]
    state_bytes: int
    state_crc: int
    hot: list[bytes]
    batches: int
    hot_bytes: int
    streams: int
    records: int
    messages: int
    packs: int


class _Encoded(msgspec.Struct, gc=False):
    """An encoded stream, and the pieces of its hot batches."""

    stream: bytes
    hot: tuple[bytes, ...]
    records: int


async def captured(
    group: Group, lock: asyncio.Lock, *, hot: bool, begins: bool = False
) -> Captured:
    """Capture a group that is led here, with all entries applied before. `hot`: include the
    payload. `begins`: the changes from here on are tracked, if streams of the group are diskless.

    Raises Unavailable when an installed snapshot replaces the group's state meanwhile."""
    machine, found = group.machine, dict[int, _Encoded]()
    async with lock:
        taken, keys = (
            machine.take_changes(),
            list[int | str]((*machine.directory.by_uid, *machine.directory.evicted)),
        )
        try:
            await _encode_all(machine, found, keys, hot=hot)
            for _ in range(PASSES):
                if len(machine.changes.streams) + len(machine.changes.evicted) <= AT_ONCE:
                    break
                more = machine.take_changes()
                keys = keys_of(more)
                more.put_back(taken)
                taken = more
                await _encode_all(machine, found, keys, hot=hot)
            if group.machine is not machine:
                raise Unavailable(
                    "a snapshot from another node replaced the group's state: capture it again"
                )
            for key in keys_of(machine.changes):
                _encode_one(machine, found, key, hot=hot)
            moment = _moment(group, found)
            last = machine.take_changes()
            last.put_back(taken)
            taken = last
            if begins and machine.diskless.streams:
                machine.kept.since_copy = SinceCopy(machine.diskless.left)
            elif begins:
                machine.kept.since_copy = None
        finally:
            machine.kept.put_back(taken)
    return await _put_together(found, moment)


class _Moment(msgspec.Struct, frozen=True):
    """The parts that are encoded in the last step: the counters, and the state before and behind
    the streams."""

    term: int
    index: int
    hot_bytes: int
    messages: int
    packs: int
    before: bytes
    behind: bytes


def _moment(group: Group, found: dict[int, _Encoded]) -> _Moment:
    machine = group.machine
    before, behind = snapshots.around_streams(machine, len(found))
    return _Moment(
        group.term,
        group.applied_index,
        machine.directory.hot_bytes,
        machine.outbox.counter,
        machine.packs.counter,
        before,
        behind,
    )


async def _encode_all(
    machine: Machine, found: dict[int, _Encoded], keys: Iterable[int | str], *, hot: bool
) -> None:
    size = 0
    for key in keys:
        size += _encode_one(machine, found, key, hot=hot)
        if size >= SLICE_BYTES:
            size = 0
            await asyncio.sleep(0)


def _encode_one(machine: Machine, found: dict[int, _Encoded], key: int | str, *, hot: bool) -> int:
    """Encode one stream and return its cost in bytes. `key`: its uid, or its name if it is
    evicted."""
    stream = stream_or_ghost(machine, key)
    if stream is None:
        if isinstance(key, int):
            found.pop(key, None)
        return 0
    encoded = _encode(snapshots.without_payload(stream))
    pieces = tuple(hot_pieces(stream.hot)) if hot and stream.hot else ()
    found[stream.uid] = _Encoded(encoded, pieces, stream.next_record - stream.first_record)
    return len(encoded) + HOT_COST * len(pieces)


async def _put_together(found: dict[int, _Encoded], moment: _Moment) -> Captured:
    """Join the pieces, which no longer change."""
    state, hot, gathered = list[bytes](), list[bytes](), [moment.before]
    size = crc = total = records = 0
    streams = len(found)
    for uid in sorted(found):
        encoded = found.pop(uid)  # freed one by one: freeing all at once would stall the loop
        gathered.append(encoded.stream)
        hot += encoded.hot
        records += encoded.records
        size += len(encoded.stream) + HOT_COST * len(encoded.hot)
        if size >= SLICE_BYTES:
            state.append(b"".join(gathered))
            crc, total = int(extend(crc, state[-1])), total + len(state[-1])
            gathered, size = [], 0
            await asyncio.sleep(0)
    state.append(b"".join([*gathered, moment.behind]))
    return Captured(
        term=moment.term,
        index=moment.index,
        state=state,
        state_bytes=total + len(state[-1]),
        state_crc=int(extend(crc, state[-1])),
        hot=hot,
        batches=len(hot) // 2,
        hot_bytes=moment.hot_bytes,
        streams=streams,
        records=records,
        messages=moment.messages,
        packs=moment.packs,
    )
