"""The fast decoder against the naive one: `json` and one record at a time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.lakehouse.decoding import rows
from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import Decoded, Schema, decode, observed
from polynya.lakehouse.schema.choice import shape
from polynya.lakehouse.schema.columns import Column, adopt
from polynya.lakehouse.schema.proposals import proposed_columns


def packed(records: list[bytes]) -> tuple[Any, Any]:
    data = np.frombuffer(b"".join(record + b"," for record in records), np.uint8).copy()
    return data, np.cumsum([len(record) + 1 for record in records], dtype=np.int64)


def naive(
    records: list[bytes], columns: list[Column], *, full: bool = False
) -> tuple[list[pa.Array], dict[int, list[str]]]:
    """Return each record's expected row, by the slow path alone."""
    placed, problems = [], {}
    for number, record in enumerate(records):
        value, problem = rows.parse(record)
        found = [problem] if problem else []
        if problem is None and not isinstance(value, dict):
            found = [rows.Problem(rows.NOT_OBJECT, "", "")]
        placed.append(
            {} if found else rows.by_column(columns, value, found, unknown_is_problem=not full)
        )
        if found:
            problems[number] = [problem.reason for problem in found]
    return [
        pa.array([row.get(column.name) for row in placed], arrow_type(column)) for column in columns
    ], problems


def columns_of(records: list[bytes]) -> list[Column]:
    return adopt([], proposed_columns([], observed(rows.parse(record)[0] for record in records)))


def check(records: list[bytes], schema: Schema) -> Decoded:
    data, ends = packed(records)
    before = data.copy()
    decoded = decode(data, ends, schema)
    assert (data == before).all(), "the payload is as it was"
    arrays, problems = naive(records, schema.columns, full=schema.full)
    for column, fast, slow in zip(schema.columns, decoded.arrays, arrays, strict=True):
        fast.validate(full=True)
        assert fast.type == slow.type
        assert fast.to_pylist() == slow.to_pylist(), column
    assert {
        row: [problem.reason for problem in found] for row, found in decoded.problems.items()
    } == problems
    return decoded


names = st.sampled_from(["a", "b", "A", "offset", "x y", "", "é"])
times = st.sampled_from(
    [
        "2013-01-01T10:00:00Z",
        "2013-01-01 10:00+02",
        "2013-13-01T10:00:00Z",
        "2013-01-01T10:00:00",
        "2024-02-30T00:00:00Z",
    ]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.integers(-(2**70), 2**70), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63]),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([5.0, 1e16, -0.0, 1e300]), st.text(max_size=5), times,
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, values, max_size=4)
odd = st.sampled_from(
    [b"5", b"[]", b'"x"', b"null", b'{"a":1,"a":2}', b'{"a":"\\ud800"}', b'{"a":1e999}', b'{"a":"\xff"}', b'{"a":"\\u0000"}', b"{ }",
     b'{\n"a" : 1\n}', b'{"b":{"a":1,"a":2}}', b'{"a":5.0}', b'{"a":1E2}', b'{"a":1}{"a":2}', b'{"a":1', b'""', b'{"a":[1,{"a":2}]}']
)  # fmt: skip
records_of = st.lists(
    st.one_of(objects.map(lambda value: json.dumps(value).encode()), odd), min_size=1, max_size=12
)


NUMBERS = [
    b"1",
    b"-1",
    b"5.0",
    b"1.5",
    b"1e2",
    b"1e22",
    b"1e999",
    b"%d" % 2**53,
    b"%d" % (2**53 + 1),
    b"%d" % -(2**63),
    b"%d" % 2**64,
]
NUMBERS += [b"9" * 38, b"9" * 39, b"null", b'"x"', b"true"]


@pytest.mark.parametrize(
    "kinds",
    [
        ["decimal"],
        ["double"],
        ["long"],
        ["double", "decimal"],
        ["long", "decimal"],
        ["long", "double", "decimal"],
    ],
)
@pytest.mark.parametrize("around", [b'{"a":%s}', b'{"a":{"b":%s}}', b'{"a":[%s,%s]}'])
def test_numbers_are_placed_alike_in_all_columns(kinds: list[str], around: bytes) -> None:
    columns = [Column("n", kind, f"n_{kind}") for kind in kinds]
    if b"[" in around:
        columns = [Column("a", "list", "a", [Column("", kinds[0], "element")])]
    elif b"b" in around:
        columns = [
            Column(
                "a", "struct", "a", [Column("b", column.type, column.name) for column in columns]
            )
        ]
    else:
        columns = [Column("a", column.type, column.name) for column in columns]
    records = [around.replace(b"%s", number) for number in NUMBERS]
    check(records, Schema(columns))
    for record in records:
        check([record], Schema(columns))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records_of, records_of, st.booleans(), st.booleans())
def test_fast_equals_naive(
    sample: list[bytes], records: list[bytes], full: bool, hinted: bool
) -> None:
    columns = columns_of(sample)
    hints = shape(columns, observed(rows.parse(record)[0] for record in records)) if hinted else {}
    check(records, Schema(columns, hints, full=full))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records_of, records_of)
def test_proposed_columns_lead_to_a_schema_without_unknown_fields(
    sample: list[bytes], records: list[bytes]
) -> None:
    columns = columns_of(sample)
    data, ends = packed(records)
    proposals = decode(data, ends, Schema(columns, discover=True)).proposals
    wide = adopt(columns, proposals)
    assert wide[: len(columns)] == columns or proposals
    decoded = check(records, Schema(wide))
    assert not [
        1
        for found in decoded.problems.values()
        for problem in found
        if problem.reason == rows.UNKNOWN
    ]
    assert not decode(*packed(records), Schema(wide, discover=True)).proposals


def test_misaligned_lines_are_not_believed() -> None:
    """Two values in one record beside a record without one keep the count of lines; the rows must
    not shift."""
    good = [b'{"a":%d}' % number for number in range(20)]
    for bad in (
        [b'""', b'{"a":100}{"a":101}'],
        [b'{"a":100}{"a":101}', b"null"],
        [b'{"a":"}', b'{"b":"}'],
        [b'{"a":{}', b"{}}"],
    ):
        check(good[:10] + bad + good[10:], Schema(columns_of(good)))


def test_many_misfits_are_decoded_one_by_one() -> None:
    records = [
        b'{"n":%d,"s":"x"}' % number if number % 3 else b'{"n":"odd","s":"y"}'
        for number in range(300)
    ]
    decoded = check(records, Schema([Column("n", "long", "n"), Column("s", "string", "s")]))
    assert len(decoded.problems) == 100


def test_few_misfits_are_found_in_a_large_block() -> None:
    records = [b'{"n":%d}' % number for number in range(5000)]
    for at in (0, 17, 18, 2500, 4999):
        records[at] = [b'{"n":1.5}', b'{"n":"x"}', b'{"n":9223372036854775808}'][at % 3]
    decoded = check(records, Schema([Column("n", "long", "n")]))
    assert sorted(decoded.problems) == [0, 17, 18, 2500, 4999]


def test_nan_is_no_json() -> None:
    decoded = check(
        [b'{"d":NaN}', b'{"d":1.5}', b'{"d":-Infinity}'], Schema([Column("d", "double", "d")])
    )
    assert decoded.arrays[0].to_pylist() == [None, 1.5, None]


def test_bad_utf8_is_a_dead_letter_and_not_a_wrong_string() -> None:
    records = [b'{"s":"ok"}', b'{"s":"\xff\xfe"}', b'{"s":"fine"}']
    decoded = check(records, Schema([Column("s", "string", "s")]))
    assert decoded.problems[1][0].reason == rows.BAD_TEXT
    assert decoded.arrays[0].to_pylist() == ["ok", None, "fine"]


def test_a_clash_of_a_hundredth_is_proposed_and_less_is_not() -> None:
    columns = [Column("n", "long", "n")]
    few = [b'{"n":%d}' % number for number in range(1000)]
    few[5] = b'{"n":"x"}'
    assert not decode(*packed(few), Schema(columns, discover=True)).proposals
    many = [b'{"n":"x"}' if number % 50 == 0 else b'{"n":1}' for number in range(1000)]
    proposals = decode(*packed(many), Schema(columns, discover=True)).proposals
    assert [(proposed.field, proposed.type) for proposed in proposals] == [("n", "string")]


@pytest.mark.parametrize(
    "text", ["2013-01-01T10:00:00Z", "2013-01-01T10:00:00.123456+02:00", "2013-01-01 10:00Z"]
)
def test_times(text: str) -> None:
    array, others = rows.to_times(pa.array([text, None]))
    assert others is None
    assert array[0].value == rows.to_time(text)
    array, others = rows.to_times(pa.array([text, "2013-01-01T10:00:00", "x", None]))
    assert others.to_pylist() == [False, True, True, False]
