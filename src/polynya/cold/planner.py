"""What goes into the next packs. Pure: candidates, settings and the time in, plans out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from polynya.base import limits
from polynya.stream.model import HotBatch


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When and how a core flushes."""

    from_bytes: int = limits.FLUSH_BYTES  # hot bytes of the core from which on it flushes
    pack_bytes_max: int = limits.FLUSH_BYTES  # payload of one pack, or one batch if that is larger
    slice_bytes_max: int = limits.SLICE_BYTES_MAX
    age_ms_max: int = limits.FLUSH_MAX_AGE_MS
    interval_ms: int = limits.FLUSH_INTERVAL_MS  # 0: only on demand
    concurrency: int = limits.FLUSH_MAX_CONCURRENCY


class Candidate(msgspec.Struct, gc=False):
    """A stream with hot batches, as it was when planning began. `batches` are contiguous and of one encoding."""

    group: int
    uid: int
    name: str
    content_type: str
    encoding: int
    first: bool  # nothing of it is in a pack yet
    batches: Sequence[HotBatch]

    @property
    def size(self) -> int:
        """Bytes of payload."""
        last = self.batches[-1]
        return last.byte + len(last.payload) - self.batches[0].byte


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


def choose(candidates: Iterable[Candidate], settings: FlushSettings, now_ms: int) -> list[Candidate]:
    """Those due: whose oldest byte is too old; and, while more than half of `from_bytes` would stay hot, the largest of the rest (few
    large slices keep the index small), the older first among equals."""
    sized = [(candidate.size, candidate) for candidate in candidates]
    total = sum(size for size, _ in sized)
    aged = [each for each in sized if each[1].batches[0].time_ms + settings.age_ms_max <= now_ms]
    rest = [each for each in sized if each[1].batches[0].time_ms + settings.age_ms_max > now_ms]
    chosen = aged
    if total >= settings.from_bytes:
        left = total - sum(size for size, _ in aged)
        rest.sort(key=lambda each: (-each[0], each[1].batches[0].time_ms))
        for each in rest:
            if left <= settings.from_bytes // 2:
                break
            left -= each[0]
            chosen.append(each)
    return [candidate for _, candidate in chosen]


def plan_packs(chosen: Iterable[Candidate], settings: FlushSettings) -> list[PackPlan]:
    """Fill packs of at most `pack_bytes_max`. A stream goes into one pack; what does not fit there waits for the next planning, so that
    no stream takes more than a pack before the others had theirs."""
    packs: list[PackPlan] = []
    for candidate in chosen:
        runs = cut_runs(candidate.batches, settings.slice_bytes_max)
        pack = packs[-1] if packs and packs[-1].size + _size(runs[0]) <= settings.pack_bytes_max else None
        if pack is None:
            pack = PackPlan(candidate.group, [])
            packs.append(pack)
        first = candidate.first
        for run in runs:
            size = _size(run)
            if pack.slices and pack.size + size > settings.pack_bytes_max:
                break
            named = (candidate.name, candidate.content_type) if first else ("", "")
            pack.slices.append(SlicePlan(candidate.group, candidate.uid, candidate.encoding, run, *named))
            pack.size += size
            first = False
    return packs


def cut_runs(batches: Sequence[HotBatch], bytes_max: int) -> list[Sequence[HotBatch]]:
    """Runs of whole batches of at most `bytes_max` payload, or of one larger batch."""
    runs = []
    begin = 0
    for end in range(1, len(batches) + 1):
        if end == len(batches) or batches[end].byte + len(batches[end].payload) - batches[begin].byte > bytes_max:
            runs.append(batches[begin:end])
            begin = end
    return runs


def _size(run: Sequence[HotBatch]) -> int:
    return run[-1].byte + len(run[-1].payload) - run[0].byte
