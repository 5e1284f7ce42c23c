"""Histograms of durations in seconds, with the buckets of `polynya.base.histogram`."""

from __future__ import annotations

from polynya.observability.metric import Metric


def _of(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "histogram", meaning, labels)


LATENCIES = (
    _of(
        "polynya_http_append_seconds",
        "HTTP appends, from the parsed request to its response, whatever the outcome.",
    ),
    _of(
        "polynya_http_first_byte_seconds",
        "HTTP reads without long-polls, from the parsed request to the first byte of the response.",
    ),
    _of("polynya_journal_fsync_seconds", "Journal writes, fsync included."),
    _of(
        "polynya_commit_seconds",
        "Turns of a group's leader, from their oldest proposal until their entries are committed, "
        "applied and answered.",
    ),
    _of(
        "polynya_forward_seconds",
        "Commands sent to the core that leads their group, from the request to its answer; "
        "appends of one pass of the loop count once.",
    ),
    _of(
        "polynya_store_request_seconds",
        "Requests to the object store that it answered; for a list, until its first key.",
        "request",
    ),
    _of("polynya_kafka_produce_seconds", "Produce requests, from their arrival to the answer."),
    _of(
        "polynya_kafka_fetch_seconds",
        "Fetch requests that did not wait for records, from their arrival to the answer.",
    ),
    _of(
        "polynya_tail_delivery_seconds",
        "New records at the end of a stream, from their publication on a core until all its live "
        "readers have them (`feed`: SSE is written, others are woken), and from a wake to the "
        "response (`long_poll`, `kafka`: a Fetch that waited).",
        "way",
    ),
    _of(
        "polynya_webhook_seconds",
        "Webhook requests, from a free slot to the receiver's answer or the timeout.",
    ),
)
