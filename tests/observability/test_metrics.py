"""The table of metrics, merging, and the text format, read back by prometheus-client."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from polynya.observability.metrics import METRICS, Registry, label, merge, render
from polynya.observability.process import process_samples


def parsed(text: bytes) -> dict[str, float]:
    families = list(text_string_to_metric_families(text.decode()))
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_table_is_well_formed():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("polynya_")
        assert metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.kind in ("counter", "gauge", "histogram")
        assert metric.merge in ("sum", "max")
        assert metric.name.endswith("_seconds") or metric.kind != "histogram"
        bounded = metric.name == "polynya_stream_faulted"  # of 20 streams a core at most
        assert bounded or not {"stream", "path", "name"} & set(metric.labels), (
            "no labels that grow with the number of streams"
        )


def test_one_scrape_shows_the_node():
    zero = {
        "polynya_turns_total": 3,
        "polynya_loop_lag_seconds": 0.5,
        label("polynya_info", version="1"): 1,
    }
    one = {
        "polynya_turns_total": 4,
        "polynya_loop_lag_seconds": 0.25,
        label("polynya_info", version="1"): 1,
    }
    assert parsed(render(merge([zero, one]))) == {
        "polynya_turns_total[]": 7.0,
        "polynya_loop_lag_seconds[]": 0.5,
        "polynya_info[('version', '1')]": 1.0,
    }


def test_every_metric_has_its_help_and_type_once():
    samples = {
        metric.name + ("_count" if metric.kind == "histogram" else ""): 1 for metric in METRICS
    }
    text = render(samples).decode().splitlines()
    assert [line for line in text if line.startswith("# HELP")] == [
        f"# HELP {metric.name} {metric.help}" for metric in METRICS
    ]
    assert [line for line in text if line.startswith("# TYPE")] == [
        f"# TYPE {metric.name} {metric.kind}" for metric in METRICS
    ]


def test_what_is_not_in_the_table_is_found_at_start():
    with pytest.raises(KeyError, match="polynya_surprise"):
        Registry().add(lambda: {"polynya_surprise": 1})


@given(st.text())
def test_labels_are_escaped(value):
    text = render({label("polynya_info", version=value): 1})
    assert parsed(text) == {f"polynya_info{[('version', value)]}": 1.0}


def test_the_process_is_measured():
    samples = process_samples()
    assert samples["polynya_process_resident_bytes"] > 1 << 20
    assert samples["polynya_process_cpu_seconds_total"] > 0
    assert samples["polynya_process_open_files"] >= 3


def test_of_the_cores_the_one_with_the_oldest_transaction_counts() -> None:
    names = ("polynya_stable_end_lag_seconds", "polynya_transaction_undecided_entries")
    assert merge([dict.fromkeys(names, 3.0), dict.fromkeys(names, 5.0)]) == dict.fromkeys(
        names, 5.0
    )
