"""Metrics of reducers."""

from __future__ import annotations

from polynya.observability.metric import Metric

REDUCERS = (
    Metric(
        "polynya_reducer_faults",
        "gauge",
        "Streams on which a reducer is faulted, as it cannot take their records.",
        ("reducer",),
        "max",
    ),
    Metric(
        "polynya_reducer_stopped",
        "gauge",
        "1 if a reducer is stopped, as it computed two states of the same records, else 0.",
        ("reducer",),
        "max",
    ),
    Metric("polynya_reducer_publishes_total", "counter", "States that reducers published."),
    Metric("polynya_reducer_publish_bytes_total", "counter", "Bytes of these states."),
    Metric("polynya_reducer_states_total", "counter", "States that the node computed for readers."),
)
