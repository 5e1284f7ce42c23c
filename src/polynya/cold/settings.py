"""Settings of the cold tier's workers."""

from __future__ import annotations

import msgspec

from polynya.base import limits

PACKS_SPARE = 32  # packs of a core beyond those that its bytes fill
PASSES = 8  # passes of the evictor per idle time
ZSTD_LEVEL = 3  # of slices that the flusher and the merger write


class FlushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for when and how a core flushes."""

    from_bytes: int = limits.FLUSH_BYTES  # a core flushes once it has this many hot bytes
    pack_bytes_max: int = limits.FLUSH_BYTES  # payload of one pack; one larger batch may exceed it
    slice_bytes_max: int = limits.SLICE_BYTES_MAX
    age_ms_max: int = limits.FLUSH_MAX_AGE_MS
    hot_bytes_max: int = limits.HOT_BYTES_PER_GROUP  # of a group: appends beyond it are refused
    interval_ms: int = limits.FLUSH_INTERVAL_MS  # 0: flush only on demand
    concurrency: int = limits.FLUSH_MAX_CONCURRENCY
    zstd_level: int = 0  # of the payload of slices; 0: stored as it is


class MergeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for how a core merges."""

    slice_bytes_max: int = limits.SLICE_BYTES_MAX  # payload of a merged slice
    # payload of a pack of merged slices, which is held in memory
    pack_bytes_max: int = limits.FLUSH_BYTES
    bytes_per_second: int = limits.MERGE_BYTES_PER_SECOND
    interval_ms: int = limits.MERGE_INTERVAL_MS  # between two scans of the indexes; 0: never
    # packs beyond those that the bytes fill, before small ones are emptied into larger ones
    packs_spare: int = PACKS_SPARE
    page_entries: int = limits.PAGE_ENTRIES  # of an index in one page; 0: no pages are written
    # slices given to the driver of a table's job stay unmerged for this time
    claim_rest_ms: int = 3_600_000
    zstd_level: int = 0  # of the payload of slices; 0: stored as it is


class EvictSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for when streams are idle and how they are grouped into blocks. Times in ms of log
    time."""

    after_ms: int = limits.EVICT_AFTER_MS  # 0: never evict
    block_streams: int = limits.EVICT_BLOCK_STREAMS
    block_bytes: int = limits.EVICT_BLOCK_BYTES
    state_bytes_max: int = limits.EVICT_STATE_BYTES_MAX
    # fewer streams of a group wait as long again, to share an object with others
    few: int = limits.EVICT_FEW
    interval_ms_max: int = limits.EVICT_INTERVAL_MS_MAX

    @property
    def interval_ms(self) -> int:
        return max(1, min(self.interval_ms_max, self.after_ms // PASSES))


class CollectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Times of the collector, in ms of log time."""

    interval_ms: int = 10_000
    grace_ms: int = 60_000  # condemned packs stay for readers that still use them
    snapshot_wait_ms: int = 60_000  # releases pending this long request snapshots
    # younger packs may still be in flight in the log of an earlier process
    settle_after_ms: int = 30_000
    orphan_ms: int = 3_600_000  # younger objects may still be logged
    sweep_every_ms: int = 3_600_000
