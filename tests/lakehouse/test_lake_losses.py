"""Nothing is lost in silence: what no column can hold is a dead letter, also where it is rare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from worlds.lakehouse import Lake, quiet
from worlds.schema_registry import TIME

from polynya.front.http.api.schemas import columns_of
from polynya.lakehouse.decoding import rows
from polynya.lakehouse.decoding.decode import Decoded, Schema, decode
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.schema.columns import Column
from polynya.wire.kafka.batches import HEADER_BYTES, Record, build_batch, header_of, records_of

COLUMNS = [
    Column("a", "long", "a"),
    Column("d", "double", "d"),
    Column("o", "struct", "o", [Column("x", "long", "x")]),
]


def decoded(schema: Schema, *records: bytes) -> Decoded:
    data = np.frombuffer(bytearray(b"".join(each + b"," for each in records)), np.uint8)
    return decode(data, np.cumsum([len(each) + 1 for each in records]), schema)


@pytest.mark.parametrize("schema", [Schema(COLUMNS, discover=True), Schema(COLUMNS, full=True)])
def test_a_field_named_by_half_a_surrogate_pair_is_a_dead_letter(schema: Schema) -> None:
    found = decoded(
        schema,
        b'{"a":1}',
        b'{"a":2,"\\ud800":5}',
        b'{"o":{"\\uDFFFz":1,"x":2}}',
        b'{"a":3,"\\ud83d\\ude00":null,"\\udc00":null}',
    )
    assert found.arrays[0].to_pylist() == [1, 2, None, 3]
    assert found.arrays[2].to_pylist() == [None, None, {"x": 2}, None]
    assert {
        row: [(each.reason, each.field) for each in problems]
        for row, problems in found.problems.items()
    } == {
        1: [("bad_text", "\\ud800")],
        2: [("bad_text", "o.\\udfffz")],
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993.0", 2**53 + 1),
        ("-9007199254740993.000", -(2**53) - 1),
        ("9007199254740992.0", 2.0**53),
        ("9007199254740993.5", 9007199254740994.0),
        ("9007199254740993e0", 2.0**53),
        ("1e300", 1e300),
        ("1.0", 1.0),
    ],
)
def test_an_integer_with_a_fraction_of_zeros_is_never_rounded(text: str, value: float) -> None:
    found, problem = rows.parse(text.encode())
    assert problem is None
    assert (found, type(found)) == (value, type(value))


def test_such_an_integer_goes_to_its_own_column(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    records = [b'{"d":0.5}', b'{"d":9007199254740993.0}', b'{"d":2.0}']
    lake.source.append("a", records)
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    table = lake.delta().sort_by("offset")
    assert table["d"].to_pylist() == [0.5, None, None]
    assert table["d__long"].to_pylist() == [None, 2**53 + 1, 2]


def test_a_header_key_that_is_not_utf_8_keeps_its_bytes() -> None:
    made = build_batch([Record(b"k", b"v", TIME, (("ab", b"1"), ("cd", b"2")))])
    body = made[HEADER_BYTES:].replace(b"ab", b"\xff\xfe").replace(b"cd", b"\xff\xfd")
    (record,) = records_of(made, body)
    assert header_of(made).records == 1
    assert [key for key, _ in record.headers] == ["\\xff\\xfe", "\\xff\\xfd"]


def test_fields_of_columns_with_other_names_are_in_the_metadata(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "store"))
    lake.source.append("a", [b'{"n":1}'])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    assert "polynya.fields" not in lake.static_table().properties
    lake.source.append("a", [b'{"a b":1,"offset":2,"o":{"c d":[{"e":1}]},"n":"x"}', b'{"n":"y"}'])
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    pointer = lake.coordinator.table.iceberg.removeprefix("file://")
    found = {
        column["name"]: (column.get("field"), column.get("fields"))
        for column in columns_of(Path(pointer).read_bytes())
    }
    assert found["a_b"] == ("a b", None)
    assert found["offset_2"] == ("offset", None)
    assert found["n__string"] == ("n", None)
    assert found["o"] == (None, {"o.c_d": "c d"})
    assert found["n"] == found["offset"] == (None, None)
    assert lake.delta().num_rows == lake.iceberg().num_rows == 3
