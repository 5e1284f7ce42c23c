"""Metrics of the object tier: flushes, evictions, packs, their upkeep and their cache."""

from __future__ import annotations

from polynya.observability.metric import Metric

OBJECTS = (
    Metric(
        "polynya_object_store_waiting",
        "gauge",
        "Cores still waiting for the object store since their start: nothing is flushed.",
    ),
    Metric(
        "polynya_object_store_failing_seconds",
        "gauge",
        "Longest time for which a core could not use the object store; 0 during the first 20 "
        "seconds.",
        merge="max",
    ),
    Metric(
        "polynya_store_requests_total",
        "counter",
        "Requests to the object store that it answered; `polynya cost` turns them into money.",
        ("work", "request"),
    ),
    Metric(
        "polynya_store_bytes_total",
        "counter",
        "Bytes of these requests, to the store (up) and from it (down).",
        ("work", "direction"),
    ),
    Metric("polynya_packs", "gauge", "Known packs in the object store."),
    Metric("polynya_flush_packs_total", "counter", "Packs flushed to the object store."),
    Metric("polynya_flush_slices_total", "counter", "Stream slices in flushed packs."),
    Metric("polynya_flush_bytes_total", "counter", "Payload in flushed packs."),
    Metric(
        "polynya_flush_stored_bytes_total",
        "counter",
        "Bytes of their slices in the store; divided by the payload: what compression leaves.",
    ),
    Metric("polynya_flush_failures_total", "counter", "Flushes abandoned, to be planned again."),
    Metric(
        "polynya_flush_refused_total",
        "counter",
        "Flushed slices rejected because the stream had changed in the meantime.",
    ),
    Metric(
        "polynya_index_slices",
        "gauge",
        "Slices in the indexes of all streams; each takes 25 to 80 bytes of memory.",
    ),
    Metric(
        "polynya_evict_streams_total", "counter", "Idle streams evicted from memory by this node."
    ),
    Metric("polynya_evict_blocks_total", "counter", "State blocks written by evictions."),
    Metric("polynya_evict_bytes_total", "counter", "Bytes of state in these blocks."),
    Metric(
        "polynya_evict_refused_total",
        "counter",
        "Streams not evicted because they had changed in the meantime.",
    ),
    Metric(
        "polynya_evict_failures_total",
        "counter",
        "State blocks abandoned: their streams stay in memory until a retry.",
    ),
    Metric(
        "polynya_state_loads_total",
        "counter",
        "States of evicted streams read from the object store.",
    ),
    Metric("polynya_state_load_seconds_total", "counter", "Time of these reads."),
    Metric("polynya_state_load_failures_total", "counter", "Failed reads of evicted states."),
    Metric("polynya_recalled_streams_total", "counter", "Evicted streams rehydrated on this node."),
    Metric(
        "polynya_rehydration_copies_total",
        "counter",
        "Reads of evicted streams served without rehydration.",
    ),
    Metric(
        "polynya_recall_refused_total",
        "counter",
        "Requests answered with 503 because a stream could not be rehydrated.",
    ),
)
DISKLESS = (
    Metric(
        "polynya_diskless_appends_total", "counter", "Appends accepted by the writer of a core."
    ),
    Metric(
        "polynya_diskless_appends_waiting",
        "gauge",
        "Appends to diskless streams that are not answered yet.",
    ),
    Metric("polynya_diskless_bytes_waiting", "gauge", "Memory of these appends."),
    Metric("polynya_diskless_packs_total", "counter", "Packs of diskless streams stored."),
    Metric("polynya_diskless_pack_bytes_total", "counter", "Bytes of these packs."),
    Metric(
        "polynya_diskless_payload_bytes_total",
        "counter",
        "Payload in these packs, before compression.",
    ),
    Metric(
        "polynya_diskless_put_seconds_total",
        "counter",
        "Time to store packs and log their intents; divided by packs: the mean.",
    ),
    Metric("polynya_diskless_puts_in_flight", "gauge", "Packs that are being stored, at most 4."),
    Metric(
        "polynya_diskless_failures_total",
        "counter",
        "Packs that could not be stored in 30 seconds; their appends got an error.",
    ),
    Metric(
        "polynya_diskless_refused_total",
        "counter",
        "Appends to diskless streams that got 503 because too many waited.",
    ),
    Metric("polynya_diskless_commits_total", "counter", "Commits of a pack in one group."),
    Metric(
        "polynya_diskless_commit_seconds_total",
        "counter",
        "Time from a commit's first proposal to its outcome; divided by commits: the mean.",
    ),
    Metric(
        "polynya_diskless_commit_repeats_total",
        "counter",
        "Proposals of a commit that were repeated, because a leader or its answer was missing.",
    ),
    Metric(
        "polynya_diskless_commits_abandoned_total",
        "counter",
        "Commits without an outcome for 30 seconds; their appends got an error.",
    ),
)
UPKEEP = (
    Metric("polynya_merge_packs_total", "counter", "Packs of merged slices written."),
    Metric("polynya_merge_slices_total", "counter", "Small slices replaced by larger ones."),
    Metric(
        "polynya_merge_bytes_total",
        "counter",
        "Payload of merged slices; divided by flushed bytes: the write amplification.",
    ),
    Metric("polynya_merge_stored_bytes_total", "counter", "Bytes of merged slices in the store."),
    Metric(
        "polynya_merge_failures_total",
        "counter",
        "Merges abandoned, to be planned again, and streams with unreadable slices.",
    ),
    Metric(
        "polynya_merge_refused_total",
        "counter",
        "Merged slices rejected because the stream had changed in the meantime.",
    ),
    Metric(
        "polynya_compaction_passes_total",
        "counter",
        "Passes of key compaction after which no key has two records.",
    ),
    Metric(
        "polynya_compaction_held_passes_total",
        "counter",
        "Passes that a fork, pages of the index or damage kept from some records.",
    ),
    Metric(
        "polynya_compaction_read_bytes_total", "counter", "Payload that key compaction looked at."
    ),
    Metric(
        "polynya_compaction_dropped_records_total",
        "counter",
        "Records that key compaction dropped.",
    ),
    Metric(
        "polynya_compaction_dropped_bytes_total", "counter", "Payload that key compaction dropped."
    ),
    Metric(
        "polynya_compaction_refused_total",
        "counter",
        "Compacted slices rejected because the stream had changed in the meantime.",
    ),
    Metric(
        "polynya_compaction_failures_total", "counter", "Passes abandoned, to be planned again."
    ),
    Metric(
        "polynya_compaction_damaged_slices_total",
        "counter",
        "Slices left as they are because a batch in them cannot be decoded; the log names them.",
    ),
    Metric(
        "polynya_compaction_streams_due", "gauge", "Streams that wait for a pass of key compaction."
    ),
    Metric(
        "polynya_compaction_dirty_ratio_max",
        "gauge",
        "Largest part of a waiting stream that no pass has compared.",
        merge="max",
    ),
    Metric(
        "polynya_compaction_overdue_seconds",
        "gauge",
        "Time for which the stream that waits longest has been due.",
        merge="max",
    ),
    Metric("polynya_pages_total", "counter", "Pages of stream indexes written to the store."),
    Metric("polynya_paged_slices_total", "counter", "Slices whose index entries are in pages."),
    Metric("polynya_collect_deleted_total", "counter", "Unreferenced packs deleted."),
    Metric("polynya_collect_orphans_total", "counter", "Orphaned objects found."),
    Metric(
        "polynya_collect_failures_total",
        "counter",
        "Collector passes that failed and will be retried.",
    ),
    Metric(
        "polynya_state_copies_total",
        "counter",
        "Copies of group states written to the object store.",
    ),
    Metric("polynya_state_copy_bytes_total", "counter", "Bytes of these copies."),
    Metric(
        "polynya_state_copy_failures_total", "counter", "Copies that failed and will be retried."
    ),
    Metric("polynya_state_copy_deltas_total", "counter", "Deltas to these copies written."),
    Metric("polynya_state_copy_delta_bytes_total", "counter", "Bytes of these changes."),
    Metric(
        "polynya_state_copy_delta_failures_total", "counter", "Deltas that could not be written."
    ),
)
CACHE = (
    Metric(
        "polynya_damaged_places",
        "gauge",
        "Slices and pages in the object store whose last read found damage; /readyz names the objects.",
    ),
    Metric(
        "polynya_damaged_reads_total",
        "counter",
        "Reads of slices and pages in the object store that found damage.",
    ),
    Metric("polynya_cache_hits_total", "counter", "Slices read from the block cache."),
    Metric("polynya_cache_misses_total", "counter", "Slices fetched from the object store."),
    Metric(
        "polynya_cache_fetched_bytes_total",
        "counter",
        "Bytes fetched from the object store for cache misses.",
    ),
    Metric("polynya_cache_bytes", "gauge", "Size of the block cache."),
)
