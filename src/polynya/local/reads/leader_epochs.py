"""The end of the records of a Kafka leader epoch, in the stream of a partition."""

from __future__ import annotations

from bisect import bisect_right

from polynya.base.errors import Unavailable
from polynya.local.api import Refusal
from polynya.local.reads.time_lookups import Groups
from polynya.stream.features.pages.eviction import where_of
from polynya.stream.state.model import Stream
from polynya.stream.state.record_gaps import history_end
from polynya.stream.state.tails import high_watermark


async def epoch_end(groups: Groups, group: int, name: str, epoch: int) -> int | Refusal:
    """Return the end of the records of a leader epoch. An election removes no committed record, so
    all epochs since the last restore end at the end of the stream. Those before end where the
    restored copy ended."""
    stream = groups.streams.find(group, name)
    if not isinstance(stream, Stream):
        return stream
    machine = groups.here(group)
    restores = len(machine.counters.epoch_bases) - bisect_right(machine.counters.epoch_bases, epoch)
    if not restores:
        return high_watermark(stream)[0]
    if where_of(stream) is not None:
        whole = await groups.rehydration.copy(group, name) or groups.here(group).directory.lookup(
            name
        )
        if whole is None:
            raise Unavailable("the stream is being evicted or rehydrated; retry")
        stream = whole
    return history_end(stream, stream.cold, restores)
