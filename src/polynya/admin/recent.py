"""The figures of the last 24 hours, a row a minute, that the console draws. Core 0 keeps them in memory
for the whole node: a restart of that core begins a new day."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from polynya.base.errors import PolynyaError, Unavailable
from polynya.jobs import Rest, repeat
from polynya.observability.metrics import Samples
from polynya.transport import Reply, Transport

KIND_RECENT = 1018  # message kind between cores
STEP_SECONDS = 60.0
FIRST_SECONDS = Rest(5.0)  # from the start of the node to its first row
ROWS_MAX = 1440  # a day; 0.3 MB
NAN = math.nan
_APPENDS = "polynya_http_append_seconds"
_RATES = {
    "appends": ("polynya_http_appends_total", "polynya_kafka_batches_total"),
    "append_bytes": ("polynya_http_append_bytes_total", "polynya_kafka_batch_bytes_total"),
    "responses": ("polynya_http_responses_total",),
    "kafka_requests": ("polynya_kafka_requests_total",),
    "errors": ('polynya_http_responses_total{class="5xx"}',),
    "store_requests": ("polynya_store_requests_total",),
    "flush_bytes": ("polynya_flush_bytes_total", "polynya_diskless_pack_bytes_total"),
    "cpu": ("polynya_process_cpu_seconds_total",),
}
_GAUGES = {
    "memory": ("polynya_process_resident_bytes",),
    "connections": ("polynya_http_connections", "polynya_kafka_connections"),
    "live_readers": ("polynya_live_readers",),
    "streams": ("polynya_streams",),
    "unflushed": ("polynya_hot_bytes",),
    "journal": ("polynya_journal_disk_bytes",),
    "group_lag": ("polynya_group_lag",),
}
_WRITES = ("polynya_journal_write_seconds_total", "polynya_turns_total")
SERIES = (*_RATES, *_GAUGES, "write_seconds", "append_p50", "append_p99")


class Recent:
    """Rows of figures: rates a second, gauges, and seconds. NaN: there was nothing to measure."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._times_ms: deque[int] = deque(maxlen=rows_max)
        self._rows: deque[array[float]] = deque(maxlen=rows_max)
        self._last: tuple[int, Samples] | None = None

    @property
    def is_fresh(self) -> bool:
        """Report whether it has no samples yet."""
        return self._last is None

    def add(self, now_ms: int, samples: Samples) -> None:
        """Add the row of the time since the last samples; the first ones make no row."""
        last, self._last = self._last, (now_ms, samples)
        if last is None or now_ms <= last[0]:
            return
        figures = figures_of(last[1], samples, (now_ms - last[0]) / 1000)
        self._times_ms.append(now_ms)
        self._rows.append(array("d", (figures[name] for name in SERIES)))

    def shown(self) -> dict[str, Any]:
        """Return the rows by series, the oldest first; null is NaN."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(SERIES)
        return {
            "step_seconds": STEP_SECONDS,
            "times_ms": list(self._times_ms),
            "series": {
                name: [None if math.isnan(each) else float(f"{each:.6g}") for each in column]
                for name, column in zip(SERIES, columns, strict=True)
            },
        }


def figures_of(before: Samples, after: Samples, seconds: float) -> dict[str, float]:
    """Return the figures between two samples of the node. A counter that shrank, as when a core was
    restarted, has no rate."""
    totals = _totals(before), _totals(after)

    def grown(names: tuple[str, ...]) -> float:
        old, new = (sum(each.get(name, 0.0) for name in names) for each in totals)
        return new - old if new >= old else NAN

    found = {name: grown(of) / seconds for name, of in _RATES.items()}
    found |= {name: sum(totals[1].get(each, 0.0) for each in of) for name, of in _GAUGES.items()}
    writes = grown(_WRITES[1:])
    found["write_seconds"] = grown(_WRITES[:1]) / writes if writes > 0 else NAN
    buckets = _grown_buckets(before, after, f'{_APPENDS}_bucket{{le="')
    found["append_p50"], found["append_p99"] = quantile(buckets, 0.5), quantile(buckets, 0.99)
    return found


def quantile(buckets: list[tuple[float, float]], part: float) -> float:
    """Return a quantile of (upper bound, cumulative count), as Prometheus' histogram_quantile: within
    a bucket the durations are spread evenly."""
    if not buckets or buckets[-1][1] <= 0:
        return NAN
    rank, low, below = part * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - below) / max(count - below, 1.0)
        low, below = bound, count
    return low


def _grown_buckets(before: Samples, after: Samples, prefix: str) -> list[tuple[float, float]]:
    found = [
        (float(key[len(prefix) : -2]), count - before.get(key, 0.0))
        for key, count in after.items()
        if key.startswith(prefix)
    ]
    return sorted(found) if all(count >= 0 for _, count in found) else []


def _totals(samples: Mapping[str, float]) -> Samples:
    """Return the samples, and the sum of each metric with labels under its name."""
    found: Samples = {}
    for key, value in samples.items():
        found[key] = found.get(key, 0.0) + value
        name = key.partition("{")[0]
        if name != key:
            found[name] = found.get(name, 0.0) + value
    return found


class NodeRecent:
    """The figures of the node, on core 0; the other cores ask it."""

    def __init__(
        self, core: int, transport: Transport | None, samples: Callable[[], Awaitable[Samples]]
    ) -> None:
        """`samples` gathers those of all cores."""
        self._core, self._transport = core, transport
        self._samples = samples
        self._recent = Recent()
        if transport is not None:
            transport.on(KIND_RECENT, self._on_ask)

    async def run(self, wall_ms: Callable[[], float]) -> None:
        """Add a row every minute, on core 0, until cancelled."""

        async def sample() -> Rest | None:
            is_first = self._recent.is_fresh
            self._recent.add(int(wall_ms()), await self._samples())
            return FIRST_SECONDS if is_first else None

        if self._core == 0:
            await repeat(sample, STEP_SECONDS)

    async def answer(self) -> bytes:
        """Return the rows as JSON. Raises Unavailable."""
        if self._core == 0 or self._transport is None:
            return msgspec.json.encode(self._recent.shown())
        try:
            return await self._transport.call(0, KIND_RECENT, b"")
        except PolynyaError as fault:
            raise Unavailable(f"core 0 does not answer: {fault}") from None

    def _on_ask(self, body: bytes, reply: Reply, core: int) -> None:
        reply(msgspec.json.encode(self._recent.shown()))
