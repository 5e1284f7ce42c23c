"""Metrics: the table of all metrics, sources read at scrape time, and the Prometheus text format.

Counters are plain ints at their point of use; a source copies them into samples at each scrape. A sample's key is the metric's name,
with labels in braces if it has any. The samples of all cores are merged, so one scrape covers the node.
"""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

Samples = dict[str, float]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STARTED = time.time()


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
        "polynya_info", "gauge", "1, with the version of the server, and the commit that it was built from.", ("version", "commit"), "max"
    ),
    Metric("polynya_cores", "gauge", "Cores that the node should have.", merge="max"),
    Metric("polynya_cores_up", "gauge", "Cores that answered this scrape."),
    Metric(
        "polynya_check_failing",
        "gauge",
        "1 where a check of /readyz has something to say, on any core; /readyz says what.",
        ("check",),
        "max",
    ),
    Metric("polynya_core_start_seconds", "gauge", "When the youngest core started, in seconds since 1970.", merge="max"),
    Metric("polynya_process_resident_bytes", "gauge", "Memory of all cores."),
    Metric("polynya_process_cpu_seconds_total", "counter", "CPU time of all cores."),
    Metric("polynya_process_open_files", "gauge", "Open descriptors of all cores, connections included."),
    Metric("polynya_gc_collections_total", "counter", "Full garbage collections of the interpreter; each stops its core."),
    Metric("polynya_loop_lag_seconds", "gauge", "How late the slowest core's loop was at its last beat.", merge="max"),
    Metric("polynya_loop_lag_max_seconds", "gauge", "The longest stall of any core's loop since its start.", merge="max"),
    Metric("polynya_transport_connected", "gauge", "Connections between cores; cores times (cores - 1) when all is well."),
    Metric("polynya_transport_outstanding", "gauge", "Calls between cores without an answer yet."),
    Metric("polynya_transport_refused_total", "counter", "Calls between cores that were refused because too much was under way."),
    Metric("polynya_transport_failed_total", "counter", "Calls between cores that failed: a core died, hung or restarted."),
    Metric("polynya_nodes_away", "gauge", "Other nodes of the cluster that this node does not hear.", merge="max"),
    Metric("polynya_groups_led", "gauge", "Groups that this node leads, of a cluster."),
    Metric(
        "polynya_leads_followed_total", "counter", "Leads that this node gave to the node by which nearly all appends of the group came."
    ),
    Metric(
        "polynya_map_epoch",
        "gauge",
        "Changes of who belongs to the cluster and of where groups are, as far as this node knows.",
        merge="max",
    ),
    Metric("polynya_groups_moving", "gauge", "Groups on their way to other nodes.", merge="max"),
    Metric("polynya_placement_steps_total", "counter", "Steps that this node took to bring groups where they are to be."),
    Metric("polynya_replicas_lost", "gauge", "Groups that count on a replica here whose data was lost: replace the disk."),
    Metric(
        "polynya_reader_lag_entries",
        "gauge",
        "The most entries that a read replica lacks of a group which this node leads.",
        ("node",),
        "max",
    ),
    Metric(
        "polynya_reader_lag_seconds",
        "gauge",
        "For how long a read replica has lacked what was committed in a group which this node leads.",
        ("node",),
        "max",
    ),
    Metric(
        "polynya_peers_connected",
        "gauge",
        "Cores of other nodes that this node's cores hear: the other nodes times cores when all is well.",
    ),
    Metric(
        "polynya_peer_messages_dropped_total", "counter", "Messages of groups to other nodes that were dropped: a node is away, or slow."
    ),
    Metric("polynya_forwarded_total", "counter", "Commands sent to the core that leads their group."),
    Metric(
        "polynya_forward_retries_total", "counter", "Commands that found another leader than was thought, or none, and were sent again."
    ),
    Metric("polynya_forward_refused_total", "counter", "Commands refused because their group had no leader for too long."),
    Metric("polynya_turns_total", "counter", "Journal writes, each with one fsync."),
    Metric("polynya_entries_total", "counter", "Entries written to the journal; over the turns: how well group commit batches."),
    Metric(
        "polynya_journal_write_seconds_total",
        "counter",
        "Time that they took, fsync included; over the turns: how long an append waits for the disk.",
    ),
    Metric("polynya_disk_free_bytes", "gauge", "Free on the disk of the data folder.", merge="max"),
    Metric("polynya_journal_full_total", "counter", "Journal writes refused because the disk was full."),
    Metric("polynya_overloaded_total", "counter", "Commands refused because too much was in flight to the journal."),
    Metric("polynya_inflight_bytes", "gauge", "Payload on its way to the journal."),
    Metric("polynya_journal_segments", "gauge", "Files of the journal; they go when snapshots and flushes have covered them."),
    Metric("polynya_journal_disk_bytes", "gauge", "Size of those files."),
    Metric("polynya_snapshots_total", "counter", "Group snapshots written, whole or what changed."),
    Metric("polynya_snapshot_bytes_total", "counter", "Bytes of the group snapshots written; merging them is not counted."),
    Metric("polynya_snapshots_merged_total", "counter", "Group snapshots that were merged into others."),
    Metric("polynya_http_responses_total", "counter", "Answers by status class.", ("class",)),
    Metric("polynya_http_appends_total", "counter", "Appends asked for over HTTP, whatever became of them."),
    Metric("polynya_http_append_bytes_total", "counter", "Bytes of their bodies."),
    Metric("polynya_http_connections", "gauge", "Open HTTP connections."),
    Metric("polynya_http_connections_total", "counter", "HTTP connections accepted."),
    Metric("polynya_http_connections_refused_total", "counter", "HTTP connections refused because there were too many."),
    Metric("polynya_http_timeouts_total", "counter", "Requests that did not arrive in time."),
    Metric("polynya_http_stalled_total", "counter", "Connections cut because the client took nothing of its answer for half a minute."),
    Metric("polynya_http_long_polls_total", "counter", "Long-polls begun."),
    Metric("polynya_http_sse_total", "counter", "SSE subscriptions begun."),
    Metric("polynya_http_sse_cut_total", "counter", "SSE subscriptions ended because the reader was slow."),
    Metric("polynya_access_denied_total", "counter", "Requests without a valid token."),
    Metric("polynya_access_forbidden_total", "counter", "Requests for what their token does not allow."),
    Metric("polynya_access_limited_total", "counter", "Requests over the limits of their token."),
    Metric("polynya_audit_lines_total", "counter", "Lines of the audit log written."),
    Metric("polynya_audit_lost_total", "counter", "Administrative acts without a line in the audit log: the disk was full or too slow."),
    Metric("polynya_streams", "gauge", "Streams, deleted ones that forks still need and evicted ones included."),
    Metric("polynya_streams_evicted", "gauge", "Those of them whose states are in the object store."),
    Metric("polynya_live_readers", "gauge", "Readers that wait for new records: SSE, long-polls, and other cores that follow a stream."),
    Metric("polynya_streams_faulted", "gauge", "Streams that are set aside because their recent data is damaged: they take no appends."),
    Metric("polynya_stream_faulted", "gauge", "1 for each of them, 20 of a core at most.", labels=("stream",), merge="max"),
    Metric("polynya_batches_repaired_total", "counter", "Batches damaged in memory that were read again from the journal or another node."),
    Metric("polynya_hot_bytes", "gauge", "Payload in memory that is not flushed yet."),
    Metric("polynya_hot_refused_total", "counter", "Appends refused because a group had too much that was not flushed yet."),
    Metric("polynya_outbox", "gauge", "Messages between groups that are not confirmed yet (forks, releases of packs)."),
    Metric("polynya_object_store_waiting", "gauge", "Cores that wait for the object store since their start: nothing is moved there."),
    Metric(
        "polynya_object_store_failing_seconds",
        "gauge",
        "For how long the object store could not be used, on the core where that is longest; 0 until it has lasted 20 seconds.",
        merge="max",
    ),
    Metric("polynya_packs", "gauge", "Packs in the object store that are known."),
    Metric("polynya_flush_packs_total", "counter", "Packs flushed to the object store."),
    Metric("polynya_flush_slices_total", "counter", "Slices of streams in them."),
    Metric("polynya_flush_bytes_total", "counter", "Payload in them."),
    Metric("polynya_flush_failures_total", "counter", "Packs given up, to be planned again."),
    Metric("polynya_flush_refused_total", "counter", "Slices that were not taken because the stream had changed meanwhile."),
    Metric("polynya_index_slices", "gauge", "Slices in the indexes of all streams; each costs 52 bytes of memory."),
    Metric("polynya_evict_streams_total", "counter", "Idle streams whose states left the memory, by this node's decision."),
    Metric("polynya_evict_blocks_total", "counter", "Objects with states written."),
    Metric("polynya_evict_bytes_total", "counter", "States in them."),
    Metric("polynya_evict_refused_total", "counter", "Streams that were not evicted because they had changed meanwhile."),
    Metric("polynya_evict_failures_total", "counter", "Objects with states given up: the streams stay in memory until a later try."),
    Metric("polynya_state_loads_total", "counter", "States of evicted streams read from the object store."),
    Metric("polynya_state_load_seconds_total", "counter", "Time that took."),
    Metric("polynya_state_load_failures_total", "counter", "Of those, such as failed."),
    Metric("polynya_recalled_streams_total", "counter", "Evicted streams that came back into the memory here."),
    Metric("polynya_recall_copies_total", "counter", "Reads of evicted streams that were answered without their coming back."),
    Metric("polynya_recall_refused_total", "counter", "Requests answered with 503 because a stream could not come back."),
    Metric("polynya_merge_packs_total", "counter", "Packs of merged slices written."),
    Metric("polynya_merge_slices_total", "counter", "Small slices that were replaced by larger ones."),
    Metric("polynya_merge_bytes_total", "counter", "Payload in them; over the flushed bytes: how often a byte is written again."),
    Metric("polynya_merge_failures_total", "counter", "Merges given up, to be planned again, and streams with slices that cannot be read."),
    Metric("polynya_merge_refused_total", "counter", "Merged slices that were not taken because the stream had changed meanwhile."),
    Metric("polynya_collect_deleted_total", "counter", "Packs deleted because nobody needed them."),
    Metric("polynya_collect_orphans_total", "counter", "Objects found that nobody knows."),
    Metric("polynya_collect_failures_total", "counter", "Passes of the collector that failed, to be repeated."),
    Metric("polynya_state_copies_total", "counter", "Copies of groups' states that were put into the object store."),
    Metric("polynya_state_copy_bytes_total", "counter", "Their bytes."),
    Metric("polynya_state_copy_failures_total", "counter", "Copies that failed, to be repeated."),
    Metric("polynya_trims_total", "counter", "Trims of streams, by retention or by hand."),
    Metric("polynya_trimmed_records_total", "counter", "Records that they made unreadable."),
    Metric("polynya_trimmed_bytes_total", "counter", "Payload of those records."),
    Metric("polynya_retention_failures_total", "counter", "Trims by retention that failed, to be tried again."),
    Metric("polynya_retention_round_seconds", "gauge", "How long the slowest core's last look at all streams took.", merge="max"),
    Metric("polynya_wakes_total", "counter", "Wakes issued by subscriptions."),
    Metric("polynya_wakes_delivered_total", "counter", "Webhook requests that the receiver took."),
    Metric("polynya_wakes_announced_total", "counter", "Wake events written to wake streams."),
    Metric("polynya_wakes_failed_total", "counter", "Deliveries and announcements that failed, to be tried again."),
    Metric("polynya_leases_expired_total", "counter", "Leases of subscriptions that ran out."),
    Metric("polynya_subscription_faults_total", "counter", "Steps between groups that failed, to be repeated."),
    Metric("polynya_sql_questions_total", "counter", "Questions to tables that were taken on."),
    Metric("polynya_cache_hits_total", "counter", "Slices read from the block cache."),
    Metric("polynya_cache_misses_total", "counter", "Slices that had to be fetched from the object store."),
    Metric("polynya_cache_fetched_bytes_total", "counter", "Bytes fetched for them."),
    Metric("polynya_cache_bytes", "gauge", "Size of the block cache."),
)
BY_NAME = {metric.name: metric for metric in METRICS}


class Registry:
    """The metric sources of one core."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def add(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Add a source of samples. It is read once here, so that a name missing from the table fails at start. Raises KeyError."""
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
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *rows]
    return ("\n".join(lines) + "\n").encode()


def process_samples() -> Samples:
    """Return samples about this process from the operating system and the interpreter."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    samples: Samples = {
        "polynya_process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "polynya_gc_collections_total": gc.get_stats()[2]["collections"],
        "polynya_core_start_seconds": round(_STARTED, 3),
    }
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm", encoding="ascii") as file:
            samples["polynya_process_resident_bytes"] = int(file.read().split()[1]) * resource.getpagesize()
        samples["polynya_process_open_files"] = len(os.listdir("/proc/self/fd"))
    return samples


def _number(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
