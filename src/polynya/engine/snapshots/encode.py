"""Encode a group's state as a snapshot body, in slices between which the core's turns go on."""

from __future__ import annotations

import asyncio

import msgspec

from polynya.base.errors import Unavailable
from polynya.replica import Group
from polynya.stream.machine import Machine
from polynya.stream.snapshots import deltas
from polynya.stream.state.changes import Changes, SinceCopy, keys_of

SLICE_BYTES = 128 << 10  # of streams encoded in one step: about a millisecond
# over the streams that changed during the previous pass; then the rest is encoded in one step
PASSES = 4
BATCHES = 10_000  # hot batches checked in one step


class Delta(msgspec.Struct):
    """The body at the group's (`term`, `index`), and the changes that it includes."""

    term: int
    index: int
    body: list[bytes]
    changes: Changes


class _Encoding:
    """Streams of a machine that are encoded in passes while turns go on. `taken`: all changes that
    were taken from the machine meanwhile."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._count = machine, 0
        self.taken = machine.take_changes()
        self.body: list[bytes] = [b""]

    async def passes(self, keys: list[int | str]) -> None:
        """Encode the streams, then those that changed meanwhile, until few are left."""
        for left in reversed(range(PASSES)):
            self._count += await _slices(self._machine, keys, self.body)
            changes = self._machine.changes
            if not left or len(changes.streams) + len(changes.evicted) <= len(keys) >> 6:
                return
            keys = self._take()

    def finish(self) -> int:
        """Encode the rest in one step; return the number of streams in the body."""
        found, data = deltas.encode_streams(self._machine, iter(self._take()))
        self.body.append(data)
        return self._count + found

    def _take(self) -> list[int | str]:
        later = self._machine.take_changes()
        keys = keys_of(later)
        later.put_back(self.taken)
        self.taken = later
        return keys


async def encode_delta(group: Group, *, whole: bool) -> Delta:
    """Encode the changes since the last call, or the whole state. The last step is atomic and fixes
    the index.

    A caller that does not persist the body puts the changes back."""
    machine, encoding = group.machine, _Encoding(group.machine)
    keys: list[int | str] = (
        [*machine.directory.by_uid, *machine.directory.evicted]
        if whole
        else keys_of(encoding.taken)
    )
    try:
        await encoding.passes(keys)
    except BaseException:
        machine.kept.put_back(encoding.taken)
        raise
    count, body = encoding.finish(), encoding.body
    body[0] = deltas.encode_head(machine, encoding.taken, count, whole=whole)
    return Delta(group.term, group.applied_index, body, encoding.taken)


async def encode_since_copy(group: Group, since: SinceCopy) -> Delta:
    """Encode the changes since a copy, for the object store. No snapshot misses any of them.

    Raises Unavailable when an installed snapshot replaces the group's state meanwhile."""
    machine, encoding = group.machine, _Encoding(group.machine)
    try:
        await encoding.passes(keys_of(since.changes))
        if group.machine is not machine:
            raise Unavailable("a snapshot from another node replaced the group's state")
        count, body = encoding.finish(), encoding.body
        body[0] = deltas.encode_head(machine, since.changes, count, whole=False)
        return Delta(group.term, group.applied_index, body, since.changes)
    finally:
        machine.kept.put_back(encoding.taken)


async def lowest_position(machine: Machine, unapplied: int) -> int:
    """Return a lower bound of the journal positions that the machine's hot batches need when this
    returns.

    `unapplied`: a lower bound of the entries that are applied meanwhile, which may be old in the
      journal."""
    lowest, seen = unapplied, 0
    for stream in list(machine.directory.hot.values()):
        hot = stream.hot or ()
        lowest = min(lowest, min([batch.position for batch in hot], default=lowest))
        seen += len(hot)
        if seen > BATCHES:
            seen = 0
            await asyncio.sleep(0)
    return lowest


async def _slices(machine: Machine, keys: list[int | str], body: list[bytes]) -> int:
    left, count = iter(keys), 0
    while True:
        found, data = deltas.encode_streams(machine, left, SLICE_BYTES)
        if not found:
            return count
        count += found
        body.append(data)
        await asyncio.sleep(0)
