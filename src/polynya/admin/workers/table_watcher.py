"""Metrics of tables: a look at all of them now and then, on the core that leads the meta group."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from polynya.base.errors import PolynyaError
from polynya.front.http.api.tables import TableRoutes
from polynya.jobs import Failures, Rest, repeat
from polynya.observability.metrics import Samples, label

log = logging.getLogger("polynya.tables")

LOOK_SECONDS = 15.0
SHARE = 20  # a look visits all streams, so it may take one part in SHARE of the time
_VALUES = {
    "polynya_table_rows": "rows",
    "polynya_table_dead_rows": "dead_rows",
    "polynya_table_files": "files",
    "polynya_table_merges": "merges",
    "polynya_table_files_merged": "files_merged",
    "polynya_table_failing_ranges": "failing",
    "polynya_table_ranges_aside": "ranges_aside",
    "polynya_table_records_aside": "records_aside",
    "polynya_table_records_behind": "records_behind",
    "polynya_table_behind_seconds": "behind_seconds",
    "polynya_table_records_trimmed": "records_trimmed",
    "polynya_table_records_ended": "records_ended",
    "polynya_table_job_seconds": "job_seconds",
    "polynya_table_unframed_values": "unframed_values",
}


class TableWatcher:
    """The last look at the tables, which also finishes drops. `leads` reports whether this core
    leads the meta group."""

    def __init__(self, routes: TableRoutes, leads: Callable[[], bool]) -> None:
        self._routes = routes
        self._leads = leads
        self._samples: Samples = {}

    def samples(self) -> Samples:
        return self._samples

    async def run(self) -> None:
        """Look until cancelled."""
        failures = Failures(
            log, "the tables' metrics could not be read; retrying", PolynyaError, level=logging.INFO
        )
        await repeat(self.look, LOOK_SECONDS, failures)

    async def look(self) -> Rest:
        """Look once, and return the seconds to rest. Raises PolynyaError; then the last metrics
        stay."""
        began = time.monotonic()
        if not self._leads():
            self._samples = {}
            return Rest(LOOK_SECONDS)
        await self._routes.finish_drops()
        tables = await self._routes.described()
        self._samples = {
            key: value for table in tables for key, value in _samples_of(table).items()
        }
        return Rest(max(LOOK_SECONDS, SHARE * (time.monotonic() - began)))


def _samples_of(table: dict[str, Any]) -> Samples:
    name = table["name"]
    samples: Samples = {}
    for metric, field in _VALUES.items():
        if table[field] is not None:
            samples[label(metric, table=name)] = table[field]
    if table["fields_without_column"] is not None:
        samples[label("polynya_table_fields_without_column", table=name)] = len(
            table["fields_without_column"]
        )
    samples[label("polynya_table_job_failed", table=name)] = int(bool(table["fault"]))
    if table["committed_ms"]:
        samples[label("polynya_table_commit_time_seconds", table=name)] = (
            table["committed_ms"] / 1000
        )
    return samples
