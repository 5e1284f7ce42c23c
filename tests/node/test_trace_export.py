"""The export of traces over OTLP, to a collector in this process: of a core's parts, and of a node
that a client asks with a trace of its own."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from missing import needed_module
from otlp_collector import Collector, collector
from polling import wait_until
from product import running_node
from worlds.dev_cluster import dev_cluster

from polynya.base.spans import Span
from polynya.client import Client
from polynya.config.sections import TracesConfig
from polynya.node.trace_export import TraceExport
from polynya.observability.metrics import Registry
from polynya.observability.otlp import pause_of

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACE, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{PARENT_ID}-01"


class Health:
    """The part of a node's health that the export uses."""

    def __init__(self) -> None:
        self.checks: dict[str, Any] = {}
        self.registry = Registry()

    def warn(self, name: str, check: Any) -> None:
        self.checks[name] = check


def export_of(
    health: Health, environment: dict[str, str], settings: TracesConfig | None = None
) -> TraceExport:
    start: Any = SimpleNamespace(
        core=1,
        identity=SimpleNamespace(cluster_id="c", node=3),
        config=SimpleNamespace(traces=settings or TracesConfig()),
    )
    return TraceExport(start, health, environment)  # type: ignore[arg-type]


def received(kept: Collector) -> dict[str, Any]:
    """The spans that a collector got, by their names."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found = {}
    for path, _, body in [*kept.received]:
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found.update({span.name: (span, resource.resource) for span in scope.spans})
    return found


def attributes_of(thing: Any) -> dict[str, Any]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes
    }


def traced(export: TraceExport, count: int = 1) -> None:
    """Some requests with a child each."""
    assert export.tracer is not None
    for _ in range(count):
        span = export.tracer.begin("POST", PARENT)
        assert isinstance(span, Span)
        child = span.child("forward", {"polynya.core": 2}, "client")
        child.end("Unavailable")
        span.attributes["http.response.status_code"] = 503
        span.error = "503"
        span.end()


def test_a_collector_gets_the_spans_with_the_nodes_name(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    before = time.time_ns()
    with collector() as kept:
        monkeypatch.setenv(ENDPOINT, kept.url)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        export = export_of(health := Health(), {ENDPOINT: kept.url})
        traced(export)
        asyncio.run(export.stop())
        found = received(kept)
    assert health.checks["traces"]() is None
    (root, resource), (child, _) = found["POST"], found["forward"]
    names = attributes_of(resource)
    assert names["service.name"] == "polynya" and names["service.instance.id"] == "c/3"
    assert names["deployment.environment"] == "test"
    assert root.trace_id.hex() == child.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == PARENT_ID and child.parent_span_id == root.span_id
    assert (root.kind, child.kind) == (2, 3)  # SERVER, CLIENT
    assert attributes_of(root) == {"http.response.status_code": 503}
    assert (root.status.code, root.status.message) == (2, "503")  # ERROR
    assert before <= root.start_time_unix_nano < root.end_time_unix_nano <= time.time_ns()
    assert export.samples()["polynya_trace_spans_total"] == 2


def test_what_a_collector_does_not_take_is_dropped_and_tried_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with collector() as kept:
        monkeypatch.setenv(ENDPOINT, kept.url)
        export = export_of(health := Health(), {ENDPOINT: kept.url})
        kept.status = 400
        pauses = []
        for _ in range(8):
            traced(export)
            pauses.append(asyncio.run(export.export()))
        assert pauses[0] == 5.0 and pauses == sorted(pauses) and pauses[-1] == 30.0
        asyncio.run(export.export())
        assert "did not take the spans" in health.checks["traces"](), "also with nothing to send"
        assert export.samples()["polynya_trace_spans_dropped_total"] == 16
        said = [each for each in caplog.records if "cannot export traces" in each.message]
        assert len(said) == 1
        asyncio.run(export.stop())
        assert len(kept.received) == 8, "a stop does not wait for a collector that fails"
        export = export_of(health, {ENDPOINT: kept.url})
        kept.status = 200
        traced(export)
        asyncio.run(export.export())
        assert health.checks["traces"]() is None
        asyncio.run(export.stop())


def test_a_queue_that_fills_is_exported_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with collector() as kept:
        monkeypatch.setenv(ENDPOINT, kept.url)

        async def fill() -> None:
            export = export_of(Health(), {ENDPOINT: kept.url}, TracesConfig(queue=16))
            job = asyncio.create_task(export.run())
            await asyncio.sleep(0)
            traced(export, 4)
            assert export.tracer is not None
            while len(received(kept)) < 2:
                await asyncio.sleep(0)
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await export.stop()

        asyncio.run(fill())
        assert {*received(kept)} == {"POST", "forward"}


def test_without_the_extra_the_node_warns_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.setitem(sys.modules, name, None)
    export = export_of(health := Health(), {ENDPOINT: "http://c"})
    assert "install the extra polynya[otel]" in health.checks["traces"]()
    assert export.tracer is None
    asyncio.run(export.run())
    asyncio.run(export.stop())


@pytest.mark.parametrize(
    "environment", [{}, {ENDPOINT: "http://c", "OTEL_TRACES_EXPORTER": "none"}]
)
def test_without_an_endpoint_nothing_is_traced_and_a_ratio_is_pointless(
    environment: dict[str, str],
) -> None:
    health = Health()
    assert export_of(health, environment).tracer is None
    assert not health.checks
    export = export_of(health, environment, TracesConfig(ratio=0.5))
    assert export.tracer is None and "set OTEL_EXPORTER_OTLP_ENDPOINT" in health.checks["traces"]()
    assert export.samples() == {
        "polynya_trace_spans_total": 0,
        "polynya_trace_spans_dropped_total": 0,
    }


def test_the_pause_is_opentelemetrys() -> None:
    name = "OTEL_BSP_SCHEDULE_DELAY"
    texts = {"": 5, "2000": 2, "1": 0.1, "soon": 5}
    assert {text: pause_of({name: text}) for text in texts} == texts


@pytest.mark.process
def test_a_client_finds_its_append_in_its_own_trace(tmp_path: Path) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with collector() as kept:
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{kept.url}/v1/traces",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with (
            running_node(tmp_path / "data", "--cores", "1", **variables) as node,
            Client(node.url) as client,
        ):
            stream = client.stream("orders")
            stream.create()
            stream.append({"id": 1})
            stream.with_options(headers={"traceparent": PARENT}).append({"id": 2})
            found = wait_until(
                lambda: received(kept) if len(received(kept)) == 3 else None, what="the spans"
            )
    root, commit, fsync = (found[name][0] for name in ("POST /v1/stream/{name}", "commit", "fsync"))
    assert root.trace_id.hex() == TRACE and root.parent_span_id.hex() == PARENT_ID
    assert commit.parent_span_id == root.span_id and fsync.parent_span_id == commit.span_id
    assert attributes_of(root)["polynya.stream"] == "default/orders"
    assert root.start_time_unix_nano <= fsync.start_time_unix_nano
    assert fsync.end_time_unix_nano <= commit.end_time_unix_nano <= root.end_time_unix_nano


@pytest.mark.process
def test_the_trace_of_an_append_goes_on_at_the_node_that_leads_its_group(tmp_path: Path) -> None:
    needed_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with collector() as kept:
        variables = {ENDPOINT: kept.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        variables["OTEL_METRICS_EXPORTER"] = "none"
        with dev_cluster(tmp_path / "c", **variables) as cluster:
            with Client(cluster.urls[0]) as client:
                client.stream("orders").create()
            for node, url in enumerate(cluster.urls, 1):
                # not by the client, which asks the leader itself
                parent = {"traceparent": f"00-{node:032x}-{PARENT_ID}-01"}
                path = f"{url}/v1/stream/orders"
                httpx.post(path, json={"id": node}, headers=parent, timeout=60).raise_for_status()
            wait_until(lambda: len(whole(kept)) == 3, what="the three traces")
    leaders = {spans["fsync"] for spans in whole(kept).values()}
    assert len(leaders) == 1, "all commit at one leader"
    fronts = {spans["POST /v1/stream/{name}"] for spans in whole(kept).values()}
    assert len(fronts) == 3
    for spans in whole(kept).values():
        forwarded = {"forward", "propose"} & {*spans}
        is_led_here = {spans["POST /v1/stream/{name}"]} == leaders
        assert len(forwarded) == (0 if is_led_here else 2), spans
        assert is_led_here or {spans["propose"]} == leaders


def whole(kept: Collector) -> dict[str, dict[str, str]]:
    """The traces in which each parent is known, with a write: the node of each span, by their ids."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    found: dict[str, list[tuple[Any, str]]] = {}
    for path, _, body in [*kept.received]:
        assert path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            node = attributes_of(resource.resource)["service.instance.id"]
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                found.setdefault(span.trace_id.hex(), []).append((span, node))
    traces = {}
    for trace, spans in found.items():
        known = {span.span_id for span, _ in spans}
        above = {span.parent_span_id.hex() for span, _ in spans if span.parent_span_id not in known}
        if above == {PARENT_ID} and "fsync" in {span.name for span, _ in spans}:
            traces[trace] = {span.name: node for span, node in spans}
    return traces
