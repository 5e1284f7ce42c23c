"""Types that only declarations give: what fits is exact, and what does not is a dead letter."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.base.column_types import BadType, canonical_type
from polynya.lakehouse.decoding import rows
from polynya.lakehouse.decoding.assemble import map_fields
from polynya.lakehouse.decoding.decode import Decoded, Schema, decode, observed
from polynya.lakehouse.schema.choice import chosen
from polynya.lakehouse.schema.columns import Column, adopt, declared

LOCAL = datetime(2026, 1, 31, 9, 30, tzinfo=UTC).replace(tzinfo=None)
ID = "0190163D-8694-739B-AEA5-966C26F8AD91"


def columns_of(*kinds: tuple[str, str]) -> list[Column]:
    return adopt([], declared([(field, canonical_type(kind)) for field, kind in kinds]))


def decoded(columns: list[Column], *records: str, full: bool = True) -> Decoded:
    raw = [record.encode() for record in records]
    data = np.frombuffer(bytearray(b"".join(each + b"," for each in raw)), np.uint8)
    ends = np.cumsum([len(each) + 1 for each in raw])
    return decode(data, ends, Schema(columns, full=full, discover=not full))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(10,2)", "12.30", Decimal("12.30")),
        ("decimal(10,2)", "12.3000", Decimal("12.30")),
        ("decimal(10,2)", '"-12.3"', Decimal("-12.30")),
        ("decimal(10,2)", "99999999.99", Decimal("99999999.99")),
        ("decimal(10,2)", "1e3", Decimal(1000)),
        ("decimal(10,2)", "12.345", None),
        ("decimal(10,2)", "100000000", None),
        ("decimal(10,2)", '"twelve"', None),
        ("decimal(38,20)", "9" * 38, None),
        ("decimal(20,18)", "9" * 20, None),
        ("decimal(10,2)", "1e999999999", None),
        ("decimal(38,20)", "0.12345678901234567891", Decimal("0.12345678901234567891")),
        ("decimal(38, 0)", "9007199254740993.0", Decimal(2**53 + 1)),
        ("int", "2147483647", 2**31 - 1),
        ("int", "5.0", 5),
        ("int", "2147483648", None),
        ("int", "1.5", None),
        ("int", "true", None),
        ("float", "1.5", 1.5),
        ("float", "0.1", float(np.float32(0.1))),
        ("float", "16777216", 2.0**24),
        ("float", "16777217", None),
        ("float", "16777217.0", None),
        ("float", "9007199254740993.0", None),
        ("float", "1e60", None),
        ("float", '"1"', None),
        ("uuid", f'"{ID}"', ID.lower()),
        ("uuid", '"0190163d"', None),
        ("uuid", "7", None),
        ("timestamp", '"2026-01-31T09:30:00.25"', LOCAL.replace(microsecond=250_000)),
        ("timestamp", '"2026-01-31 09:30"', LOCAL),
        ("timestamp", '"2026-01-31T09:30:00Z"', None),
        ("timestamp", '"2026-02-30T09:30:00"', None),
        ("timestamp", '"2026-01-31T09:30:00.1234567"', None),
        ("epoch_seconds", "1700000000", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("epoch_seconds", "1700000000.123456", datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)),
        ("epoch_seconds", "1700000000.1234567", None),
        ("epoch_millis", "1700000000001", datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)),
        ("epoch_millis", '"1700000000001"', datetime(2023, 11, 14, 22, 13, 20, 1000, UTC)),
        ("epoch_millis", "253402300800000", None),
        ("epoch_micros", "1700000000000001", datetime(2023, 11, 14, 22, 13, 20, 1, UTC)),
        ("epoch_micros", "0.5", None),
        (
            "json",
            '{"a": [1, 0.12345678901234567891, "é", null]}',
            '{"a":[1,0.12345678901234567891,"é",null]}',
        ),
        ("json", '"x"', '"x"'),
        ("json", "{}", "{}"),
        ("json", '{"a": 1, "a": 2}', None),
        ("json", '["\\ud800"]', None),
        ("list<decimal(4,1)>", "[1, 2.5, null]", [Decimal(1), Decimal("2.5"), None]),
        ("list<decimal(4,1)>", "[1, 2.55]", None),
        ("list<list<int>>", "[[1], [], [2, 3]]", [[1], [], [2, 3]]),
        ("list<uuid>", f'["{ID}"]', [ID.lower()]),
        ("list<json>", '[{"a": 1}, 2]', ['{"a":1}', "2"]),
    ],
)
@pytest.mark.parametrize("beside", [0, 2000])
def test_a_value_fits_its_column_exactly_or_is_a_dead_letter(
    kind: str, text: str, value: Any, beside: int
) -> None:
    records = [f'{{"x":{text}}}', *['{"x":null}'] * beside]
    found = decoded(columns_of(("x", kind)), *records)
    assert found.arrays[0][0].as_py() == value
    assert [each.reason for each in found.problems.get(0, ())] == (
        [] if value is not None else ["misfit"]
    )
    assert set(found.problems) <= {0}


def test_a_dead_letter_gives_the_reason() -> None:
    found = decoded(columns_of(("a.x", "decimal(4,2)")), '{"a":{"x":1.234}}')
    assert [(each.field, each.message) for each in found.problems[0]] == [
        (
            "a.x",
            "a number fits none of the field's columns: decimal(4,2): more than 2 digits behind the point",
        )
    ]


numbers = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from(
        ["12.30", "-0.0", "+1.5", ".5", "1e2", ID, ID.lower(), "2024-01-01T00:00:00", "x"]
    ),
)
kinds = st.sampled_from(
    [
        "decimal(12,3)",
        "int",
        "float",
        "uuid",
        "timestamp",
        "epoch_seconds",
        "epoch_millis",
        "epoch_micros",
        "json",
    ]
)


@settings(max_examples=examples(200), deadline=None)
@given(kinds, st.lists(st.none() | numbers, max_size=30), st.booleans())
def test_the_fast_decoder_finds_what_the_exact_one_finds(
    kind: str, values: list[Any], nested: bool
) -> None:
    wanted = f"list<{kind}>" if nested else kind
    columns = columns_of(("x", wanted))
    records = [json.dumps({"x": [each, each] if nested else each}) for each in values] or ["{}"]
    found = decoded(columns, *records)
    for number, record in enumerate(records):
        problems: list[rows.Problem] = []
        value = rows.parse(record.encode(), exact=True)[0]
        row = rows.by_column(columns, value, problems, unknown_is_problem=False)
        alone = decoded(columns, record).arrays[0][0]
        assert found.arrays[0][number] == alone or (row.get("x") is None and not alone.is_valid)
        assert bool(problems) == (number in found.problems)
        assert found.arrays[0][number].is_valid == (row.get("x") is not None)


def test_records_of_declared_types_are_decoded_together() -> None:
    alone = columns_of(
        ("a", "int"), ("b", "decimal(9,2)"), ("c", "list<uuid>"), ("d", "epoch_millis")
    )
    assert map_fields(alone) == set()
    assert map_fields(columns_of(("a", "json"), ("b", "list<json>"))) == {"a", "b"}
    assert map_fields([*alone, Column("a", "string", "a__string")]) == {"a"}


def test_a_declared_type_takes_the_values_of_its_group() -> None:
    seen = observed([{"x": 1.5, "y": "text", "z": {"a": 1}}] * 10 + [{"x": "n/a", "y": 7}] * 10)
    columns = chosen(columns_of(("x", "int"), ("y", "uuid"), ("z", "json")), [seen])
    assert [(each.name, each.type) for each in columns] == [
        ("x", "int"),
        ("y", "uuid"),
        ("z", "json"),
        ("x__string", "string"),
        ("y__long", "long"),
    ]
    found = decoded(columns, '{"x":1.5,"y":"text"}', '{"x":"n/a","y":7}')
    assert sorted(found.problems) == [0]
    assert [each.field for each in found.problems[0]] == ["x", "y"]


def test_what_is_deeper_than_eight_levels_is_json_text() -> None:
    value: Any = {"end": [1.50, {}]}
    for _ in range(8):
        value = {"d": value}
    columns = chosen([], [observed([value])])
    kind, depth = columns[0], 1
    while kind.children:
        kind, depth = kind.children[0], depth + 1
    assert (kind.type, depth) == ("json", 8)
    found = decoded(columns, json.dumps(value), full=False)
    inner = found.arrays[0][0].as_py()
    while isinstance(inner, dict):
        inner = inner["d"]
    assert (inner, found.problems) == ('{"end":[1.5,{}]}', {})


def test_a_value_that_is_nested_too_deeply_is_a_dead_letter() -> None:
    value = "[" * 900 + "]" * 900
    found = decoded(columns_of(("x", "json")), f'{{"x":{value}}}', '{"x":[[]]}')
    assert found.arrays[0].to_pylist() == [None, "[[]]"]
    assert [each.reason for each in found.problems[0]] in (["misfit"], ["not_json"])


def test_a_struct_beside_json_text_still_grows() -> None:
    columns = [*columns_of(("x.a", "long")), Column("x", "json", "x__json")]
    grown = chosen(columns, [observed([{"x": {"a": 1, "b": "new"}}])])
    assert [child.name for child in grown[0].children] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("decimal(39,2)", "1 to 38 digits"),
        ("decimal(4,5)", "1 to 38 digits"),
        ("decimal(0)", "1 to 38 digits"),
        ("integer", "expected long"),
        ("list<>", "expected long"),
        ("list<" * 8 + "int" + ">" * 8, "8 lists"),
    ],
)
def test_what_is_no_type_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadType, match=why.replace("(", r"\(")):
        canonical_type(text)


def test_a_type_has_one_spelling() -> None:
    assert canonical_type("list< decimal( 10, 2 ) >") == "list<decimal(10,2)>"
    assert canonical_type("decimal(7)") == "decimal(7,0)"
