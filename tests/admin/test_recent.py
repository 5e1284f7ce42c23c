"""The figures of the last 24 hours: rates, gauges and quantiles of two samples, in a bounded ring."""

from __future__ import annotations

import asyncio
import math

import msgspec

from polynya.admin.recent import SERIES, NodeRecent, Recent, figures_of, quantile
from polynya.observability.metrics import Samples

BEFORE = {
    "polynya_http_appends_total": 10.0,
    "polynya_kafka_batches_total": 5.0,
    'polynya_http_responses_total{class="2xx"}': 100.0,
    'polynya_http_responses_total{class="5xx"}': 1.0,
    "polynya_turns_total": 4.0,
    "polynya_journal_write_seconds_total": 1.0,
}
AFTER = {
    **BEFORE,
    "polynya_http_appends_total": 40.0,
    "polynya_kafka_batches_total": 35.0,
    'polynya_http_responses_total{class="2xx"}': 160.0,
    'polynya_http_responses_total{class="5xx"}': 4.0,
    "polynya_turns_total": 8.0,
    "polynya_journal_write_seconds_total": 1.02,
    'polynya_group_lag{group="a",topic="t"}': 3.0,
    'polynya_group_lag{group="b",topic="t"}': 4.0,
}


def test_figures_of_two_samples() -> None:
    found = figures_of(BEFORE, AFTER, 60.0)
    assert set(found) == set(SERIES)
    assert (found["appends"], found["errors"], found["group_lag"]) == (1.0, 0.05, 7.0)
    assert found["responses"] == 63 / 60
    assert math.isclose(found["write_seconds"], 0.005)
    assert math.isnan(found["append_p99"]), "this node measured no latencies"
    restarted = figures_of(AFTER, BEFORE, 60.0)
    assert math.isnan(restarted["appends"]) and math.isnan(restarted["write_seconds"])


def test_quantiles_are_spread_within_a_bucket() -> None:
    buckets = [(0.001, 0.0), (0.01, 80.0), (0.1, 100.0), (math.inf, 100.0)]
    assert math.isclose(quantile(buckets, 0.5), 0.001 + 0.009 * 50 / 80)
    assert math.isclose(quantile(buckets, 0.9), 0.01 + 0.09 * 10 / 20)
    assert quantile([(0.001, 0.0), (math.inf, 5.0)], 0.99) == 0.001
    assert math.isnan(quantile([(0.001, 0.0)], 0.5)) and math.isnan(quantile([], 0.5))


def test_latencies_are_of_the_appends_since_the_last_row() -> None:
    def buckets(*counts: float) -> Samples:
        bounds = ("0.001", "0.01", "+Inf")
        key = 'polynya_http_append_seconds_bucket{{le="{}"}}'
        return {key.format(bound): count for bound, count in zip(bounds, counts, strict=True)}

    found = figures_of(buckets(1000, 1000, 1000), buckets(1000, 1010, 1010), 60.0)
    assert math.isclose(found["append_p50"], 0.001 + 0.009 / 2)


def test_the_ring_is_bounded_and_its_first_sample_makes_no_row() -> None:
    recent = Recent(rows_max=3)
    assert recent.shown()["series"]["appends"] == []
    for minute in range(6):
        recent.add(minute * 60_000, {"polynya_http_appends_total": 60.0 * minute})
    recent.add(60_000, {})  # the clock went back
    shown = recent.shown()
    assert shown["times_ms"] == [180_000, 240_000, 300_000]
    assert shown["series"]["appends"] == [1.0, 1.0, 1.0]
    assert shown["series"]["append_p50"] == [None, None, None]


def test_core_0_samples_and_other_cores_sample_nothing() -> None:
    asked: list[int] = []

    async def samples() -> Samples:
        asked.append(1)
        return {}

    async def run(core: int) -> bytes:
        node = NodeRecent(core, None, samples)
        task = asyncio.create_task(node.run(lambda: 0))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        return await node.answer()

    assert set(msgspec.json.decode(asyncio.run(run(0)))["series"]) == set(SERIES)
    assert asked == [1]
    asyncio.run(run(1))
    assert asked == [1]
