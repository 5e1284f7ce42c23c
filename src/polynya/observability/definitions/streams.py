"""Metrics of streams, and of the work that the node does for them unasked: trims, wakes, leases."""

from __future__ import annotations

from polynya.observability.metric import Metric

STREAMS = (
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
)
DUTIES = (
    Metric("polynya_trims_total", "counter", "Trims of streams, by retention or on request."),
    Metric("polynya_trimmed_records_total", "counter", "Records removed by trims."),
    Metric("polynya_trimmed_bytes_total", "counter", "Payload removed by trims."),
    Metric("polynya_leased_streams", "gauge", "Leased streams led by this node."),
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
        "polynya_work_lag_records",
        "gauge",
        "Records that a subscription has not acknowledged; of a worker group, those of its lane that "
        "is furthest behind. Up to 15 seconds old. The label is the group, else the id; "
        "in a cluster, each node shows the lanes that it leads: take the maximum.",
        ("subscription",),
        merge="max",
    ),
    Metric(
        "polynya_work_lanes",
        "gauge",
        "Lanes of a worker group that this node leads; 1 for another subscription.",
        ("subscription",),
    ),
    Metric(
        "polynya_work_leased_lanes",
        "gauge",
        "Lanes of them that a worker holds.",
        ("subscription",),
    ),
    Metric(
        "polynya_work_attempts",
        "gauge",
        "Failed attempts at the record that comes next, of the lane with the most.",
        ("subscription",),
        merge="max",
    ),
    Metric(
        "polynya_subscription_faults_total",
        "counter",
        "Steps between groups that failed and will be retried.",
    ),
)
