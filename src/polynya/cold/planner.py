"""Choose the content of the next packs. Pure: candidates, settings and the time in, plans out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter

import msgspec

from polynya.cold.settings import FlushSettings
from polynya.stream.state.model import HotBatch
from polynya.stream.state.record_gaps import joined_until
from polynya.wire.slice_format import RECORDS_MAX

STREAMS_MAX = 4096  # per planning pass; the steps after it block the loop for a few milliseconds
SLICES_MAX = 1024  # per pack; the state machine applies their publication in one step
ALL_STABLE = 2**63
_RECORD = attrgetter("record")
_OLDEST = attrgetter("oldest_ms")
_ENCODING = attrgetter("encoding")


class Waiting(msgspec.Struct, gc=False):
    """A stream with hot batches, as recorded by the survey."""

    group: int
    uid: int
    size: int  # hot bytes
    oldest_ms: int  # append time of its first hot batch


class Candidate(msgspec.Struct, gc=False):
    """A stream chosen to be flushed, with its current hot batches, which are contiguous."""

    group: int
    uid: int
    name: str
    content_type: str
    first: bool  # no part of the stream is in a pack yet
    batches: Sequence[HotBatch]
    # the next batch's record, or the tail: before it there may be numbers that no record has
    end: int = 0
    stable: int = ALL_STABLE  # record from which on transactions may be open


class SlicePlan(msgspec.Struct, gc=False):
    """A slice to be built. Only the first slice of a stream has `path` and `content_type`."""

    group: int
    uid: int
    encoding: int
    batches: Sequence[HotBatch]
    path: str = ""
    content_type: str = ""
    missing_records: int = 0  # numbers between its last record and the next one
    undecided: bool = False  # transactions of it may be open


class PackPlan(msgspec.Struct, gc=False):
    """A pack to be written. Slices of one stream are in stream order."""

    owner_group: int
    slices: list[SlicePlan]
    size: int = 0  # bytes of payload

    @property
    def uids(self) -> set[int]:
        return {each.uid for each in self.slices}

    @property
    def groups(self) -> list[int]:
        return sorted({each.group for each in self.slices})


def choose(waiting: Iterable[Waiting], settings: FlushSettings, now_ms: int) -> list[Waiting]:
    """Return the streams that are due, at most `STREAMS_MAX`.

    Streams whose oldest byte is too old are due. While more than half of `from_bytes` would stay
    hot, the largest others follow. They are ordered by power-of-two size classes, older first
    within a class: few large slices keep the index small. The cost is linear in the number of
    streams.
    """
    aged: list[Waiting] = []
    by_size: dict[int, list[Waiting]] = {}
    total = 0
    for each in waiting:
        total += each.size
        if each.oldest_ms + settings.age_ms_max <= now_ms:
            aged.append(each)
        else:
            by_size.setdefault(each.size.bit_length(), []).append(each)
    chosen = nsmallest(STREAMS_MAX, aged, key=_OLDEST)
    if total < settings.from_bytes:
        return chosen
    left = total - sum(each.size for each in chosen)
    for size in sorted(by_size, reverse=True):
        for each in nsmallest(STREAMS_MAX - len(chosen), by_size[size], key=_OLDEST):
            if left <= settings.from_bytes // 2:
                return chosen
            left -= each.size
            chosen.append(each)
    return chosen


def plan_packs(chosen: Iterable[Candidate], settings: FlushSettings) -> list[PackPlan]:
    """Fill packs of at most `pack_bytes_max` bytes.

    A stream goes into one pack, and its excess waits for the next planning pass. So no stream takes
    more than one pack before the others had their turn.
    """
    packs: list[PackPlan] = []
    for candidate in chosen:
        runs = _runs_of(candidate, settings.slice_bytes_max)
        if not packs or not _fits(packs[-1], _size(runs[0]), settings):
            packs.append(PackPlan(candidate.group, []))
        pack = packs[-1]
        first = candidate.first
        for number, run in enumerate(runs):
            size = _size(run)
            if pack.slices and not _fits(pack, size, settings):
                break
            named = (candidate.name, candidate.content_type) if first else ("", "")
            following = runs[number + 1][0].record if number + 1 < len(runs) else candidate.end
            pack.slices.append(
                SlicePlan(
                    candidate.group,
                    candidate.uid,
                    run[0].encoding,
                    run,
                    *named,
                    _missing_behind(run, following),
                    run[0].record >= candidate.stable,
                )
            )
            pack.size += size
            first = False
    return packs


def _runs_of(candidate: Candidate, bytes_max: int) -> list[Sequence[HotBatch]]:
    """Return the slices of a candidate. None has batches on both sides of the last stable end."""
    batches = candidate.batches
    if candidate.stable >= batches[-1].record + batches[-1].records:
        return cut_runs(batches, bytes_max)
    at = bisect_left(batches, candidate.stable, key=_RECORD)
    parts = (batches[:at], batches[at:])
    return [run for part in parts if part for run in cut_runs(part, bytes_max)]


def cut_runs(batches: Sequence[HotBatch], bytes_max: int) -> list[Sequence[HotBatch]]:
    """Split batches into gapless runs of one encoding and at most `bytes_max` payload. A single
    larger batch forms its own run."""
    if _joined_until(batches, 0) < len(batches):
        runs: list[Sequence[HotBatch]] = []
        begin = 0
        while begin < len(batches):
            end = _joined_until(batches, begin)
            runs += cut_runs(batches[begin:end], bytes_max)
            begin = end
        return runs
    if _size(batches) <= bytes_max:
        return [batches]
    runs = []
    begin = 0
    for end in range(1, len(batches) + 1):
        if (
            end == len(batches)
            or batches[end].byte + len(batches[end].payload) - batches[begin].byte > bytes_max
        ):
            runs.append(batches[begin:end])
            begin = end
    return runs


def _missing_behind(run: Sequence[HotBatch], following: int) -> int:
    """Return the numbers that the slice of this run covers behind its records. No slice covers a
    gap that is wide, or too wide for the span of an entry."""
    end = run[-1].record + run[-1].records
    return max(0, following - end) if following - run[0].record <= RECORDS_MAX else 0


def _joined_until(batches: Sequence[HotBatch], begin: int) -> int:
    """Return the end of the batches from `begin` on that one slice can hold, whatever their
    size."""
    end = joined_until(batches, begin)
    first = batches[begin]
    if [*map(_ENCODING, batches)].count(first.encoding) < len(batches):
        end = next((at for at in range(begin, end) if batches[at].encoding != first.encoding), end)
    if batches[end - 1].record + batches[end - 1].records - first.record > RECORDS_MAX:
        end = next(
            at
            for at in range(begin + 1, end)
            if batches[at].record + batches[at].records - first.record > RECORDS_MAX
        )
    return end


def _fits(pack: PackPlan, size: int, settings: FlushSettings) -> bool:
    return pack.size + size <= settings.pack_bytes_max and len(pack.slices) < SLICES_MAX


def _size(run: Sequence[HotBatch]) -> int:
    return run[-1].byte + len(run[-1].payload) - run[0].byte
