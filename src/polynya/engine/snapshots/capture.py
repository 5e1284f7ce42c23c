"""A group's whole state at one moment, for a copy or a backup, encoded in slices between which the core's turns go on (F12).

The streams are encoded one after the other while the log goes on; those that changed meanwhile are encoded again, and in the end, in one go,
the few that are left and the small parts: they say which moment it is. What changed is told by the machine's `changes`, which belong
to the snapshots and are given back; `lock`, one per core, keeps both from taking them at the same time.
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
from polynya.stream.machine import Machine
from polynya.stream.rules.eviction import stream_or_ghost
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state.changes import keys_of

PASSES = 6  # over what changed while the pass before went on
AT_ONCE = 128  # streams that may be left for the end
HOT_COST = 64  # as many bytes as a piece of a hot batch takes time
_encode = msgspec.msgpack.encode


class Captured(msgspec.Struct, frozen=True):
    """The group at (`term`, `index`): its state in pieces, and its hot payload as a group file has it. The counters are the machine's."""

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
    """A stream, and the pieces of its hot batches."""

    stream: bytes
    hot: tuple[bytes, ...]
    records: int


async def captured(group: Group, lock: asyncio.Lock, *, hot: bool) -> Captured:
    """Of a group that is led here; all that was applied before is in it. `hot`: with its payload. Raises Unavailable when the group goes on from
    another node's state meanwhile."""
    machine, found = group.machine, dict[int, _Encoded]()
    async with lock:
        taken, keys = machine.take_changes(), list[int | str]((*machine.by_uid, *machine.evicted))
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
                raise Unavailable("the group goes on from another node's state: capture it again")
            for key in keys_of(machine.changes):
                _encode_one(machine, found, key, hot=hot)
            moment = _moment(group, found)
        finally:
            machine.changes.put_back(taken)
    return await _put_together(found, moment)


class _Moment(msgspec.Struct, frozen=True):
    """What is said in one go: the numbers, and what of the state comes before and behind the streams."""

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
        group.term, group.applied_index, machine.hot_bytes, machine.message_counter, machine.pack_counter, before, behind
    )  # fmt: skip


async def _encode_all(machine: Machine, found: dict[int, _Encoded], keys: Iterable[int | str], *, hot: bool) -> None:
    size = 0
    for key in keys:
        size += _encode_one(machine, found, key, hot=hot)
        if size >= SLICE_BYTES:
            size = 0
            await asyncio.sleep(0)


def _encode_one(machine: Machine, found: dict[int, _Encoded], key: int | str, *, hot: bool) -> int:
    """How many bytes it has. `key`: its uid, or the name of one that is evicted."""
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
    """Nothing of it changes any more."""
    state, hot, gathered = list[bytes](), list[bytes](), [moment.before]
    size = crc = total = records = 0
    streams = len(found)
    for uid in sorted(found):
        encoded = found.pop(uid)  # what is let go of all at once takes its time, too
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
