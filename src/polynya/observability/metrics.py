"""Metrics: the table of all metrics, sources read at scrape time, and the Prometheus text format.

Counters are plain ints at their point of use; a source copies them into samples at each scrape. A
sample's key is the metric's name, with labels in braces if it has any. The samples of all cores are
merged, so one scrape covers the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

Samples = dict[str, float]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(msgspec.Struct, frozen=True):
    """One row of the table. `merge` combines the values of a node's cores: "sum" or "max"."""

    name: str
    kind: str  # counter | gauge
    help: str
    labels: tuple[str, ...] = ()
    merge: str = "sum"

    @property
    def spelled_labels(self) -> str:
        return ", ".join(f"`{label}`" for label in self.labels)


METRICS = (
    Metric(
        "polynya_info",
        "gauge",
        "Always 1; labels give the server's version and source commit.",
        ("version", "commit"),
        "max",
    ),
    Metric("polynya_cores", "gauge", "Configured cores of the node.", merge="max"),
    Metric("polynya_cores_up", "gauge", "Cores that answered this scrape."),
    Metric(
        "polynya_check_failing",
        "gauge",
        "1 if the /readyz check fails or warns on any core; /readyz gives the message.",
        ("check",),
        "max",
    ),
    Metric(
        "polynya_core_start_seconds",
        "gauge",
        "Start time of the most recently started core, in seconds since 1970.",
        merge="max",
    ),
    Metric("polynya_process_resident_bytes", "gauge", "Resident memory of all cores."),
    Metric("polynya_process_cpu_seconds_total", "counter", "CPU time of all cores."),
    Metric(
        "polynya_process_open_files",
        "gauge",
        "Open file descriptors of all cores, connections included.",
    ),
    Metric(
        "polynya_gc_collections_total",
        "counter",
        "Full garbage collections of the interpreter; each pauses its core.",
    ),
    Metric(
        "polynya_loop_lag_seconds",
        "gauge",
        "Event-loop lag at the last tick of the slowest core.",
        merge="max",
    ),
    Metric(
        "polynya_loop_lag_max_seconds",
        "gauge",
        "Longest event-loop stall of any core since its start.",
        merge="max",
    ),
    Metric(
        "polynya_transport_connected",
        "gauge",
        "Connections between cores; cores times (cores - 1) in a healthy node.",
    ),
    Metric("polynya_transport_outstanding", "gauge", "Calls between cores in flight."),
    Metric(
        "polynya_transport_refused_total",
        "counter",
        "Calls between cores refused because too many were in flight.",
    ),
    Metric(
        "polynya_transport_failed_total",
        "counter",
        "Calls between cores that failed: a core died, hung or restarted.",
    ),
    Metric(
        "polynya_nodes_down",
        "gauge",
        "Other nodes of the cluster that are unreachable from this node.",
        merge="max",
    ),
    Metric("polynya_groups_led", "gauge", "Groups with their leader on this node, in a cluster."),
    Metric(
        "polynya_leads_followed_total",
        "counter",
        "Leadership transfers to the node that forwarded nearly all appends of the group.",
    ),
    Metric(
        "polynya_map_epoch",
        "gauge",
        "Epoch of the newest cluster map known to this node: the number of changes to members and "
        "placements.",
        merge="max",
    ),
    Metric("polynya_groups_moving", "gauge", "Groups moving to other nodes.", merge="max"),
    Metric(
        "polynya_placement_steps_total",
        "counter",
        "Steps by this node to move groups to their goal placement.",
    ),
    Metric(
        "polynya_replicas_lost",
        "gauge",
        "Groups with a replica on this node whose data is lost: replace the disk.",
    ),
    Metric(
        "polynya_reader_lag_entries",
        "gauge",
        "Largest lag in entries of a read replica, over the groups led by this node.",
        ("node",),
        "max",
    ),
    Metric(
        "polynya_reader_lag_seconds",
        "gauge",
        "Longest lag in seconds of a read replica behind committed entries, over the groups led "
        "by this node.",
        ("node",),
        "max",
    ),
    Metric(
        "polynya_zone_bytes_total",
        "counter",
        "Bytes from one zone to another or within one: `payload`, or `catalog` (commands, Raft "
        "and the rest). Of clients, those that name their zone.",
        ("from", "to", "kind"),
    ),
    Metric(
        "polynya_peers_connected",
        "gauge",
        "Connected cores of other nodes; other nodes times cores in a healthy cluster.",
    ),
    Metric(
        "polynya_peer_messages_dropped_total",
        "counter",
        "Group messages to other nodes that were dropped: a node is down or slow.",
    ),
    Metric(
        "polynya_forwarded_total", "counter", "Commands sent to the core that leads their group."
    ),
    Metric(
        "polynya_forward_retries_total",
        "counter",
        "Commands retried because the presumed leader was wrong or missing.",
    ),
    Metric(
        "polynya_forward_refused_total",
        "counter",
        "Commands refused because their group had no leader for too long.",
    ),
    Metric("polynya_turns_total", "counter", "Journal writes, each with one fsync."),
    Metric(
        "polynya_entries_total",
        "counter",
        "Entries written to the journal; divided by turns: the mean group commit batch.",
    ),
    Metric(
        "polynya_journal_write_seconds_total",
        "counter",
        "Time of these writes, fsync included; divided by turns: the mean wait of an append for "
        "the disk.",
    ),
    Metric(
        "polynya_disk_free_bytes",
        "gauge",
        "Free space on the disk of the data directory.",
        merge="max",
    ),
    Metric(
        "polynya_journal_full_total", "counter", "Journal writes refused because the disk was full."
    ),
    Metric(
        "polynya_overloaded_total",
        "counter",
        "Commands refused because too much data was in flight to the journal.",
    ),
    Metric("polynya_inflight_bytes", "gauge", "Payload in flight to the journal."),
    Metric(
        "polynya_journal_segments",
        "gauge",
        "Journal files; deleted once snapshots and flushes cover them.",
    ),
    Metric("polynya_journal_disk_bytes", "gauge", "Size of the journal files."),
    Metric("polynya_snapshots_total", "counter", "Group snapshots written, full or delta."),
    Metric(
        "polynya_snapshot_bytes_total",
        "counter",
        "Bytes of the group snapshots written, without merges.",
    ),
    Metric("polynya_snapshots_merged_total", "counter", "Group snapshots merged into others."),
    Metric(
        "polynya_http_responses_total", "counter", "HTTP responses by status class.", ("class",)
    ),
    Metric(
        "polynya_http_appends_total", "counter", "HTTP append requests, whatever their outcome."
    ),
    Metric("polynya_http_append_bytes_total", "counter", "Body bytes of HTTP append requests."),
    Metric("polynya_http_connections", "gauge", "Open HTTP connections."),
    Metric("polynya_http_connections_total", "counter", "HTTP connections accepted."),
    Metric(
        "polynya_http_connections_refused_total",
        "counter",
        "HTTP connections refused because there were too many.",
    ),
    Metric("polynya_http_timeouts_total", "counter", "Requests that did not arrive in time."),
    Metric(
        "polynya_http_stalled_total",
        "counter",
        "Connections closed because the client read nothing of its response for 30 seconds.",
    ),
    Metric("polynya_kafka_requests_total", "counter", "Requests of Kafka clients."),
    Metric(
        "polynya_kafka_malformed_total",
        "counter",
        "Kafka connections closed because of a request that is malformed or of a version that is "
        "not served.",
    ),
    Metric("polynya_kafka_batches_total", "counter", "Batches that Kafka producers wrote."),
    Metric("polynya_kafka_batch_bytes_total", "counter", "Bytes of these batches."),
    Metric("polynya_kafka_connections", "gauge", "Open connections of Kafka clients."),
    Metric("polynya_kafka_connections_total", "counter", "Connections of Kafka clients accepted."),
    Metric(
        "polynya_kafka_connections_refused_total",
        "counter",
        "Connections of Kafka clients refused because there were too many.",
    ),
    Metric(
        "polynya_group_lag",
        "gauge",
        "Records that a Kafka consumer group has not committed, by topic; up to 15 seconds old.",
        ("group", "topic"),
    ),
    Metric("polynya_http_long_polls_total", "counter", "Long-polls started."),
    Metric("polynya_http_sse_total", "counter", "SSE subscriptions started."),
    Metric(
        "polynya_http_sse_cut_total",
        "counter",
        "SSE subscriptions closed because the reader was too slow.",
    ),
    Metric("polynya_text_connections", "gauge", "Connections of the text protocol."),
    Metric(
        "polynya_text_connections_refused_total",
        "counter",
        "Connections of the text protocol over the limit.",
    ),
    Metric(
        "polynya_text_commands_total", "counter", "Commands of the text protocol.", ("command",)
    ),
    Metric(
        "polynya_text_errors_total",
        "counter",
        "Responses of the text protocol that begin with ERR.",
    ),
    Metric(
        "polynya_text_malformed_total",
        "counter",
        "Connections closed because a frame named an invalid length.",
    ),
    Metric(
        "polynya_text_timeouts_total",
        "counter",
        "Connections closed because a frame or a response stalled for 30 seconds.",
    ),
    Metric("polynya_access_denied_total", "counter", "Requests without a valid token."),
    Metric(
        "polynya_access_forbidden_total", "counter", "Requests that their token does not permit."
    ),
    Metric(
        "polynya_access_limited_total", "counter", "Requests over the rate limits of their token."
    ),
    Metric("polynya_audit_lines_total", "counter", "Audit log lines written."),
    Metric(
        "polynya_audit_lost_total",
        "counter",
        "Administrative operations missing from the audit log: the disk was full or too slow.",
    ),
    Metric(
        "polynya_streams",
        "gauge",
        "Streams, including evicted ones and deleted ones that forks still need.",
    ),
    Metric("polynya_streams_evicted", "gauge", "Streams whose state is in the object store."),
    Metric(
        "polynya_live_readers",
        "gauge",
        "Readers waiting for new records: SSE, long-polls, and other cores that follow a stream.",
    ),
    Metric(
        "polynya_streams_faulted",
        "gauge",
        "Streams quarantined because their recent data is damaged: appends are refused.",
    ),
    Metric(
        "polynya_stream_faulted",
        "gauge",
        "1 for each quarantined stream, at most 20 per core.",
        labels=("stream",),
        merge="max",
    ),
    Metric(
        "polynya_batches_repaired_total",
        "counter",
        "Batches damaged in memory and read again from the journal or another node.",
    ),
    Metric("polynya_hot_bytes", "gauge", "Payload in memory that is not flushed yet."),
    Metric(
        "polynya_hot_refused_total",
        "counter",
        "Appends refused because their group had too much unflushed data.",
    ),
    Metric(
        "polynya_outbox",
        "gauge",
        "Unacknowledged messages between groups (forks, releases of packs).",
    ),
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
    Metric("polynya_diskless_appends_total", "counter", "Appends that the writer of a core took."),
    Metric(
        "polynya_diskless_appends_waiting",
        "gauge",
        "Appends to diskless streams that are not answered yet.",
    ),
    Metric("polynya_diskless_bytes_waiting", "gauge", "Memory of these appends."),
    Metric("polynya_diskless_packs_total", "counter", "Packs of diskless streams stored."),
    Metric("polynya_diskless_pack_bytes_total", "counter", "Bytes of these packs."),
    Metric(
        "polynya_diskless_put_seconds_total",
        "counter",
        "Time in which packs were stored and their intents logged; divided by the packs: of one.",
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
        "Time from a commit's first proposal to its outcome; divided by the commits: of one.",
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
    Metric("polynya_merge_packs_total", "counter", "Packs of merged slices written."),
    Metric("polynya_merge_slices_total", "counter", "Small slices replaced by larger ones."),
    Metric(
        "polynya_merge_bytes_total",
        "counter",
        "Payload of merged slices; divided by flushed bytes: the write amplification.",
    ),
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
    Metric("polynya_state_copy_deltas_total", "counter", "Changes since copies, written there."),
    Metric("polynya_state_copy_delta_bytes_total", "counter", "Bytes of these changes."),
    Metric("polynya_state_copy_delta_failures_total", "counter", "Such writes that failed."),
    Metric("polynya_trims_total", "counter", "Trims of streams, by retention or on request."),
    Metric("polynya_trimmed_records_total", "counter", "Records removed by trims."),
    Metric("polynya_trimmed_bytes_total", "counter", "Payload removed by trims."),
    Metric("polynya_leased_streams", "gauge", "Streams of segments with one writer, led here."),
    Metric(
        "polynya_segment_rollovers_total",
        "counter",
        "Segments of leased streams that were closed at a limit, or on request.",
    ),
    Metric(
        "polynya_segment_takeovers_total",
        "counter",
        "Segments that a new leader closed, because they named another writer.",
    ),
    Metric(
        "polynya_segment_waits_refused_total",
        "counter",
        "Appends refused because too many waited for a rollover.",
    ),
    Metric(
        "polynya_retention_failures_total",
        "counter",
        "Retention trims that failed and will be retried.",
    ),
    Metric(
        "polynya_retention_round_seconds",
        "gauge",
        "Duration of the slowest core's last scan of all streams for retention.",
        merge="max",
    ),
    Metric("polynya_wakes_total", "counter", "Wakes issued by subscriptions."),
    Metric(
        "polynya_wakes_delivered_total", "counter", "Webhook requests accepted by the receiver."
    ),
    Metric("polynya_wakes_announced_total", "counter", "Wake events written to wake streams."),
    Metric(
        "polynya_wakes_failed_total",
        "counter",
        "Deliveries and announcements that failed and will be retried.",
    ),
    Metric("polynya_leases_expired_total", "counter", "Expired leases of subscriptions."),
    Metric(
        "polynya_subscription_faults_total",
        "counter",
        "Steps between groups that failed and will be retried.",
    ),
    Metric("polynya_table_rows", "gauge", "Rows of a table.", ("table",), "max"),
    Metric(
        "polynya_table_dead_rows",
        "gauge",
        "Rows of its NAME__dlq: records of which some value fits no column.",
        ("table",),
        "max",
    ),
    Metric("polynya_table_files", "gauge", "Live data files of a table.", ("table",), "max"),
    Metric("polynya_table_merges", "gauge", "Merges of a table's files.", ("table",), "max"),
    Metric(
        "polynya_table_files_merged",
        "gauge",
        "Files of a table that merges replaced.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_failing_ranges",
        "gauge",
        "Ranges that the last jobs could not read, and that are tried again.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_ranges_aside",
        "gauge",
        "Ranges that were set aside after three failures.",
        ("table",),
        "max",
    ),
    Metric("polynya_table_records_aside", "gauge", "Records in these ranges.", ("table",), "max"),
    Metric(
        "polynya_table_records_behind",
        "gauge",
        "Records that are not in the table yet.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_behind_seconds",
        "gauge",
        "Age of the oldest of them; not of derived tables.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_records_trimmed",
        "gauge",
        "Records that were trimmed before the table took them.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_records_ended",
        "gauge",
        "Records of streams that ended before the table took them.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_job_seconds",
        "gauge",
        "Duration of the last job, from its plan to its files.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_fields_without_column",
        "gauge",
        "Fields that found no room for a column.",
        ("table",),
        "max",
    ),
    Metric(
        "polynya_table_commit_time_seconds",
        "gauge",
        "Time of the last commit, in seconds since 1970.",
        ("table",),
        "max",
    ),
    Metric("polynya_sql_queries_total", "counter", "SQL queries accepted."),
    Metric("polynya_cache_hits_total", "counter", "Slices read from the block cache."),
    Metric("polynya_cache_misses_total", "counter", "Slices fetched from the object store."),
    Metric(
        "polynya_cache_fetched_bytes_total",
        "counter",
        "Bytes fetched from the object store for cache misses.",
    ),
    Metric("polynya_cache_bytes", "gauge", "Size of the block cache."),
)
BY_NAME = {metric.name: metric for metric in METRICS}


class Registry:
    """The metric sources of one core."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def add(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Add a source of samples. It is read once here, so that a name missing from the table
        fails at start. Raises KeyError."""
        for key in source():
            metric_of(key)
        self._sources.append(source)

    def read(self) -> Samples:
        samples: Samples = {}
        for source in self._sources:
            samples.update(source())
        return samples


def metric_of(key: str) -> Metric:
    """Return the table row for a sample's key. Raises KeyError."""
    name = key.partition("{")[0]
    if name not in BY_NAME:
        raise KeyError(f"{name} is not in the table of metrics")
    return BY_NAME[name]


def label(name: str, **labels: str) -> str:
    """Return the key of a labelled sample."""
    pairs = ",".join(f'{label_name}="{_escaped(value)}"' for label_name, value in labels.items())
    return f"{name}{{{pairs}}}"


def merge(cores: Iterable[Mapping[str, float]]) -> Samples:
    """Merge the samples of a node's cores."""
    merged: Samples = {}
    for samples in cores:
        for key, value in samples.items():
            if key not in merged:
                merged[key] = value
            elif metric_of(key).merge == "max":
                merged[key] = max(merged[key], value)
            else:
                merged[key] += value
    return merged


def render(samples: Mapping[str, float]) -> bytes:
    """Render the Prometheus text format 0.0.4, in table order."""
    by_metric: dict[str, list[str]] = {}
    for key, value in samples.items():
        by_metric.setdefault(metric_of(key).name, []).append(f"{key} {_number(value)}")
    lines: list[str] = []
    for metric in METRICS:
        rows = by_metric.get(metric.name)
        if rows:
            lines += [
                f"# HELP {metric.name} {metric.help}",
                f"# TYPE {metric.name} {metric.kind}",
                *rows,
            ]
    return ("\n".join(lines) + "\n").encode()


def _number(value: float) -> str:
    return (
        repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
