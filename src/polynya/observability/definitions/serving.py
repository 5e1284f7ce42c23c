"""Metrics of the listeners, of access control and of the audit log."""

from __future__ import annotations

from polynya.observability.metric import Metric

SERVING = (
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
    Metric("polynya_http2_connections_total", "counter", "HTTP/2 connections accepted."),
    Metric(
        "polynya_http2_streams_total",
        "counter",
        "Requests over HTTP/2. Each counts as an HTTP connection, too.",
    ),
    Metric(
        "polynya_http2_refused_total",
        "counter",
        "HTTP/2 connections closed because of their client: a flood of resets, of control frames, "
        "of tiny frames or of headers, a breach of the protocol, or unread responses.",
        ("reason",),
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
        "polynya_kafka_connections_dropped_total",
        "counter",
        "Connections of Kafka clients dropped before authentication, because more than a quarter "
        "of the allowed ones had not authenticated.",
    ),
    Metric(
        "polynya_kafka_connections_unauthenticated",
        "gauge",
        "Open connections of Kafka clients that have not authenticated.",
    ),
    Metric(
        "polynya_kafka_client_instances",
        "gauge",
        "Kafka clients that have asked which metrics they shall push, and have not gone.",
    ),
    Metric("polynya_kafka_client_pushes_total", "counter", "Pushes of metrics by Kafka clients."),
    Metric(
        "polynya_kafka_client_pushes_refused_total",
        "counter",
        "Pushes, and requests for what to push, that were refused: too early, too large, damaged, or "
        "of a subscription that has changed.",
    ),
    Metric(
        "polynya_kafka_client_points_dropped_total",
        "counter",
        "Pushed numbers that are not shown: not subscribed to, of a histogram, or beyond a limit.",
    ),
    Metric(
        "polynya_kafka_client_gauge",
        "gauge",
        "A gauge that a Kafka client pushed; the attributes of the number are further labels.",
        ("client_id", "client_instance_id", "metric"),
        merge="max",
    ),
    Metric(
        "polynya_kafka_client_counter_total",
        "counter",
        "A sum that a Kafka client pushed, since its first push here; with such labels, too.",
        ("client_id", "client_instance_id", "metric"),
    ),
    Metric(
        "polynya_kafka_fetch_sessions",
        "gauge",
        "Incremental fetch sessions of Kafka consumers.",
    ),
    Metric(
        "polynya_kafka_fetch_session_partitions",
        "gauge",
        "Partitions in the fetch sessions.",
    ),
    Metric(
        "polynya_kafka_fetch_session_evictions_total",
        "counter",
        "Fetch sessions that made room for newer ones; their consumers continue with full fetches.",
    ),
    Metric(
        "polynya_kafka_fetch_sessions_declined_total",
        "counter",
        "Fetch sessions that were not created because a limit was reached.",
    ),
    Metric(
        "polynya_group_lag",
        "gauge",
        "Records that a Kafka consumer group has not committed, by topic; up to 15 seconds old.",
        ("group", "topic"),
    ),
    Metric(
        "polynya_transactions_open",
        "gauge",
        "Transactions of Kafka clients that are open, or whose markers are on their way.",
    ),
    Metric(
        "polynya_stable_end_lag_seconds",
        "gauge",
        "Age of the oldest open transaction of a partition: readers of committed records wait for it.",
        merge="max",
    ),
    Metric(
        "polynya_transactions_expired_total",
        "counter",
        "Transactions aborted because their timeout was over.",
    ),
    Metric(
        "polynya_transaction_orphans_total",
        "counter",
        "Transactions that were open at a participant for too long, and ended as their coordinator "
        "answered. `known` is `no` if it did not know them: these were aborted.",
        ("known",),
    ),
    Metric(
        "polynya_append_all_transactions_total",
        "counter",
        "Requests to append to streams of several groups, all or nothing. `outcome` is `committed`, `aborted` "
        "(refused, repeated or too late) or `unknown`.",
        ("outcome",),
    ),
    Metric(
        "polynya_transaction_undecided_entries",
        "gauge",
        "Largest number of entries of a partition's index that were built while transactions were open "
        "and are not decided yet, or of aborted transactions that slices do not mark.",
        merge="max",
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
        "polynya_text_connections_dropped_total",
        "counter",
        "Connections of the text protocol dropped before `AUTH`, because more than a quarter of "
        "the allowed ones had not authenticated.",
    ),
    Metric(
        "polynya_text_connections_unauthenticated",
        "gauge",
        "Connections of the text protocol that have not authenticated.",
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
    Metric("polynya_access_short_tokens_total", "counter", "Short tokens minted for web pages."),
    Metric("polynya_audit_lines_total", "counter", "Audit log lines written."),
    Metric(
        "polynya_audit_lost_total",
        "counter",
        "Administrative operations missing from the audit log: the disk was full or too slow.",
    ),
)
