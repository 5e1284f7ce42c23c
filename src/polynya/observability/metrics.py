"""Metrics: the table of all metrics, sources read at scrape time, and the Prometheus text format.

Counters are plain ints at their point of use; a source copies them into samples at each scrape. A
sample's key is the metric's name, with labels in braces if it has any. The samples of all cores are
merged, so one scrape covers the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from polynya.base.histogram import Histogram
from polynya.observability.definitions.latencies import LATENCIES
from polynya.observability.definitions.node import JOURNAL, NODE
from polynya.observability.definitions.objects import CACHE, DISKLESS, OBJECTS, UPKEEP
from polynya.observability.definitions.reducers import REDUCERS
from polynya.observability.definitions.serving import SERVING
from polynya.observability.definitions.streams import DUTIES, STREAMS
from polynya.observability.definitions.tables import TABLES
from polynya.observability.histograms import SUFFIXES, Exemplars, HistogramSource
from polynya.observability.metric import Metric

Samples = dict[str, float]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
SECTIONS = (
    ("Node and cluster", NODE),
    ("Journal", JOURNAL),
    ("Listeners and access", SERVING),
    ("Streams", STREAMS),
    ("Object tier", OBJECTS),
    ("Diskless streams", DISKLESS),
    ("Upkeep of packs and states", UPKEEP),
    ("Duties", DUTIES),
    ("Tables and SQL", TABLES),
    ("Reducers", REDUCERS),
    ("Cache", CACHE),
    ("Latencies", LATENCIES),
)
METRICS = tuple(metric for _, metrics in SECTIONS for metric in metrics)
BY_NAME = {metric.name: metric for metric in METRICS}
_OF_SAMPLE = {
    metric.name + suffix: metric
    for metric in METRICS
    for suffix in (SUFFIXES if metric.kind == "histogram" else ("",))
}


class Registry:
    """The metric sources of one core."""

    def __init__(self) -> None:
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._histograms: list[HistogramSource] = []

    def add(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Add a source of samples. It is read once here, so that a name missing from the table
        fails at start. Raises KeyError."""
        for key in source():
            metric_of(key)
        self._sources.append(source)

    def add_histogram(self, name: str, histogram: Histogram, **labels: str) -> None:
        """Add a histogram of the table. Raises KeyError."""
        source = HistogramSource(name, histogram, _pairs(labels))
        self.add(source)
        self._histograms.append(source)

    def exemplars(self) -> Exemplars:
        """Return the exemplars of all histograms."""
        return {key: each for found in self._histograms for key, each in found.exemplars().items()}

    def read(self) -> Samples:
        samples: Samples = {}
        for source in self._sources:
            samples.update(source())
        return samples


def metric_of(key: str) -> Metric:
    """Return the table row for a sample's key. Raises KeyError."""
    name = key.partition("{")[0]
    if name not in _OF_SAMPLE:
        raise KeyError(f"{name} is not in the table of metrics")
    return _OF_SAMPLE[name]


def label(name: str, /, **labels: str) -> str:
    """Return the key of a labelled sample."""
    return f"{name}{{{_pairs(labels)}}}"


def labels_of(key: str) -> dict[str, str]:
    """Return the labels in a sample's key."""
    return {
        name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in _LABEL.findall(key.partition("{")[2])
    }


def merge(cores: Iterable[Mapping[str, float]]) -> Samples:
    """Merge the samples of a node's cores."""
    merged: Samples = {}
    for samples in cores:
        for key, value in samples.items():
            if key not in merged:
                merged[key] = value
            elif metric_of(key).merge == "max":
                merged[key] = max(merged[key], value)
            else:
                merged[key] += value
    return merged


def render(samples: Mapping[str, float]) -> bytes:
    """Render the Prometheus text format 0.0.4, in table order."""
    by_metric: dict[str, list[str]] = {}
    for key, value in samples.items():
        by_metric.setdefault(metric_of(key).name, []).append(f"{key} {_number(value)}")
    lines: list[str] = []
    for metric in METRICS:
        rows = by_metric.get(metric.name)
        if rows:
            lines += [
                f"# HELP {metric.name} {metric.help}",
                f"# TYPE {metric.name} {metric.kind}",
                *rows,
            ]
    return ("\n".join(lines) + "\n").encode()


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())


def _number(value: float) -> str:
    return (
        repr(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    )


def escaped(value: str) -> str:
    """Escape the value of a label."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
