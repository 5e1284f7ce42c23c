"""The periodic export of the node's metrics to an OpenTelemetry collector, by core 0."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial

from polynya.admin.health import Health
from polynya.base.futures import settle
from polynya.config.core_start import CoreStart
from polynya.jobs import Failures, repeat
from polynya.observability import otlp
from polynya.observability.open_metrics import samples_of

log = logging.getLogger("polynya.core")


class OtlpExport:
    """The export of one node. Without a variable that names a collector, and on other cores, it
    does nothing."""

    def __init__(self, start: CoreStart, health: Health, environment: otlp.Environment) -> None:
        self._health = health
        self._environment = environment
        self._variable = otlp.endpoint_variable(environment) if start.core == 0 else ""
        self._exporter: otlp.Exporter | None = None
        self._failures = Failures(log, "cannot export metrics; retrying", otlp.ExportFailed)
        self._reason = ""
        if not self._variable:
            return
        try:
            self._exporter = otlp.Exporter(start.identity.cluster_id, start.identity.node)
        except ImportError as error:
            self._reason = otlp.missing(self._variable)
            log.warning(self._reason, extra={"error": str(error)})
        except Exception as error:  # noqa: BLE001 (of OpenTelemetry, about its variables)
            self._reason = otlp.unusable(error)
            log.warning(self._reason)
        health.warn("otlp", self.trouble)

    def trouble(self) -> str | None:
        """Return why the last export failed, or why there is none."""
        return self._reason or self._failures.reason or None

    async def run(self) -> None:
        """Export from time to time, until cancelled."""
        if self._exporter is None:
            return
        await repeat(
            partial(self.export, self._exporter),
            otlp.interval_of(self._environment),
            self._failures,
        )

    async def export(self, exporter: otlp.Exporter) -> None:
        """Export the metrics of all cores once. Raises `otlp.ExportFailed`."""
        samples = samples_of((await self._health.metrics()).body.decode())
        await in_thread(partial(exporter.export, samples))

    def close(self) -> None:
        """End an export in progress."""
        if self._exporter is not None:
            self._exporter.close()


async def in_thread(work: Callable[[], None]) -> None:
    """Run blocking work in a thread that does not hold up the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        outcome: BaseException | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 (raised where it is awaited)
            outcome = error
        try:
            loop.call_soon_threadsafe(settle, future, outcome)
        except RuntimeError:  # the loop is closed
            return

    threading.Thread(target=run, name="otlp", daemon=True).start()
    await future
