"""Money: the bill of a report, and the estimates of what the same appends cost on each profile.

The formulas are documented in docs/cost.md.
"""

from __future__ import annotations

import msgspec

from polynya.cost.prices import Prices
from polynya.cost.report import CATALOG, PAYLOAD, CostReport, Shape, Usage

GB = 1 << 30
MONTH_HOURS = 730.0
HOUR_MS = 3_600_000


class Money(msgspec.Struct, frozen=True):
    """Money by cause."""

    requests: float = 0.0
    store_transfer: float = 0.0
    zone_payload: float = 0.0
    zone_catalog: float = 0.0
    disks: float = 0.0

    @property
    def total(self) -> float:
        total: float = sum(msgspec.structs.astuple(self))
        return total

    def __add__(self, other: Money) -> Money:
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Money(*(one + two for one, two in pairs))


class HourMoney(msgspec.Struct, frozen=True):
    """The money of one hour, and the estimates for it."""

    time: str
    measured: float
    replicated: float
    diskless: float


class Bill(msgspec.Struct, frozen=True):
    """The money of a report. `replicated` and `diskless` are estimates for all of its appends."""

    currency: str
    measured: Money
    works: dict[str, float]  # kind of work -> money of its requests and bytes
    replicated: Money
    diskless: Money
    totals: dict[str, float]
    by_hour: list[HourMoney]


def bill_of(report: CostReport, prices: Prices) -> Bill:
    """Return the bill of a report."""
    shape = assumed(report.shape, prices)
    usages = [each.usage for each in report.by_hour]
    moneys = [
        (
            measured(usage, prices),
            replicated(usage, shape, prices),
            diskless(usage, shape, prices),
        )
        for usage in usages
    ]
    sums = [sum((row[at] for row in moneys), Money()) for at in range(3)]
    return Bill(
        prices.currency,
        sums[0],
        _works(report, prices),
        sums[1],
        sums[2],
        dict(zip(("measured", "replicated", "diskless"), (s.total for s in sums), strict=True)),
        [
            HourMoney(each.time, *(money.total for money in row))
            for each, row in zip(report.by_hour, moneys, strict=True)
        ],
    )


def assumed(shape: Shape, prices: Prices) -> Shape:
    """Return the shape for the estimates: the cluster's, where the prices assume nothing else."""
    return msgspec.structs.replace(
        shape,
        copies=prices.assume.copies or shape.copies,
        zones=prices.assume.zones or shape.zones,
    )


def measured(usage: Usage, prices: Prices) -> Money:
    """Return the money of what was counted."""
    requests = sum(_requests(calls, prices) for calls in usage.store.values())
    transfer = sum(_transfer(calls, prices) for calls in usage.store.values())
    payload, catalog = (usage.crossed(kind) / GB * prices.zone_gb for kind in (PAYLOAD, CATALOG))
    return Money(requests, transfer, payload, catalog)


def replicated(usage: Usage, shape: Shape, prices: Prices) -> Money:
    """Estimate the appends of an hour on replicated streams."""
    size, zones = usage.append_bytes, max(shape.zones, 1)
    # copies to the other zones, and producers that are in another zone than the leader
    crossed = size * (min(shape.copies, zones) - 1 + (zones - 1) / zones)
    disk_hours = size / GB * shape.copies * prices.assume.disk_hours
    packs = -(-size // max(shape.pack_bytes, 1))
    return Money(
        requests=packs * prices.put_per_1000 / 1000,
        store_transfer=size / GB * prices.store_up_gb,
        zone_payload=crossed / GB * prices.zone_gb,
        disks=disk_hours / MONTH_HOURS * prices.disk_gb_month,
    )


def diskless(usage: Usage, shape: Shape, prices: Prices) -> Money:
    """Estimate the appends of an hour on diskless streams."""
    size, zones = usage.append_bytes, max(shape.zones, 1)
    by_size = -(-size // max(shape.pack_bytes, 1))
    by_time = shape.cores * HOUR_MS // max(shape.interval_ms, 1)
    packs = max(by_size, min(usage.appends, by_time))
    # each pack is read once in each other zone, and once by the merger, which writes larger ones
    puts, gets = packs + by_size, packs * zones
    catalog = size * prices.assume.catalog_share * (min(shape.copies, zones) - 1)
    return Money(
        requests=(puts * prices.put_per_1000 + gets * prices.get_per_1000) / 1000,
        store_transfer=size / GB * (2 * prices.store_up_gb + zones * prices.store_down_gb),
        zone_catalog=catalog / GB * prices.zone_gb,
    )


def _works(report: CostReport, prices: Prices) -> dict[str, float]:
    works: dict[str, float] = {}
    for node in report.nodes:
        for work, calls in node.usage.store.items():
            money = _requests(calls, prices) + _transfer(calls, prices)
            works[work] = works.get(work, 0.0) + money
    return works


def _requests(calls: dict[str, int], prices: Prices) -> float:
    by_price = (
        ("put", prices.put_per_1000),
        ("get", prices.get_per_1000),
        ("head", prices.get_per_1000),
        ("list", prices.list_per_1000),
        ("delete", prices.delete_per_1000),
    )
    return sum(calls.get(request, 0) * price / 1000 for request, price in by_price)


def _transfer(calls: dict[str, int], prices: Prices) -> float:
    up, down = calls.get("up", 0) / GB, calls.get("down", 0) / GB
    return up * prices.store_up_gb + down * prices.store_down_gb
