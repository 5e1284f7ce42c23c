"""Figures of `polynya top`: rates and quantiles between two scrapes of each node.

Samples are keyed as in the Prometheus text: the name of the metric, with labels in braces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from polynya.observability.metrics import labels_of

Samples = Mapping[str, float]
Buckets = dict[float, float]
"""The observations in each bucket, by its upper bound; not cumulative."""

_INFINITY = float("inf")
# rows of the latencies: the metric without `polynya_` and `_seconds`, and how it is shown
LATENCIES = {
    "http_append": "append",
    "journal_fsync": "fsync",
    "commit": "commit",
    "forward": "forward",
    "http_first_byte": "first byte",
    "kafka_produce": "produce",
    "kafka_fetch": "fetch",
    "tail_delivery": "delivery",
    "store_request": "store",
    "webhook": "webhook",
}


class Scrape(msgspec.Struct, frozen=True):
    """The samples of a node at a time, in seconds, or the reason why there are none."""

    node: str
    url: str
    at: float
    samples: Samples = {}
    reason: str = ""


class Latency(msgspec.Struct, frozen=True):
    """Observations a second, and quantiles in seconds; None without observations."""

    name: str
    rate: float
    p50: float | None
    p99: float | None


def node_figures(before: Scrape, after: Scrape) -> dict[str, Any]:
    """Return the figures of a node; of one that does not answer, only the reason."""
    found: dict[str, Any] = {"node": after.node, "url": after.url, "up": not after.reason}
    if after.reason:
        return {**found, "reason": after.reason}
    now = _values(after.samples)
    rates = _Rates(before, after)
    append, fsync = (_buckets(rates, name) for name in ("http_append", "journal_fsync"))
    return {
        **found,
        "cores": now("cores_up"),
        "cpu": rates.of("process_cpu_seconds_total"),
        "memory_bytes": now("process_resident_bytes"),
        "appends_per_second": rates.of("http_appends_total") + rates.of("kafka_batches_total"),
        "append_bytes_per_second": rates.of("http_append_bytes_total")
        + rates.of("kafka_batch_bytes_total"),
        "append_p50_seconds": quantile(append, 0.5),
        "append_p99_seconds": quantile(append, 0.99),
        "fsync_p99_seconds": quantile(fsync, 0.99),
        "streams": now("streams"),
        "live_readers": now("live_readers"),
        "connections": sum(now(f"{kind}_connections") for kind in ("http", "kafka", "text")),
        "groups_led": now("groups_led") if "polynya_groups_led" in after.samples else None,
        "unflushed_bytes": now("hot_bytes"),
        "store_requests_per_second": rates.of("store_requests_total"),
        "store_bytes_per_second": rates.of("store_bytes_total"),
        "failing": failing(after.samples),
    }


def latencies(pairs: Iterable[tuple[Scrape, Scrape]]) -> list[Latency]:
    """Return the latencies of all nodes together; of those with labels, by their values."""
    rates = [_Rates(before, after) for before, after in pairs if after.samples]
    found = []
    for metric, shown in LATENCIES.items():
        by_label: defaultdict[str, Buckets] = defaultdict(dict)
        seconds = max((each.seconds for each in rates), default=1.0)
        for each in rates:
            for label, buckets in each.histograms(metric).items():
                joined = by_label[label]
                for bound, count in buckets.items():
                    joined[bound] = joined.get(bound, 0.0) + count
        for label, buckets in sorted(by_label.items()):
            if count := sum(buckets.values()):
                name = f"{shown} {label}".strip()
                p50, p99 = quantile(buckets, 0.5), quantile(buckets, 0.99)
                found.append(Latency(name, count / seconds, p50, p99))
    return found


def quantile(buckets: Buckets, part: float) -> float | None:
    """Return a quantile as Prometheus does, linear inside of a bucket; the last bound for what is
    above it, None without observations."""
    rank, below, seen = part * sum(buckets.values()), 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count and seen + count >= rank:
            if bound == _INFINITY:
                return below
            return below + (bound - below) * max(0.0, rank - seen) / count
        seen += count
        below = below if bound == _INFINITY else bound
    return None


def failing(samples: Samples) -> list[str]:
    """Return the names of the checks that fail or warn."""
    return sorted(
        labels_of(key).get("check", "")
        for key, value in samples.items()
        if key.startswith("polynya_check_failing{") and value
    )


class _Rates:
    """The growth of a node's counters between two scrapes. A counter that is lower than before
    began at 0: its core has restarted."""

    def __init__(self, before: Scrape, after: Scrape) -> None:
        self.seconds = max(after.at - before.at, 1e-3)
        # a node that has just come back has no rates yet
        self._before = before.samples or after.samples
        self._after = after.samples

    def of(self, name: str) -> float:
        """Return the growth a second of a counter, over all its labels."""
        return sum(self._grown(key) for key in _keys(self._after, name)) / self.seconds

    def histograms(self, metric: str) -> dict[str, Buckets]:
        """Return the new observations of a histogram by its label, "" without one."""
        found: defaultdict[str, Buckets] = defaultdict(dict)
        cumulative: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for key in _keys(self._after, f"{metric}_seconds_bucket"):
            labels = labels_of(key)
            bound = float(labels.pop("le"))
            cumulative[" ".join(labels.values())].append((bound, self._grown(key)))
        for label, counts in cumulative.items():
            below = 0.0
            for bound, count in sorted(counts):
                found[label][bound] = max(0.0, count - below)
                below = count
        return found

    def _grown(self, key: str) -> float:
        after, before = self._after[key], self._before.get(key, 0.0)
        return after - before if after >= before else after


def _buckets(rates: _Rates, metric: str) -> Buckets:
    return rates.histograms(metric).get("", {})


def _keys(samples: Samples, name: str) -> list[str]:
    whole = f"polynya_{name}"
    return [key for key in samples if key.partition("{")[0] == whole]


def _values(samples: Samples) -> Any:
    return lambda name: samples.get(f"polynya_{name}", 0.0)
