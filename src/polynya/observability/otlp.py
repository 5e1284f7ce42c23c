"""Metrics over OTLP, for the extra `polynya[otel]`: samples as OpenTelemetry's data points.

The variables of OpenTelemetry configure it, and the traces of `otlp_traces`: an endpoint turns it
on, and the exporter itself reads headers, certificates, compression and the timeout. The names of
metrics are those of Prometheus.
"""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polynya import __version__
from polynya.base.histogram import BOUNDS
from polynya.observability.metric import Metric
from polynya.observability.metrics import METRICS, Samples, labels_of, metric_of

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"  # milliseconds
INTERVAL_SECONDS = 60.0  # OpenTelemetry's default
INTERVAL_SECONDS_MIN = 1.0
DELAY = "OTEL_BSP_SCHEDULE_DELAY"  # milliseconds between two exports of spans
DELAY_SECONDS = 5.0  # OpenTelemetry's default
DELAY_SECONDS_MIN = 0.1
Environment = Mapping[str, str]
_STARTED = "polynya_core_start_seconds"


class ExportFailed(Exception):
    """The collector did not take the metrics or spans."""


def endpoint_variable(environment: Environment, signal: str = "METRICS") -> str:
    """Return the variable that names a collector for METRICS or TRACES; "" if none does, or they
    are turned off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() == "none":
        return ""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next((name for name in names if environment.get(name, "").strip()), "")


def interval_of(environment: Environment) -> float:
    """Return the seconds between two exports of metrics. A value that is no number is ignored, as
    OpenTelemetry has it."""
    return max(INTERVAL_SECONDS_MIN, _seconds_in(environment, INTERVAL, INTERVAL_SECONDS))


def pause_of(environment: Environment) -> float:
    """Return the seconds between two exports of spans."""
    return max(DELAY_SECONDS_MIN, _seconds_in(environment, DELAY, DELAY_SECONDS))


def _seconds_in(environment: Environment, name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    return float(text) / 1000 if re.fullmatch(r"[0-9]{1,12}", text) else default


def missing(variable: str) -> str:
    """Return the message for an endpoint without the extra."""
    return (
        f"{variable} is set, but OpenTelemetry is missing: install the extra polynya[otel] (in the "
        "checkout: pip install '.[otel]')"
    )


def unusable(error: Exception) -> str:
    """Return the message for variables that the exporter refuses."""
    return f"the variables of OpenTelemetry (OTEL_…) cannot be used: {error}"


def quiet() -> None:
    """Keep the exporters' own log lines off: a failure is reported by `export`."""
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    logging.getLogger("opentelemetry").propagate = False


def resource_of(cluster: str, node: int) -> Any:
    """Return what the node is called, with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    named = {
        "service.name": "polynya",
        "service.version": __version__,
        "service.namespace": cluster,
        "service.instance.id": f"{cluster}/{node}",
    }
    return Resource({**named, **OTELResourceDetector().detect().attributes})


class Exporter:
    """Sends the samples of a node to a collector. `cluster` and `node` name the node."""

    def __init__(self, cluster: str, node: int) -> None:
        """Create the exporter by the process's environment. Raises ImportError without the
        extra."""
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        quiet()
        self._exporter = OTLPMetricExporter()
        self._resource = resource_of(cluster, node)

    def export(self, samples: Samples) -> None:
        """Send the samples; it blocks. Raises ExportFailed."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = metrics_data(samples, self._resource, time.time_ns())
        try:
            result = self._exporter.export(data)
        except Exception as error:
            raise ExportFailed(f"{type(error).__name__}: {error}") from error
        if result is not MetricExportResult.SUCCESS:
            raise ExportFailed("the collector did not take the metrics, or cannot be reached")

    def close(self) -> None:
        """End the retries of an export in progress; none follows."""
        self._exporter.shutdown()


def metrics_data(samples: Samples, resource: Any, now_ns: int) -> MetricsData:
    """Return the samples as OpenTelemetry's data points. Counters count since the youngest core's
    start."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    times = int(samples.get(_STARTED, 0.0) * 1e9), now_ns
    by_metric: defaultdict[str, Samples] = defaultdict(dict)
    for key, value in samples.items():
        by_metric[metric_of(key).name][key] = value
    found = [
        _metric(metric, by_metric[metric.name], times)
        for metric in METRICS
        if metric.name in by_metric
    ]
    scope = ScopeMetrics(InstrumentationScope("polynya", __version__), found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(metric: Metric, samples: Samples, times: tuple[int, int]) -> Any:
    from opentelemetry.sdk.metrics import export

    cumulative = export.AggregationTemporality.CUMULATIVE
    unit = "s" if "_seconds" in metric.name else "By" if "_bytes" in metric.name else "1"
    if metric.kind == "histogram":
        data: Any = export.Histogram(_histogram_points(metric.name, samples, times), cumulative)
    else:
        points = [
            export.NumberDataPoint(labels_of(key), *times, value) for key, value in samples.items()
        ]
        is_counter = metric.kind == "counter"
        data = export.Sum(points, cumulative, True) if is_counter else export.Gauge(points)
    return export.Metric(metric.name, metric.help, unit, data)


def _histogram_points(name: str, samples: Samples, times: tuple[int, int]) -> list[Any]:
    """Return a point for each combination of labels."""
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    below: dict[tuple[tuple[str, str], ...], float] = {}
    counts: defaultdict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for key, value in samples.items():
        labels = labels_of(key)
        labels.pop("le", None)
        point = tuple(labels.items())
        if key.startswith(f"{name}_bucket"):
            counts[point].append(int(value - below.get(point, 0.0)))
            below[point] = value
        elif key.startswith(f"{name}_sum"):
            sums[point] = value
    unknown: Any = None  # the least and the greatest, which are optional in OTLP
    return [
        HistogramDataPoint(
            dict(point), *times, sum(each), sums[point], each, BOUNDS, unknown, unknown
        )
        for point, each in counts.items()
    ]
