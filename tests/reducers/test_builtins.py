"""The builtin reducers against naive models, in batches of any size and after restores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polynya.reducers.builtins import BUILTINS, builtin
from polynya.reducers.keys import key_bytes, key_text
from polynya.reducers.latest import Latest
from polynya.reducers.merge_patch import MergePatch
from polynya.reducers.reducer import Record, Reducer, ReducerFault

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)
KEYS = st.none() | st.sampled_from([b"", b"a", b"b", b"\xff\x00", b"base64:AA==", "ä".encode()])
CUTS = st.lists(st.booleans(), min_size=40, max_size=40)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def records_of(values: Sequence[tuple[bytes | None, bytes | None]]) -> list[Record]:
    return [
        Record(number, 1000 + number, 2000 + number, key, value)
        for number, (key, value) in enumerate(values)
    ]


def reduced(name: str, records: Sequence[Record], cuts: Sequence[bool], pointer: str = "") -> bytes:
    """The state after the records, restored from its bytes at each cut."""
    reducer = builtin(name, pointer)
    reducer.restore(None)
    for record, cut in zip(records, cuts, strict=False):
        reducer.apply([record])
        if cut:
            state = reducer.state()
            reducer.close()
            reducer = builtin(name, pointer)
            reducer.restore(state)
    return reducer.state()


@given(st.lists(st.tuples(KEYS, VALUES), max_size=30), CUTS)
def test_latest_is_a_dict(pairs: list[tuple[bytes | None, Any]], cuts: list[bool]) -> None:
    model: dict[str, Any] = {}
    for number, (key, value) in enumerate(pairs):
        if key is None:
            continue
        model.pop(key_text(key), None)
        if value is not None:
            model[key_text(key)] = {"record": number, "value": value}
    records = records_of([(key, as_json(value)) for key, value in pairs])
    state = reduced("latest", records, cuts)
    assert json.loads(state) == model
    whole: Reducer = builtin("latest")
    whole.restore(None)
    whole.apply(records)
    assert whole.state() == state
    for name, entry in model.items():
        assert json.loads(whole.get(key_bytes(name)) or b"") == entry


def merged(target: Any, patch: Any) -> Any:
    """Merge a patch into a target by RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


@given(st.lists(VALUES, max_size=20), CUTS)
def test_merge_patch_is_the_algorithm_of_the_rfc(patches: list[Any], cuts: list[bool]) -> None:
    document: Any = None
    for patch in patches:
        document = merged(document, patch)
    records = records_of([(None, as_json(patch)) for patch in patches])
    state = reduced("merge-patch", records, cuts)
    assert json.loads(state) == document
    whole = builtin("merge-patch")
    whole.restore(None)
    whole.apply(records)
    assert whole.state() == state


@given(st.lists(st.none() | st.binary(max_size=5), max_size=20), CUTS)
def test_count_counts(values: list[bytes | None], cuts: list[bool]) -> None:
    records = records_of([(None, value) for value in values])
    assert json.loads(reduced("count", records, cuts)) == {
        "records": len(values),
        "bytes": sum(len(value or b"") for value in values),
        "nulls": values.count(None),
        "first_ms": 2000 if values else None,
        "last_ms": 1999 + len(values) if values else None,
    }


@given(st.sampled_from(BUILTINS), st.binary(max_size=20))
def test_a_damaged_state_is_a_fault_and_nothing_else(name: str, state: bytes) -> None:
    reducer = builtin(name)
    try:
        reducer.restore(state)
    except ReducerFault:
        return
    reducer.apply(records_of([(b"k", b"1")]))


@given(st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=9)), max_size=20), CUTS)
def test_latest_takes_any_bytes(
    pairs: list[tuple[bytes | None, bytes | None]], cuts: list[bool]
) -> None:
    found = json.loads(reduced("latest", records_of(pairs), cuts))
    last = {key: value for key, value in pairs if key is not None}
    assert {key_bytes(key) for key in found} == {
        key
        for key, value in last.items()
        if value is not None and value.strip(b" \t\r\n") != b"null"
    }


ODD = [
    b'{"k":"\\ud800"}',
    b'{"\\ud800":1,"k":1}',
    b'{"k":"a","k":"b"}',
    b'{"k":1e999}',
    b'{"k":%b}' % (b"[" * 200),
    b"%b1%b" % (b"[" * 120, b"]" * 120),
    b"%b1%b" % (b'{"k":' * 127, b"}" * 127),
    b'{"k":"\xff"}',
    b"\xef\xbb\xbf{}",
    b'{"headers":{"operation":"x"},"type":"\\ud800","key":"k"}',
    b'{"headers":{"operation":["x"]},"type":"t","key":null}',
    b'{"headers":[],"type":"t","key":"k"}',
    b'{"k":true}',
    b'{"k":null}',
    b'{"k":"base64:"}',
]


@pytest.mark.parametrize("name", [*BUILTINS, "latest /k", "latest /k/k/0"])
@given(pairs=st.lists(st.tuples(KEYS, st.sampled_from(ODD) | st.binary(max_size=9)), max_size=9))
@example([(None, odd) for odd in ODD])
def test_no_record_has_another_effect_than_a_fault(
    name: str, pairs: list[tuple[bytes | None, bytes]]
) -> None:
    kind, _, pointer = name.partition(" ")
    try:
        state = reduced(kind, records_of(pairs), [True] * 20, pointer)
    except ReducerFault:
        return
    json.loads(state)


def test_merge_patch_keeps_the_bytes_of_numbers() -> None:
    reducer = builtin("merge-patch")
    reducer.restore(None)
    values: list[tuple[bytes | None, bytes | None]] = [
        (None, b'{"b": {"n": 1.10, "x": 1}, "a": 123456789012345678901234567890}'),
        (None, b' {"b": {"x": null, "m": [1,  {"y": null}]}} '),
    ]
    reducer.apply(records_of(values))
    expected = b'{"a":123456789012345678901234567890,"b":{"m":[1,  {"y": null}],"n":1.10}}'
    assert reducer.state() == expected


def test_latest_understands_change_messages() -> None:
    def message(key: str, operation: str, value: Any = None) -> bytes:
        return as_json(
            {"type": "user", "key": key, "value": value, "headers": {"operation": operation}}
        )

    reducer = builtin("latest")
    reducer.restore(None)
    reducer.apply(
        records_of(
            [
                (None, message("1", "insert", {"name": "Ann"})),
                (None, message("2", "insert", {"name": "Bob"})),
                (None, message("1", "update", {"name": "Eve"})),
                (None, message("2", "delete")),
                (None, as_json({"headers": {"control": "snapshot-start"}})),
                (None, as_json({"no": "message"})),
            ]
        )
    )
    assert json.loads(reducer.state()) == {"user/1": {"record": 2, "value": {"name": "Eve"}}}
    reset = as_json({"headers": {"control": "reset"}})
    assert reducer.apply([Record(6, 0, 0, None, reset)]) == 1
    assert reducer.state() == b"{}"


def test_latest_finds_its_key_by_a_pointer() -> None:
    records = records_of(
        [
            (None, b'{"user": {"id": "u1"}, "n": 1}'),
            (b"ignored", b'{"user": {"id": 7}, "n": 2}'),
            (None, b'{"user": {"id": {}}, "n": 3}'),
            (None, b'{"user": 1}'),
            (None, b"no json"),
            (None, None),
            (None, b'{"user": {"id": "u1"}, "n": 4}'),
        ]
    )
    found = json.loads(reduced("latest", records, [False] * 7, "/user/id"))
    assert {key: entry["record"] for key, entry in found.items()} == {"7": 1, "u1": 6}


def test_a_value_that_is_no_json_is_text_or_base64() -> None:
    records = records_of([(b"a", b"plain"), (b"b", b"\xff"), (b"c", b" 1 ")])
    found = json.loads(reduced("latest", records, [False] * 3))
    assert [found[key]["value"] for key in "abc"] == ["plain", {"$base64": "/w=="}, 1]


def test_a_state_that_is_too_large_is_a_fault_that_says_so() -> None:
    latest = Latest(bytes_max=100)
    latest.restore(None)
    with pytest.raises(ReducerFault, match=r"at record 2 the state has .* at most 100"):
        latest.apply(records_of([(b"%d" % n, b'"123456"') for n in range(9)]))
    document = MergePatch(bytes_max=50)
    document.restore(None)
    document.apply(records_of([(None, b'{"a": "%b"}' % (b"x" * 40)) for _ in range(9)]))
    assert len(document.state()) == 48
    document.apply(records_of([(None, b'{"b": 1}')]))
    with pytest.raises(ReducerFault, match="at most 50"):
        document.state()


def test_latest_lists_its_keys_in_order() -> None:
    latest = Latest()
    latest.restore(None)
    latest.apply(records_of([(key, b"1") for key in (b"c", b"a", b"b", b"d")]))
    assert [key for key, _ in latest.items(None, 2)] == ["a", "b"]
    assert [key for key, _ in latest.items("b", 9)] == ["c", "d"]


def test_merge_patch_refuses_what_is_no_json() -> None:
    reducer = builtin("merge-patch")
    reducer.restore(None)
    with pytest.raises(ReducerFault, match="record 1 is no JSON"):
        reducer.apply(records_of([(None, b"{}"), (None, b"{")]))
