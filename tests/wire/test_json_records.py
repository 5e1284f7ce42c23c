"""JSON bodies are checked as strictly as a foreign parser does, and come back byte for byte."""

from __future__ import annotations

import json
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polynya.base.limits import JSON_DEPTH_MAX
from polynya.wire import json_records
from polynya.wire.json_records import (
    RECORDS_PER_APPEND_MAX,
    BadJson,
    TooManyRecords,
    as_array,
    as_lines,
    parse_records,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SPACE = st.text(alphabet=" \t\r\n", max_size=3)


def lengths_of(packed: bytes, payload: bytes) -> list[int]:
    found = array("I")
    found.frombytes(packed)
    return list(found) if packed else [len(payload)]


@given(
    st.lists(VALUES, min_size=1, max_size=6),
    st.lists(SPACE, min_size=14, max_size=14),
    st.booleans(),
)
def test_records_are_the_elements_less_surrounding_whitespace(
    values: list[object], spaces: list[str], ascii_only: bool
) -> None:
    texts = [
        json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        for value in values
    ]
    around = [space.encode() for space in spaces]
    body = (
        around[0]
        + b"["
        + b",".join(around[i] + text + around[i + 6] for i, text in enumerate(texts))
        + b"]"
        + around[1]
    )
    try:
        body.decode()
    except UnicodeDecodeError:
        with pytest.raises(BadJson):
            parse_records(body)
        return
    records, payload, packed = parse_records(body)
    assert records == len(texts)
    assert payload == b"".join(text + b"," for text in texts)
    assert lengths_of(packed, payload) == [len(text) + 1 for text in texts]
    assert as_array([payload]) == b"[" + b",".join(texts) + b"]"


@given(
    st.binary(max_size=40)
    | st.text(alphabet='[]{}",:\\u0129.eE+-truefalsn dDcC8\n', max_size=40).map(str.encode)
)
def test_what_is_taken_is_what_a_strict_parser_takes(body: bytes) -> None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(body.decode(), parse_constant=refuse)
        legal = not body.startswith(b"\xef\xbb\xbf")
    except ValueError:
        legal = False
    try:
        parse_records(body)
        taken = True
    except BadJson:
        taken = False
    assert taken == legal


@pytest.mark.parametrize(
    "body",
    [
        b"12345678901234567890",
        b"1.0",
        b"-0",
        b"1e400",
        b'{"a":1,"a":2}',
        b'"\\ud83d"',
        b'{"b": 1,\n "a": 2}',
        b'"/\\/"',
    ],
)
def test_nothing_is_rewritten(body: bytes) -> None:
    assert parse_records(b" " + body + b"\n") == (1, body + b",", b"")


def test_lone_surrogates_among_other_elements_keep_their_places() -> None:
    records, payload, packed = parse_records(rb'[ "\ud83d" , "\\ud83d",{"x":"\uDE00"} ]')
    assert (records, payload) == (3, rb'"\ud83d","\\ud83d",{"x":"\uDE00"},')
    assert lengths_of(packed, payload) == [9, 10, 15]
    assert as_lines([payload]) == b'"\\ud83d"\n"\\\\ud83d"\n{"x":"\\uDE00"}\n'


def test_one_level_is_flattened_and_empty_arrays_are_nothing() -> None:
    assert parse_records(b"[[1,2]]") == (1, b"[1,2],", b"")
    assert parse_records(b" [ ] ") == (0, b"", b"")
    assert parse_records(b"[1]") == (1, b"1,", b"")
    assert as_array([]) == b"[]"


@pytest.mark.parametrize(
    "body",
    [
        b"NaN",
        b"Infinity",
        b"[1,]",
        b"\xff",
        b'"\xc3"',
        b'"\xed\xa0\x80"',
        b"",
        b" ",
        b"1 2",
        b"\xef\xbb\xbf1",
        b"'a'",
        b'"a\nb"',
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadJson):
        parse_records(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"[" * 200 + b'"' + b'\\"' * 200_000,
        b"[" * 129 + b"]" * 129,
    ],
)
def test_deep_nesting_is_refused_in_linear_time_without_recursion(body: bytes) -> None:
    with pytest.raises(BadJson):
        parse_records(body)


def test_brackets_count_only_where_they_nest() -> None:
    assert parse_records(b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX)[0] == 1
    assert parse_records(b'"' + b"[{" * 1000 + b'"')[0] == 1
    assert parse_records(b"[" + b",".join([b'{"a":[]}'] * 1000) + b"]")[0] == 1000


def depth_of(text: bytes) -> int:
    """Return the depth that a bytewise parser reaches before the first error."""
    depth = deepest = 0
    inside = escaped = False
    for byte in text:
        if escaped:
            escaped = False
        elif byte == ord("\\"):
            if not inside:
                break
            escaped = True
        elif byte == ord('"'):
            inside = not inside
        elif not inside:
            depth += (byte in b"[{") - (byte in b"]}")
            deepest = max(deepest, depth)
    return deepest


@given(st.text(alphabet='[]{}",:\\a', max_size=30).map(str.encode), st.integers(0, 3))
def test_no_parser_goes_deeper_than_was_counted(text: bytes, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "JSON_DEPTH_MAX", most)
        assert json_records._deeper_than_allowed(text) or depth_of(text) <= most


@given(VALUES, st.integers(0, 3), st.booleans())
def test_what_is_json_is_counted_exactly(value: object, most: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "JSON_DEPTH_MAX", most)
        assert json_records._deeper_than_allowed(text) == (depth_of(text) > most)


def test_too_many_records_are_refused_before_they_are_made() -> None:
    with pytest.raises(TooManyRecords):
        parse_records(b"[" + b"1," * RECORDS_PER_APPEND_MAX + b"1]")
    wide = b"[[" + b"1," * RECORDS_PER_APPEND_MAX + b'1],"a,b"]'
    assert parse_records(wide)[0] == 2


def test_lines_have_one_record_each() -> None:
    assert as_lines([b'{"a":\r\n1},', b"2,"]) == b'{"a":  1}\n2\n'
    assert as_lines([]) == b""


@pytest.mark.parametrize("part", [1, 2, 7])
def test_a_text_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(json_records, "_PART", part)
    monkeypatch.setattr(json_records, "RECORDS_PER_APPEND_MAX", 3)
    record = b'{"a":[1,{"b,[":"]\\"["}],"":[[],2]}'
    for count in (1, 2, 3):
        body = b"[" + b",".join([record] * count) + b"]"
        assert json_records.parse_records(body)[0] == count
    with pytest.raises(json_records.TooManyRecords):
        json_records.parse_records(b"[" + b",".join([record] * 4) + b"]")
    deep = b"[" * 129 + b'"]"' + b"]" * 129
    with pytest.raises(json_records.BadJson, match="at most 128 deep"):
        json_records.parse_records(deep)
    assert json_records.parse_records(deep[1:-1])[0] == 1
