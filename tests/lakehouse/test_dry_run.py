"""The dry run of a table: what its columns would make of records that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from worlds.lakehouse import Lake, quiet

from polynya.lakehouse.decoding import rows
from polynya.lakehouse.dry_run.check import Report, check
from polynya.lakehouse.dry_run.proposals import Fields, options_of
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.server.coordinator import Checked, StreamRanges

ID = "0190163d-8694-739b-aea5-966c26f8ad91"


class RangesOnly:
    """A coordinator that knows where records lie, and refuses everything else."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.schemas = lake.coordinator.schemas

    def ranges(self, streams: list[tuple[str, int]]) -> list[StreamRanges | None]:
        every = self._lake.source.every
        found: list[StreamRanges | None] = []
        for name, _ in streams:
            own = [part for part in every if part.stream == name]
            end = own[-1].record + own[-1].records if own else 0
            found.append(StreamRanges(name, "1", 0, end, 0, own, end) if own else None)
        return found


def checked(lake: Lake, *columns: tuple[str, str], records: int = 1000) -> Report:
    table = msgspec.structs.replace(lake.coordinator.table, columns=list(columns))
    asked = Checked(table, lake.coordinator.store, sorted(lake.source.tails))
    coordinator: Any = RangesOnly(lake)
    return check(coordinator, asked, records, lambda done, total: None, lake.blobs)


def test_each_column_tells_what_fits_and_what_would_be_a_dead_letter(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("a", [b'{"price":1.25,"n":7,"o":{"x":1}}', b'{"price":1.255,"n":"many"}'])
    lake.source.append("b", [b'{"price":"2.50"}', b"no json"])
    files = sum(1 for _ in Path(tmp_path).rglob("*"))
    report = checked(lake, ("price", "decimal(12,2)"), ("n", "int"))
    assert sum(1 for _ in Path(tmp_path).rglob("*")) == files, "nothing is written"
    lines = {
        each.column: (each.type, each.declared, each.values, each.unfit) for each in report.columns
    }
    assert lines == {
        "price": ("decimal(12,2)", True, 2, 1),
        "n": ("int", True, 1, 0),
        "n__string": ("string", True, 1, 0),
        "o.x": ("long", False, 1, 0),
    }
    assert (report.records, report.streams, report.dead_records, report.complete) == (4, 2, 2, True)
    options_of = {(each.field, each.reason): each for each in report.problems}
    misfit = options_of["price", "misfit"]
    assert (misfit.records, [(each.stream, each.offset) for each in misfit.examples]) == (
        1,
        [("a", 1)],
    )
    assert "more than 2 digits behind the point" in misfit.examples[0].message
    assert [(each.stream, each.offset) for each in options_of["", "not_json"].examples] == [
        ("b", 1)
    ]


def test_a_dry_run_says_what_the_next_job_then_does(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("a", [b'{"v":%d,"w":"x%d"}' % (number, number) for number in range(50)])
    lake.source.append("a", [b'{"late":1}', b'{"v":"text"}'])
    wanted = [("v", "int"), ("w", "uuid")]
    report = checked(lake, *wanted)
    lake.coordinator.table = msgspec.structs.replace(lake.coordinator.table, columns=wanted)
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    found = lake.delta()
    assert {each.column: each.values for each in report.columns} == {
        name: len(found) - found[name].null_count for name in found.column_names[10:]
    }
    assert report.dead_records == len({row["offset"] for row in lake.iceberg("dlq").to_pylist()})
    assert checked(lake).records == 52, "also of a table that has rows"


def test_a_dry_run_is_bounded_and_spread_over_the_streams(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    for number in range(40):
        lake.source.append("a", [b'{"n":%d}' % number] * 10)
    lake.source.append("b", [b'{"n":1}'] * 10)
    report = checked(lake, records=40)
    assert (report.streams, report.complete) == (2, False)
    assert report.records == 30, "every 20th slice of one stream, and the only one of the other"


def test_a_gone_object_is_told(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("a", [b'{"n":1}'])
    lake.source.append("a", [b'{"n":2}'])
    (tmp_path / "store" / lake.source.every[0].pack).unlink()
    report = checked(lake)
    assert (report.records, report.complete) == (1, False)
    assert len(report.unreadable) == 1 and "no longer exists" in report.unreadable[0]


def test_no_stream_is_an_empty_report(tmp_path: Path) -> None:
    report = checked(Lake(str(tmp_path / "store")), ("a", "int"))
    assert (report.records, report.streams, report.complete) == (0, 0, True)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["12.30", "1.05"], "decimal(12,2)"),
        (['"12.30"', '"1.05"'], "decimal(12,2)"),
        (["12.3", "1.05"], None),
        ([f'"{ID}"', f'"{ID.upper()}"'], "uuid"),
        ([f'"{ID}"', '"x"'], None),
        (['"2026-01-31T09:30:00"'], "timestamp"),
        (['"2026-01-31T09:30:00Z"'], None),
        (["1700000000001", "1700000000002"], "epoch_millis"),
        (["1700000000"], "epoch_seconds"),
        (["1700000000001", "12"], None),
        (["1", '"x"'], "json"),
        ([f'["{ID}"]', "[]"], "list<uuid>"),
        (["null"], None),
    ],
)
def test_proposals_fit_every_value_that_was_seen(texts: list[str], kind: str | None) -> None:
    fields = Fields()
    for text in texts:
        fields.add(rows.parse(b'{"created_at":%s}' % text.encode(), exact=True)[0])
    assert options_of(fields.proposed(), {}).get("created_at") == kind
    assert options_of(fields.proposed(), {"created_at": kind or ""}) == {}


def test_an_integer_is_no_time_unless_its_name_says_so() -> None:
    fields = Fields()
    fields.add({"id": 1_700_000_000, "o": {"updatedAt": 1_700_000_000}, "a.b": "x"})
    assert options_of(fields.proposed(), {}) == {"o.updatedAt": "epoch_seconds"}
