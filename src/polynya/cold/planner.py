"""What goes into the next packs. Pure: candidates, settings and the time in, plans out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nsmallest
from operator import attrgetter

import msgspec

from polynya.base import limits
from polynya.stream.state.model import HotBatch
from polynya.stream.state.record_gaps import run_end

STREAMS_MAX = 4096  # of one planning: what follows it blocks the loop for a few milliseconds
SLICES_MAX = 1024  # of one pack: applying their publication is one step of the machine
_OLDEST = attrgetter("oldest_ms")


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When and how a core flushes."""

    from_bytes: int = limits.FLUSH_BYTES  # hot bytes of the core from which on it flushes
    pack_bytes_max: int = limits.FLUSH_BYTES  # payload of one pack, or one batch if that is larger
    slice_bytes_max: int = limits.SLICE_BYTES_MAX
    age_ms_max: int = limits.FLUSH_MAX_AGE_MS
    interval_ms: int = limits.FLUSH_INTERVAL_MS  # 0: only on demand
    concurrency: int = limits.FLUSH_MAX_CONCURRENCY


class Waiting(msgspec.Struct, gc=False):
    """A stream with hot batches, as the survey of all of them notes it."""

    group: int
    uid: int
    size: int  # hot bytes
    oldest_ms: int  # append time of its first hot batch


class Candidate(msgspec.Struct, gc=False):
    """A stream chosen to be flushed, with its hot batches as they are now: contiguous and of one encoding."""

    group: int
    uid: int
    name: str
    content_type: str
    encoding: int
    first: bool  # nothing of it is in a pack yet
    batches: Sequence[HotBatch]


class SlicePlan(msgspec.Struct, gc=False):
    """A slice to be built: `path` and `content_type` only with the first of a stream."""

    group: int
    uid: int
    encoding: int
    batches: Sequence[HotBatch]
    path: str = ""
    content_type: str = ""


class PackPlan(msgspec.Struct, gc=False):
    """A pack to be written. Slices of one stream are in the order of the stream."""

    home_group: int
    slices: list[SlicePlan]
    size: int = 0  # bytes of payload

    @property
    def uids(self) -> set[int]:
        return {each.uid for each in self.slices}

    @property
    def groups(self) -> list[int]:
        return sorted({each.group for each in self.slices})


def choose(waiting: Iterable[Waiting], settings: FlushSettings, now_ms: int) -> list[Waiting]:
    """Those due, at most `STREAMS_MAX`: whose oldest byte is too old; and, while more than half of `from_bytes` would stay hot, the
    largest of the rest, by powers of two (few large slices keep the index small), the older first among them. Linear in their number."""
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
    """Fill packs of at most `pack_bytes_max`. A stream goes into one pack; what does not fit there waits for the next planning, so that
    no stream takes more than a pack before the others had theirs."""
    packs: list[PackPlan] = []
    for candidate in chosen:
        runs = cut_runs(candidate.batches, settings.slice_bytes_max)
        if not packs or not _fits(packs[-1], _size(runs[0]), settings):
            packs.append(PackPlan(candidate.group, []))
        pack = packs[-1]
        first = candidate.first
        for run in runs:
            size = _size(run)
            if pack.slices and not _fits(pack, size, settings):
                break
            named = (candidate.name, candidate.content_type) if first else ("", "")
            pack.slices.append(SlicePlan(candidate.group, candidate.uid, candidate.encoding, run, *named))
            pack.size += size
            first = False
    return packs


def cut_runs(batches: Sequence[HotBatch], bytes_max: int) -> list[Sequence[HotBatch]]:
    """Runs of whole batches without a hole, of at most `bytes_max` payload, or of one larger batch."""
    if run_end(batches, 0, len(batches)) < len(batches):
        runs: list[Sequence[HotBatch]] = []
        begin = 0
        while begin < len(batches):
            end = run_end(batches, begin, len(batches))
            runs += cut_runs(batches[begin:end], bytes_max)
            begin = end
        return runs
    if _size(batches) <= bytes_max:
        return [batches]
    runs = []
    begin = 0
    for end in range(1, len(batches) + 1):
        if end == len(batches) or batches[end].byte + len(batches[end].payload) - batches[begin].byte > bytes_max:
            runs.append(batches[begin:end])
            begin = end
    return runs


def _fits(pack: PackPlan, size: int, settings: FlushSettings) -> bool:
    return pack.size + size <= settings.pack_bytes_max and len(pack.slices) < SLICES_MAX


def _size(run: Sequence[HotBatch]) -> int:
    return run[-1].byte + len(run[-1].payload) - run[0].byte
