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
from typing import Self

import msgspec
from google_crc32c import extend

from polynya.backup.group_file import hot_pieces
from polynya.base.errors import Unavailable
from polynya.engine.snapshots.encode import SLICE_BYTES
from polynya.replica import Group
from polynya.stream.features.pages.eviction import stream_or_view
from polynya.stream.machine import Machine
from polynya.stream.snapshots import encode as snapshots
from polynya.stream.state.changes import Changes, SinceCopy, keys_of

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
    async with lock:
        with Capture(group, hot=hot) as capture:
            await capture.prepare()
            moment = await capture.fix(begins=begins)
    return await capture.put_together(moment)


class Capture:
    """A capture of a group in steps: `prepare` encodes everything, `fix` what has changed since, at one
    log index. A context manager, inside of which the caller has the core's lock."""

    def __init__(self, group: Group, *, hot: bool) -> None:
        self._group, self._machine, self._hot = group, group.machine, hot
        self._found: dict[int, _Encoded] = {}
        self._taken: Changes | None = None

    def __enter__(self) -> Self:
        self._taken = self._machine.take_changes()
        return self

    def __exit__(self, *_: object) -> None:
        if self._taken is not None:
            self._machine.kept.put_back(self._taken)
            self._taken = None

    async def prepare(self) -> None:
        """Encode all streams while the log advances."""
        directory = self._machine.directory
        keys = list[int | str]((*directory.by_uid, *directory.evicted))
        await _encode_all(self._machine, self._found, keys, hot=self._hot)
        await self._catch_up()

    async def fix(self, *, begins: bool = False) -> _Moment:
        """Encode what has changed since, and fix the index. Raises Unavailable."""
        machine = self._machine
        await self._catch_up()
        if self._group.machine is not machine:
            raise Unavailable(
                "a snapshot from another node replaced the group's state: capture it again"
            )
        for key in keys_of(machine.changes):
            _encode_one(machine, self._found, key, hot=self._hot)
        moment = _moment(self._group, self._found)
        self._take()
        if begins and machine.diskless.streams:
            machine.kept.since_copy = SinceCopy(machine.diskless.left)
        elif begins:
            machine.kept.since_copy = None
        return moment

    async def put_together(self, moment: _Moment) -> Captured:
        """Join the pieces; nothing is excluded meanwhile."""
        return await _put_together(self._found, moment)

    async def _catch_up(self) -> None:
        """Encode changed streams until few are left."""
        changes = self._machine.changes
        for _ in range(PASSES):
            if len(changes.streams) + len(changes.evicted) <= AT_ONCE:
                return
            keys = self._take()
            await _encode_all(self._machine, self._found, keys, hot=self._hot)

    def _take(self) -> list[int | str]:
        """Take the changes since, and return the keys of their streams."""
        if self._taken is None:
            raise Unavailable("the capture took too long and was dropped: capture the group again")
        more = self._machine.take_changes()
        keys = keys_of(more)
        more.put_back(self._taken)
        self._taken = more
        return keys


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
    stream = stream_or_view(machine, key)
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
