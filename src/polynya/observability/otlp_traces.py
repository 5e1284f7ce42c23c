"""Spans over OTLP, for the extra `polynya[otel]`: those of `polynya.base.spans` as OpenTelemetry's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from polynya import __version__
from polynya.base.spans import Span
from polynya.observability.otlp import ExportFailed, quiet, resource_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class SpanExporter:
    """Sends the spans of a core to a collector. `cluster` and `node` name the node."""

    def __init__(self, cluster: str, node: int) -> None:
        """Create the exporter by the process's environment. Raises ImportError without the
        extra."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        quiet()
        self._exporter = OTLPSpanExporter()
        self._resource = resource_of(cluster, node)

    def export(self, spans: Sequence[Span], offset_ns: int) -> None:
        """Send the spans; it blocks. `offset_ns` makes a time of the tracer's clock one since 1970.
        Raises ExportFailed."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        found = [readable(span, self._resource, offset_ns) for span in spans]
        try:
            result = self._exporter.export(found)
        except Exception as error:
            raise ExportFailed(f"{type(error).__name__}: {error}") from error
        if result is not SpanExportResult.SUCCESS:
            raise ExportFailed("the collector did not take the spans, or cannot be reached")

    def close(self) -> None:
        """End the retries of an export in progress; none follows."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def readable(span: Span, resource: Any, offset_ns: int) -> ReadableSpan:
    """Return a span as OpenTelemetry's."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    flags = TraceFlags(TraceFlags.SAMPLED)
    above = None
    if span.parent:
        above = SpanContext(span.trace, span.parent, span.remote, flags)
    return ReadableSpan(
        name=span.name,
        context=SpanContext(span.trace, span.id, False, flags),
        parent=above,
        resource=resource,
        attributes=span.attributes,
        kind=SpanKind[span.kind.upper()],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.began + offset_ns,
        end_time=span.ended + offset_ns,
        instrumentation_scope=InstrumentationScope("polynya", __version__),
    )
