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


async def encode_delta(group: Group, *, whole: bool) -> Delta:
    """Encode the changes since the last call, or the whole state. The last step is atomic and fixes
    the index.

    A caller that does not persist the body puts the changes back."""
    machine = group.machine
    changes = machine.take_changes()
    body: list[bytes] = [b""]
    keys: list[int | str] = (
        [*machine.directory.by_uid, *machine.directory.evicted] if whole else keys_of(changes)
    )
    count = 0
    try:
        for left in reversed(range(PASSES)):
            count += await _slices(machine, keys, body)
            if (
                not left
                or len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) >> 6
            ):
                break
            more = machine.take_changes()
            keys = keys_of(more)
            changes = _joined(changes, more)
    except BaseException:
        machine.kept.put_back(changes)
        raise
    last = machine.take_changes()
    found, data = deltas.encode_streams(machine, iter(keys_of(last)))
    changes = _joined(changes, last)
    body[0] = deltas.encode_head(machine, changes, count + found, whole=whole)
    body.append(data)
    return Delta(group.term, group.applied_index, body, changes)


async def encode_since_copy(group: Group, since: SinceCopy) -> Delta:
    """Encode the changes since a copy, for the object store. No snapshot misses any of them.

    Raises Unavailable when an installed snapshot replaces the group's state meanwhile."""
    machine, body, count = group.machine, [b""], 0
    taken = machine.take_changes()
    keys = keys_of(since.changes)
    try:
        for left in reversed(range(PASSES)):
            count += await _slices(machine, keys, body)
            if (
                not left
                or len(machine.changes.streams) + len(machine.changes.evicted) <= len(keys) >> 6
            ):
                break
            more = machine.take_changes()
            keys, taken = keys_of(more), _joined(taken, more)
        if group.machine is not machine:
            raise Unavailable("a snapshot from another node replaced the group's state")
        last = machine.take_changes()
        found, data = deltas.encode_streams(machine, iter(keys_of(last)))
        taken = _joined(taken, last)
        body[0] = deltas.encode_head(machine, since.changes, count + found, whole=False)
        body.append(data)
        return Delta(group.term, group.applied_index, body, since.changes)
    finally:
        machine.kept.put_back(taken)


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


def _joined(changes: Changes, later: Changes) -> Changes:
    later.put_back(changes)
    return later
