"""The export of metrics over OTLP, to a collector in this process."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from missing import needed_module
from otlp_collector import collector

from polynya.admin.health import HealthResponse
from polynya.base.histogram import Histogram
from polynya.node.otlp_export import OtlpExport
from polynya.observability.metrics import Registry, label, labels_of, render
from polynya.observability.otlp import endpoint_variable, interval_of

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Health:
    """The part of a node's health that the export uses."""

    def __init__(self) -> None:
        self.checks: dict[str, Any] = {}
        self.registry = Registry()
        histogram = Histogram()
        for seconds in (0.0002, 0.2, 99.0):
            histogram.observe(seconds)
        self.registry.add_histogram("polynya_store_request_seconds", histogram, request="put")
        self.registry.add(
            lambda: {
                "polynya_turns_total": 7.0,
                "polynya_hot_bytes": 5.0,
                label("polynya_check_failing", check='a"b\\n'): 1.0,
                "polynya_core_start_seconds": 1000.0,
            }
        )

    def warn(self, name: str, check: Any) -> None:
        self.checks[name] = check

    async def metrics(self) -> HealthResponse:
        return HealthResponse(200, "text/plain", render(self.registry.read()))


def export_of(health: Health, environment: dict[str, str], *, core: int = 0) -> OtlpExport:
    start: Any = SimpleNamespace(core=core, identity=SimpleNamespace(cluster_id="c", node=3))
    return OtlpExport(start, health, environment)  # type: ignore[arg-type]


def exported(export: OtlpExport) -> None:
    """One export, as the job does it."""

    async def once() -> None:
        with export._failures:
            assert export._exporter is not None
            await export.export(export._exporter)

    asyncio.run(once())


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({ENDPOINT: " "}, ""),
        ({ENDPOINT: "http://c"}, ENDPOINT),
        (
            {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c", ENDPOINT: "http://d"},
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        ),
        ({ENDPOINT: "http://c", "OTEL_METRICS_EXPORTER": "none"}, ""),
        ({ENDPOINT: "http://c", "OTEL_SDK_DISABLED": "True"}, ""),
    ],
)
def test_an_endpoint_turns_the_export_on(environment: dict[str, str], variable: str) -> None:
    assert endpoint_variable(environment) == variable


def test_the_interval_is_opentelemetrys() -> None:
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    texts = {"": 60, "5000": 5, "1": 1, "soon": 60, "-5": 60, "9" * 40: 60}
    assert {text: interval_of({name: text}) for text in texts} == texts


def test_labels_are_read_back() -> None:
    key = label("polynya_info", version='a"b\\c\nd,e="f"', commit="")
    assert labels_of(key) == {"version": 'a"b\\c\nd,e="f"', "commit": ""}


def test_a_collector_gets_the_metrics_with_the_nodes_name(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    with collector() as kept:
        monkeypatch.setenv(ENDPOINT, kept.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        export = export_of(health := Health(), {ENDPOINT: kept.url})
        exported(export)
        export.close()
    assert health.checks["otlp"]() is None
    ((path, headers, body),) = kept.received
    assert path == "/v1/metrics" and headers["authorization"] == "Bearer secret"
    (resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "polynya" and names["service.instance.id"] == "c/3"
    assert names["deployment.environment"] == "test"
    found = {each.name: each for each in resource.scope_metrics[0].metrics}
    (turns,) = found["polynya_turns_total"].sum.data_points
    assert found["polynya_turns_total"].sum.is_monotonic and turns.as_double == 7
    assert turns.start_time_unix_nano == 1000 * 10**9
    assert found["polynya_hot_bytes"].gauge.data_points[0].as_double == 5
    assert found["polynya_hot_bytes"].unit == "By"
    (check,) = found["polynya_check_failing"].gauge.data_points
    assert check.attributes[0].value.string_value == 'a"b\\n'
    (put,) = found["polynya_store_request_seconds"].histogram.data_points
    assert (put.count, len(put.bucket_counts), len(put.explicit_bounds)) == (3, 17, 16)
    assert put.bucket_counts[1] == put.bucket_counts[10] == put.bucket_counts[16] == 1
    assert put.sum == pytest.approx(99.2002) and not put.HasField("min")
    assert put.attributes[0].value.string_value == "put"


def test_a_refusal_is_a_warning_until_an_export_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    with collector() as kept:
        monkeypatch.setenv(ENDPOINT, kept.url)
        export = export_of(health := Health(), {ENDPOINT: kept.url})
        kept.status = 400
        exported(export)
        assert "did not take the metrics" in health.checks["otlp"]()
        kept.status = 200
        exported(export)
        assert health.checks["otlp"]() is None
        export.close()


def test_without_the_extra_the_node_warns_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    name = "opentelemetry.exporter.otlp.proto.http.metric_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    export = export_of(health := Health(), {ENDPOINT: "http://c"})
    assert "install the extra polynya[otel]" in health.checks["otlp"]()
    asyncio.run(export.run())
    export.close()


@pytest.mark.parametrize(("environment", "core"), [({}, 0), ({ENDPOINT: "http://c"}, 1)])
def test_a_core_without_an_endpoint_or_but_the_first_exports_nothing(
    environment: dict[str, str], core: int
) -> None:
    export = export_of(health := Health(), environment, core=core)
    assert not health.checks
    asyncio.run(export.run())
    export.close()
