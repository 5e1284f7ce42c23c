"""Histograms: their buckets, their merging, both text formats read back, and exemplars."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from polynya.base.histogram import BOUNDS, TRACE_CHARACTERS_MAX, Histogram
from polynya.observability.metrics import METRICS, Registry, label, merge, render
from polynya.observability.open_metrics import is_asked, open_metrics, samples_of

NAME = "polynya_store_request_seconds"


def registry_of(*seconds: float) -> Registry:
    """The registry of a core that took so long for its requests."""
    registry, histogram = Registry(), Histogram()
    for each in seconds:
        histogram.observe(each)
    registry.add_histogram(NAME, histogram, request="put")
    return registry


def test_a_duration_counts_in_the_first_bucket_that_holds_it_and_in_all_later_ones() -> None:
    samples = registry_of(0.0, 0.0001, 0.2, 99.0).read()
    counts = {
        bound: samples[label(f"{NAME}_bucket", request="put", le=bound)]
        for bound in (*map(repr, BOUNDS), "+Inf")
    }
    assert counts["0.0001"] == counts["0.1"] == 2, "a bound is part of its bucket"
    assert counts["0.25"] == counts["10.0"] == 3
    assert counts["+Inf"] == samples[label(f"{NAME}_count", request="put")] == 4
    assert samples[label(f"{NAME}_sum", request="put")] == pytest.approx(99.2001)


def test_the_histograms_of_all_cores_are_one() -> None:
    one, two = registry_of(0.001, 0.3).read(), registry_of(0.3).read()
    text = render(merge([one, two])).decode()
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type) == (NAME, "histogram")
    found = {
        sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels
    }
    assert (found["0.001"], found["0.25"], found["0.5"], found["+Inf"]) == (1, 1, 3, 3)
    assert samples_of(text) == merge([one, two])


def test_an_unknown_histogram_is_found_at_start() -> None:
    with pytest.raises(KeyError, match="polynya_surprise"):
        Registry().add_histogram("polynya_surprise", Histogram())


def test_the_whole_table_is_valid_in_open_metrics() -> None:
    registry = Registry()
    for metric in METRICS:
        labels = dict.fromkeys(metric.labels, 'a\\b"c\nd')
        if metric.kind == "histogram":
            registry.add_histogram(metric.name, Histogram(), **labels)
        else:
            key = label(metric.name, **labels) if labels else metric.name
            registry.add(lambda key=key: {key: 1})
    samples = registry.read()
    text = open_metrics(render(samples), {}).decode()
    families = {family.name: family.type for family in open_metrics_families(text)}
    assert len(families) == len(METRICS)
    assert families["polynya_turns"] == "counter"
    assert families["polynya_http_connections"] == "gauge"
    assert families["polynya_http_connections_total"] == "unknown", "its short name is taken"
    assert samples_of(text) == samples


def test_a_bucket_shows_the_last_traced_duration() -> None:
    registry, histogram = Registry(), Histogram()
    registry.add_histogram("polynya_http_append_seconds", histogram)
    for seconds, trace in ((0.3, "aa"), (0.4, "bb"), (0.02, "cc")):
        histogram.observe(seconds)
        histogram.remember(seconds, "trace_id", trace)
    histogram.remember(0.02, "request_id", "x" * (TRACE_CHARACTERS_MAX + 1))
    text = open_metrics(render(registry.read()), registry.exemplars()).decode()
    (family,) = open_metrics_families(text)
    found = {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for sample in family.samples
        if sample.exemplar
    }
    assert found == {"0.5": ({"trace_id": "bb"}, 0.4), "0.025": ({"trace_id": "cc"}, 0.02)}
    assert samples_of(text) == registry.read()


@pytest.mark.parametrize(
    ("accept", "asked"),
    [
        ("", False),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text;version=1.0.0;q=0.5,text/plain;q=0.2", True),
        ("text/plain, application/openmetrics-text; version=1.0.0", True),
    ],
)
def test_only_a_client_that_names_the_format_gets_it(accept: str, asked: bool) -> None:
    assert is_asked(accept) is asked
