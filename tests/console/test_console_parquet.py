"""The result of a query as a Parquet file, which pyarrow reads."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import io
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from chromium import Browser, browser
from missing import needed_module
from product import running_node
from worlds.console_acts import go, wait_text

parquet = needed_module("pyarrow.parquet")
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
__all__ = ["browser"]  # the fixture

COLUMNS = {
    "n": ("9007199254740993", 9007199254740993),
    "small": ("(-7)::smallint", -7),
    "price": ("-1.50::decimal(9, 2)", decimal.Decimal("-1.50")),
    "huge": ("170141183460469231731687303715884105727::hugeint", "170141183460469231731687303715884105727"),
    "ratio": ("0.1::double", 0.1),
    "yes": ("true", True),
    "name": ("'Tromsø, \"north\"'", 'Tromsø, "north"'),
    "day": ("date '1969-12-30'", dt.date(1969, 12, 30)),
    "at": ("timestamp '2026-11-01 12:00:00.123456'", dt.datetime(2026, 11, 1, 12, 0, 0, 123456)),  # noqa: DTZ001 (it has none)
    "utc": ("timestamptz '2026-11-01 12:00:00+02'", dt.datetime(2026, 11, 1, 10, tzinfo=dt.UTC)),
    "list": ("[1, 2]", "[1, 2]"),
    "nothing": ("null::bigint", None),
}  # fmt: skip
SAVE = (
    "new Promise((done) => { URL.createObjectURL = (blob) => { const reader = new FileReader();"
    " reader.onload = () => done(reader.result.split(',')[1]); reader.readAsDataURL(blob);"
    " return 'blob:none'; }; document.querySelector('#parquet').click(); })"
)


def test_a_result_is_saved_as_parquet_with_its_types(browser: Browser, tmp_path: Path) -> None:
    one = ", ".join(f'{sql} as "{name}"' for name, (sql, _) in COLUMNS.items())
    none = ", ".join("null" for _ in COLUMNS)
    many = f"select * from (select {one} union all select {none}), range(10) order by n nulls last"
    with running_node(tmp_path / "data", "--cores", "1") as node:
        page = browser.open(f"{node.url}/console/")
        go(page, f"sql?q={quote(many)}")
        wait_text(page, "#sql-state", "20 rows, in")
        data = base64.b64decode(page.run(SAVE))
        wait_text(page, "#said", "result.parquet has 20 rows")
        page.call("Page.close")
    table = parquet.read_table(io.BytesIO(data))
    rows = [{name: row[name] for name in COLUMNS} for row in table.to_pylist()]
    expected = {name: value for name, (_, value) in COLUMNS.items()}
    assert rows == [expected] * 10 + [dict.fromkeys(COLUMNS)] * 10, json.dumps(
        rows[:1], default=str
    )
