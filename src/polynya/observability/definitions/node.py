"""Metrics of the node's processes, of its cluster and of its journal."""

from __future__ import annotations

from polynya.observability.metric import Metric

NODE = (
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
        "polynya_loop_turn_max_seconds",
        "gauge",
        "Longest turn of any core's event loop since its start, in its own CPU time and to a tenth "
        "of a second: the core was silent meanwhile.",
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
        "and the rest). Client bytes count if the client names its zone.",
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
    Metric(
        "polynya_trace_spans_total",
        "counter",
        "Spans of traced requests that ended.",
    ),
    Metric(
        "polynya_trace_spans_dropped_total",
        "counter",
        "Spans that were not exported: the queue was full, a request had too many, or the collector "
        "did not take them.",
    ),
)
JOURNAL = (
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
)
