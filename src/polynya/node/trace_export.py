"""The traces of a core, and their export to an OpenTelemetry collector in the background."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from functools import partial

from polynya.admin.health import Health
from polynya.base.spans import Span, Tracer
from polynya.config.core_start import CoreStart
from polynya.jobs import Failures, Rest, pause_after, repeat
from polynya.node.otlp_export import in_thread
from polynya.observability import otlp
from polynya.observability.metrics import Samples
from polynya.observability.otlp_traces import SpanExporter

log = logging.getLogger("polynya.core")
SPANS_PER_EXPORT = 512  # OpenTelemetry's default
LAST_SECONDS = 1.0  # for the spans that wait when the node stops


class TraceExport:
    """The traces of one core. Without a variable that names a collector `tracer` is None: no
    request is traced."""

    def __init__(self, start: CoreStart, health: Health, environment: otlp.Environment) -> None:
        self.tracer: Tracer | None = None
        self._settings = settings = start.config.traces
        self._environment = environment
        self._exporter: SpanExporter | None = None
        self._failures = Failures(
            log, "cannot export traces; retrying, and dropping spans", otlp.ExportFailed
        )
        self._reason = ""
        self._wake = asyncio.Event()
        health.registry.add(self.samples)
        variable = otlp.endpoint_variable(environment, "TRACES")
        if variable:
            self._open(start, variable)
        elif settings.ratio:
            self._reason = (
                f"traces.ratio is {settings.ratio:g}, but nothing is traced: set "
                "OTEL_EXPORTER_OTLP_ENDPOINT to the URL of a collector"
            )
            log.warning(self._reason)
        if variable or self._reason:
            health.warn("traces", self.trouble)

    def _open(self, start: CoreStart, variable: str) -> None:
        try:
            self._exporter = SpanExporter(start.identity.cluster_id, start.identity.node)
        except ImportError as error:
            self._reason = otlp.missing(variable)
            log.warning(self._reason, extra={"error": str(error)})
            return
        except Exception as error:  # noqa: BLE001 (of OpenTelemetry, about its variables)
            self._reason = otlp.unusable(error)
            log.warning(self._reason)
            return
        numbers = random.SystemRandom()
        seeded = random.Random(numbers.getrandbits(128))  # noqa: S311 (ids, no secret)
        self.tracer = Tracer(
            ratio=self._settings.ratio,
            follows_clients=self._settings.follow_clients,
            queue_max=self._settings.queue,
            now_ns=time.monotonic_ns,
            random=seeded.random,
            bits=seeded.getrandbits,
        )
        self.tracer.on_half = self._hurry

    def samples(self) -> Samples:
        """Return the counters of the spans."""
        tracer = self.tracer
        return {
            "polynya_trace_spans_total": 0 if tracer is None else tracer.spans,
            "polynya_trace_spans_dropped_total": 0 if tracer is None else tracer.dropped,
        }

    def trouble(self) -> str | None:
        """Return why the last export failed, or why there is none."""
        return self._reason or self._failures.reason or None

    async def run(self) -> None:
        """Export from time to time, and soon when the queue fills, until cancelled."""
        if self.tracer is not None:
            await repeat(self.export, self._seconds, wake=self._wake, at_once=False)

    async def export(self) -> Rest:
        """Export the spans that wait. Return the pause until the next time: a longer one after
        failures, in which the queue drops what it has no room for."""
        tracer, exporter = self.tracer, self._exporter
        assert tracer is not None and exporter is not None, "there is something to export"
        failed = 0
        while not failed and (spans := tracer.take(SPANS_PER_EXPORT)):
            with self._failures:
                await self._send(tracer, exporter, spans)
            failed = self._failures.in_a_row
        return Rest(max(self._seconds, pause_after(failed)) if failed else self._seconds)

    async def stop(self) -> None:
        """Export what waits, for at most `LAST_SECONDS`, unless exports fail; none follows."""
        if self._exporter is None:
            return
        if not self._failures.in_a_row:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self.export()
        self._exporter.close()

    async def _send(self, tracer: Tracer, exporter: SpanExporter, spans: list[Span]) -> None:
        offset_ns = time.time_ns() - time.monotonic_ns()
        try:
            await in_thread(partial(exporter.export, spans, offset_ns))
        except otlp.ExportFailed:
            tracer.dropped += len(spans)
            raise

    def _hurry(self) -> None:
        if not self._failures.in_a_row:
            self._wake.set()

    @property
    def _seconds(self) -> float:
        return otlp.pause_of(self._environment)
