"""Money: measured counts, and the estimates of both profiles, by the formulas of docs/cost.md."""

from __future__ import annotations

import pytest

from polynya.base.errors import ConfigError
from polynya.cost import Prices, Shape, bill_of, default_prices, read_prices, report_of
from polynya.cost.bill import GB
from polynya.cost.history import Row
from polynya.cost.prices import Assumptions
from polynya.cost.report import NodeRows

PRICES = Prices(
    put_per_1000=5.0,
    get_per_1000=1.0,
    list_per_1000=2.0,
    zone_gb=10.0,
    store_down_gb=0.5,
    disk_gb_month=73.0,
    assume=Assumptions(disk_hours=10.0, catalog_share=0.01),
)
THREE = Shape(3, 6, 3, 3)


def row(hour: int, **counts: int) -> Row:
    """Counts by `a_b_c` for the key (a, b, c)."""
    return hour, [(tuple(name.split("_")), count) for name, count in counts.items()]


def node(number: int, *rows: Row) -> NodeRows:
    return NodeRows(number, f"z{number}", [list(rows)], [])


def test_requests_and_bytes_between_zones_are_charged() -> None:
    first = row(
        10,
        store_flush_put=1000,
        store_flush_up=GB,
        store_read_get=500,
        store_read_head=500,
        store_read_down=4 * GB,
        store_collect_list=1000,
        store_collect_delete=1000,
        zone_a_b_payload=GB,
        zone_a_a_payload=100 * GB,
        zone_a_b_catalog=GB // 2,
    )
    second = node(2, row(11, store_flush_put=2000))
    report = report_of([node(1, first), second], THREE, [], 24, 11 * 3600)
    bill = bill_of(report, PRICES)
    money = bill.measured
    assert money.requests == pytest.approx(3 * 5 + 1 + 2)
    assert money.store_transfer == pytest.approx(2.0)
    assert (money.zone_payload, money.zone_catalog) == (10.0, 5.0)
    assert bill.works == {"flush": 15.0, "read": pytest.approx(3.0), "collect": 2.0}
    assert [hour.measured for hour in bill.by_hour] == pytest.approx([25.0, 10.0])
    assert bill.totals["measured"] == pytest.approx(35.0)


def test_the_estimates_follow_the_documented_formulas() -> None:
    appended = row(
        10, append_http_bytes=GB // 2, append_kafka_bytes=GB // 2, append_http_requests=9
    )
    bill = bill_of(report_of([node(1, appended)], THREE, [], 24, 36_000), PRICES)
    # copies to two other zones, two thirds of the producers; 128 packs; 3 GB for 10 of 730 hours
    assert bill.replicated.zone_payload == pytest.approx(10 * (2 + 2 / 3))
    assert bill.replicated.requests == pytest.approx(128 * 5 / 1000)
    assert bill.replicated.disks == pytest.approx(3.0)
    # 128 packs and as many merged ones; each is read in three zones
    assert bill.diskless.requests == pytest.approx((256 * 5 + 128 * 3) / 1000)
    assert bill.diskless.zone_payload == bill.diskless.disks == 0.0
    assert bill.diskless.zone_catalog == pytest.approx(10 * 0.02)


@pytest.mark.parametrize(("appends", "packs"), [(7, 7), (10**9, 6 * 4 * 3600)])
def test_small_packs_leave_at_most_once_an_interval_and_core(appends: int, packs: int) -> None:
    appended = row(10, append_kafka_bytes=1000, append_kafka_requests=appends)
    bill = bill_of(report_of([node(1, appended)], THREE, [], 24, 36_000), PRICES)
    assert bill.diskless.requests == pytest.approx(((packs + 1) * 5 + packs * 3) / 1000)


def test_one_zone_pays_nothing_between_zones_unless_the_prices_assume_more() -> None:
    report = report_of([node(1, row(10, append_http_bytes=GB))], Shape(), [], 24, 36_000)
    assert bill_of(report, PRICES).replicated.zone_payload == 0
    more = read_prices(
        "put_per_1000 = 1\nget_per_1000 = 1\nzone_gb = 10\n[assume]\ncopies = 3\nzones = 3", "x"
    )
    assert bill_of(report, more).replicated.zone_payload == pytest.approx(10 * (2 + 2 / 3))


def test_the_default_prices_are_those_of_s3_standard() -> None:
    prices = default_prices()
    assert (prices.put_per_1000, prices.get_per_1000, prices.zone_gb) == (0.005, 0.0004, 0.02)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("put_per_1000 =", "ours.toml is not TOML"),
        ("put_per_1000 = 1", "not a price file: Object missing required field"),
        ("put_per_1000 = '1'\nget_per_1000 = 1\nzone_gb = 1", "Expected `float`"),
        ("put_per_1000 = -1\nget_per_1000 = 1\nzone_gb = 1", "put_per_1000 is -1"),
        ("put_per_1000 = nan\nget_per_1000 = 1\nzone_gb = 1", "put_per_1000 is nan"),
        ("putt = 1\nput_per_1000 = 1\nget_per_1000 = 1\nzone_gb = 1", "unknown field `putt`"),
    ],
)
def test_a_wrong_price_file_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_prices(text, "ours.toml")
