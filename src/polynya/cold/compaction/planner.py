"""Choose the streams whose keys are compacted now, and the entries of a pass. Pure."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from polynya.stream.features.compaction.progress import compaction_of
from polynya.stream.features.forks.pinned import pinned_until
from polynya.stream.features.tables.watches import untaken_from, watch_of
from polynya.stream.machine import Machine
from polynya.stream.parts import ColdSlice
from polynya.stream.state import index, record_gaps
from polynya.stream.state.model import Compaction, Stream
from polynya.stream.state.tails import is_stable, stable_of

TABLE_MS = 86_400_000  # a table that does not hold records has so long to read them
NEVER_MS = 2**63 - 1


class CompactionPolicy(msgspec.Struct, frozen=True, gc=False):
    """The configs of a compacted topic, by Kafka's names; those of a plain stream are the defaults."""

    min_lag_ms: int = 0
    max_lag_ms: int = NEVER_MS
    delete_retention_ms: int = 86_400_000
    dirty_ratio: float = 0.5


class Extent(msgspec.Struct, frozen=True, gc=False):
    """The entries that a pass may rewrite, by number, what ends them, and the bytes before that."""

    begin: int  # those before it are pinned or in pages
    end: int
    held_by: str  # what begins behind them; "": nothing
    below: str  # what keeps the entries before `begin`, or older records elsewhere; "": nothing
    dirty_begin: int  # the first one that no pass has mapped
    total_bytes: int
    dirty_bytes: int

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / self.total_bytes if self.total_bytes else 0.0


class Pass(msgspec.Struct, frozen=True, gc=False):
    """The plan of a pass: all entries before its end, as they are now."""

    group: int
    uid: int
    name: str
    content_type: str
    term: int
    began: Compaction
    extent: Extent
    entries: list[ColdSlice]
    aborted: bytes
    bounds: frozenset[int]  # records that stay the first of an entry
    drops: bool  # tombstones and markers of aborts below what was cleaned may go

    @property
    def limit(self) -> int:
        """The record behind the last entry."""
        last = self.entries[-1]
        return last.record + last.records


def extent_of(
    machine: Machine, stream: Stream, policy: CompactionPolicy, now_ms: int, mapped: int = 0
) -> Extent:
    """Return what may be compacted of a stream. `mapped`: the end of what passes have mapped that
    something held up."""
    cold = stream.cold
    if not cold:
        return Extent(0, 0, "records in memory" if stream.hot else "", "", 0, 0, 0)
    limit, held_by = _limit(machine, stream, policy, now_ms)
    end = index.entries_before(cold, limit)
    begin, below = _begin(stream, cold)
    sizes = index.lengths(index.cut(cold, 0, end))
    dirty_begin = min(index.entries_before(cold, max(compaction_of(stream).cleaned, mapped)), end)
    sums = list(accumulate(sizes, initial=0))
    return Extent(begin, end, held_by, below, dirty_begin, sums[end], sums[end] - sums[dirty_begin])


def _limit(
    machine: Machine, stream: Stream, policy: CompactionPolicy, now_ms: int
) -> tuple[int, str]:
    """Return the record before which a pass ends, and what is behind it."""
    cold = stream.cold
    assert cold
    found = (index.end_of(cold, -1)[0], "records in memory" if stream.hot else "")
    if not is_stable(stream):
        found = min(found, (stable_of(stream)[0], "an open transaction"))
    if policy.min_lag_ms:
        young = index.first_reaching(cold, now_ms - policy.min_lag_ms)
        if young < index.count(cold):
            found = min(found, (index.begin_of(cold, young)[0], "min.compaction.lag.ms"))
    watch = watch_of(machine, stream.name) if machine.claims.watches else None
    if watch is not None:
        needed = untaken_from(stream, watch)
        if not watch.hold:
            at = index.first_reaching(cold, now_ms - TABLE_MS)
            old = index.begin_of(cold, at)[0] if at < index.count(cold) else found[0]
            needed = max(needed, old)
        found = min(found, (needed, f"table {watch.table}"))
    return found


def _begin(stream: Stream, cold: index.Entries) -> tuple[int, str]:
    """Return the first entry that may be rewritten, and what keeps records before that as they are."""
    begin, why = 0, ""
    if stream.fork is not None and not (stream.extras is not None and stream.extras.detached):
        why = "records inherited from another stream"
    pages = index.pages(cold)
    if pages:
        begin, why = pages[-1][1], "pages of the index"
    pinned = index.first_from(cold, pinned_until(stream))
    return (pinned, "a fork") if pinned > begin else (begin, why)


def is_due(stream: Stream, extent: Extent, policy: CompactionPolicy, now_ms: int) -> bool:
    """Report whether a pass is worth its bytes now."""
    horizon_ms = compaction_of(stream).horizon_ms
    if horizon_ms and now_ms >= horizon_ms and not extent.below and extent.end:
        return True
    if not extent.dirty_bytes or extent.begin >= extent.end:
        return False
    if extent.dirty_ratio >= policy.dirty_ratio:
        return True
    assert stream.cold
    oldest_ms = index.time_ms_first(stream.cold, extent.dirty_begin)
    return now_ms - oldest_ms >= policy.max_lag_ms


def plan_pass(group: int, machine: Machine, stream: Stream, extent: Extent, *, term: int) -> Pass:
    """Return the plan of a pass over an extent with entries."""
    assert stream.cold
    began = compaction_of(stream)
    claims = (stream.tables or {}).values()
    cold = stream.cold
    bounds = {each for claim in claims for each in (claim.published, claim.claimed)}
    bounds |= {index.begin_of(cold, at)[0] for at in record_gaps.entries_behind(cold)}
    return Pass(
        group,
        stream.uid,
        stream.name,
        stream.content_type,
        term,
        began,
        extent,
        list(machine.packs.index_of(stream)[: extent.end]),
        b"" if stream.kafka is None else stream.kafka.aborted,
        frozenset(bounds),
        not extent.below,
    )


def completed(
    made: Pass, end: int, policy: CompactionPolicy, now_ms: int, *, waiting: bool
) -> Compaction:
    """Return the progress after a pass that has compared all records before `end`. `waiting`: it has
    left tombstones. Those that it was the first to see go in a pass after their time; until then
    those before them wait for theirs."""
    began = made.began
    if began.horizon_ms and now_ms < began.horizon_ms:
        return Compaction(end, began.horizon_ms, began.generation, began.tombstones)
    if not waiting:
        return Compaction(end, 0, began.generation, 0)
    return Compaction(end, now_ms + policy.delete_retention_ms, began.generation, end)


def tombstones_until(made: Pass, now_ms: int) -> int:
    """Return the record before which tombstones go in a pass."""
    began = made.began
    return began.tombstones if made.drops and began.horizon_ms and now_ms >= began.horizon_ms else 0
