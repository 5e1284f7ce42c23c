"""The table of metrics, merging, and the text format, read back by prometheus-client."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from polynya.node import metrics
from polynya.node.metrics import METRICS, Histogram, Metric, Registry, label, merge, process_samples, render


def parsed(text: bytes) -> dict[str, float]:
    families = list(text_string_to_metric_families(text.decode()))
    return {sample.name + str(sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}


def test_the_table_is_well_formed():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("polynya_")
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind in ("counter", "gauge", "histogram") and metric.merge in ("sum", "max")
        assert not {"stream", "path", "name"} & set(metric.labels), "no labels that grow with the number of streams"


def test_one_scrape_shows_the_node():
    zero = {"polynya_turns_total": 3, "polynya_loop_lag_seconds": 0.5, label("polynya_info", version="1"): 1}
    one = {"polynya_turns_total": 4, "polynya_loop_lag_seconds": 0.25, label("polynya_info", version="1"): 1}
    assert parsed(render(merge([zero, one]))) == {
        "polynya_turns_total[]": 7.0,
        "polynya_loop_lag_seconds[]": 0.5,
        "polynya_info[('version', '1')]": 1.0,
    }


def test_every_metric_has_its_help_and_type_once():
    text = render({metric.name: 1 for metric in METRICS}).decode().splitlines()
    assert [line for line in text if line.startswith("# HELP")] == [f"# HELP {metric.name} {metric.help}" for metric in METRICS]
    assert [line for line in text if line.startswith("# TYPE")] == [f"# TYPE {metric.name} {metric.kind}" for metric in METRICS]


def test_what_is_not_in_the_table_is_found_at_start():
    with pytest.raises(KeyError, match="polynya_surprise"):
        Registry().add(lambda: {"polynya_surprise": 1})


@given(st.lists(st.floats(0, 100, allow_nan=False), max_size=50))
def test_a_histogram_counts_like_a_list(values):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    samples = histogram.samples("x")
    for bound in (*histogram.bounds, math.inf):
        key = f'x_bucket{{le="{"+Inf" if bound == math.inf else f"{bound:g}"}"}}'
        assert samples[key] == sum(value <= bound for value in values)
    assert samples["x_count"] == len(values)
    assert samples["x_sum"] == pytest.approx(sum(values))


def test_a_histogram_is_understood_and_merges(monkeypatch):
    row = Metric("polynya_x_seconds", "histogram", "A histogram.")
    monkeypatch.setattr(metrics, "METRICS", (row,))
    monkeypatch.setattr(metrics, "BY_NAME", {row.name: row})
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.5, 5.0):
        histogram.observe(value)
    samples = histogram.samples(row.name)
    got = parsed(render(merge([samples, samples])))
    assert got["polynya_x_seconds_bucket[('le', '0.1')]"] == 2
    assert got["polynya_x_seconds_bucket[('le', '+Inf')]"] == 6
    assert got["polynya_x_seconds_sum[]"] == pytest.approx(11.1)


@given(st.text())
def test_labels_are_escaped(value):
    text = render({label("polynya_info", version=value): 1})
    assert parsed(text) == {f"polynya_info{[('version', value)]}": 1.0}


def test_the_process_is_measured():
    samples = process_samples()
    assert samples["polynya_process_resident_bytes"] > 1 << 20
    assert samples["polynya_process_cpu_seconds_total"] > 0
    assert samples["polynya_process_open_files"] >= 3
