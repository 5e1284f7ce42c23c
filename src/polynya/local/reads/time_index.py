"""Find the position of a time in a stream: from its index, or by naming the slice or source to
read."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from polynya.stream.machine import Machine
from polynya.stream.state import index
from polynya.stream.state.model import ColdSlice, Stream
from polynya.stream.state.tails import stable_of

Boundary = tuple[int, int]  # record, byte


class InSource(msgspec.Struct, frozen=True):
    """A marker: the time may lie in the part that the fork inherits. Ask the source, then call
    again with `own`."""


def position_of(
    machine: Machine, stream: Stream, time_ms: int, *, past: bool = False, own: bool = False
) -> Boundary | ColdSlice | InSource:
    """Return the boundary of the first record appended at `time_ms` or later, or the slice that
    contains it. The cost is logarithmic in the index. `past`: include records kept only for forks.
    `own`: exclude inherited records."""
    stable = stable_of(stream)
    entries = machine.packs.whole_index_of(stream) if past else machine.packs.index_of(stream)
    number = index.first_reaching(entries.data, time_ms)
    fork = stream.fork
    if (
        number == 0
        and fork is not None
        and not own
        and time_ms <= stream.created_ms
        and (past or stream.first_record < fork.record)
    ):
        return InSource()
    if number < len(entries):
        cold = entries[number]
        if cold.record >= stable[0]:
            return stable
        return (cold.record, cold.byte) if cold.time_ms >= time_ms else cold
    hot = stream.hot or []
    at = bisect_left(hot, time_ms, key=lambda batch: batch.time_ms)
    return min((hot[at].record, hot[at].byte), stable) if at < len(hot) else stable
