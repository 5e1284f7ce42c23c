"""Creation of columns, and their immutability."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import examples

from polynya.lakehouse.schema import types
from polynya.lakehouse.schema.choice import shape
from polynya.lakehouse.schema.columns import Column, adopt, leaves
from polynya.lakehouse.schema.profiles import FieldProfile, observe
from polynya.lakehouse.schema.proposals import proposed_columns


def seen(*values: Any) -> FieldProfile:
    found = FieldProfile()
    for value in values:
        observe(found, value)
    return found


def typed(columns: list[Column]) -> dict[str, Any]:
    """{name: type}; structs as dicts, lists as [element]."""
    return {column.name: _typed(column) for column in columns}


def _typed(column: Column) -> Any:
    if column.type == "struct":
        return typed(column.children)
    return [_typed(column.children[0])] if column.type == "list" else column.type


def grown(columns: list[Column], *values: Any) -> list[Column]:
    return adopt(columns, proposed_columns(columns, seen(*values)))


def test_first_sight() -> None:
    value = {
        "i": 1,
        "f": 1.5,
        "whole": 5.0,
        "s": "x",
        "t": "2013-01-01T10:00:00Z",
        "b": True,
        "o": {"x": [1]},
        "big": 2**64,
    }
    assert typed(grown([], value)) == {
        "i": "long", "f": "double", "whole": "double", "s": "string", "t": "timestamptz", "b": "boolean", "o": {"x": ["long"]}, "big": "decimal",
    }  # fmt: skip


def test_a_fraction_in_the_sample_makes_a_double() -> None:
    assert typed(grown([], *[{"n": 1}] * 300, {"n": 0.5})) == {"n": "double"}


def test_what_says_nothing_has_no_column_yet() -> None:
    columns = grown([], {"a": None, "b": {}, "c": [], "d": {"e": None}, "f": [[]], "g": [{}]})
    assert columns == []
    assert typed(grown(columns, {"b": {"x": 1}, "c": ["y"]})) == {
        "b": {"x": "long"},
        "c": ["string"],
    }


def test_a_clash_makes_a_sibling_and_the_first_stays() -> None:
    columns = grown([], {"n": 1, "t": "2013-01-01T10:00:00Z"})
    wide = grown(
        columns, {"n": 1.5, "t": "soon"}, {"n": "x"}, {"n": {"y": 1}}, {"n": [1]}, {"n": True}
    )
    assert typed(wide) == {
        "n": "long", "t": "timestamptz", "n__double": "double", "n__string": "string", "n__struct": {"y": "long"}, "n__list": ["long"],
        "n__boolean": "boolean", "t__string": "string",
    }  # fmt: skip
    assert wide[:2] == columns


def test_whole_numbers_fit_a_long_and_everything_fits_a_double() -> None:
    columns = grown([], {"n": 1, "d": 0.5, "s": "x"})
    assert grown(columns, {"n": 7.0, "d": 7, "s": "2013-01-01T10:00:00Z"}) == columns


def test_a_straggler_makes_no_column() -> None:
    columns = grown([], *[{"n": 1}] * 500, {"n": "x"})
    assert typed(columns) == {"n": "long"}
    assert grown(columns, *[{"n": 1}] * 500, {"n": 0.5}) == columns


def test_no_column_has_a_name_that_a_reader_takes_for_another() -> None:
    fields = [
        "_file",
        "_Pos",
        "_row_id",
        "\u0130",
        "i",
        "\u0131",
        "i\u0307",
        "stra\u00dfe",
        "STRASSE",
    ]
    columns = grown([], dict.fromkeys(fields, 1))
    assert list(typed(columns)) == [
        "_file_2",
        "_Pos_2",
        "_row_id_2",
        "\u0130",
        "i_2",
        "\u0131_3",
        "i_\u0307_2" if "i_\u0307_2" in typed(columns) else columns[6].name,
        "stra\u00dfe",
        "STRASSE_2",
    ]
    assert len({name for column in columns for name in [column.name.lower()]}) == len(fields)


def test_names_that_clash() -> None:
    columns = grown(
        [],
        {
            "offset": 1,
            "Stream": "x",
            "a": 1,
            "A": 2,
            "a b": 1,
            "a_b": 2,
            "7": 1,
            "": 1,
            "o": {"k": 1, "K": 2, "offset": 3},
        },
    )
    assert list(typed(columns)) == [
        "offset_2",
        "Stream_2",
        "a",
        "A_2",
        "a_b",
        "a_b_2",
        "_7",
        "_",
        "o",
    ]
    assert typed(columns)["o"] == {"k": "long", "K_2": "long", "offset": "long"}
    assert {each.field: each.name for each in columns}["a b"] == "a_b"


def test_a_field_named_like_a_sibling() -> None:
    columns = grown([], {"n": 1, "n__string": True})
    assert list(typed(grown(columns, {"n": "x"}))) == ["n", "n__string", "n__string_2"]


def test_lists_and_structs_grow_but_keep_their_element() -> None:
    columns = grown([], {"l": [1], "m": [{"a": 1}], "o": {"p": {"q": 1}}})
    wide = grown(columns, {"l": ["x"], "m": [{"b": [True]}], "o": {"p": {"r": 1}}})
    assert typed(wide) == {
        "l": ["long"],
        "m": [{"a": "long", "b": ["boolean"]}],
        "o": {"p": {"q": "long", "r": "long"}},
    }


def test_columns_are_capped() -> None:
    columns = grown([], {f"f{number}": {"x": 1, "y": 2} for number in range(types.LEAVES_MAX)})
    assert leaves(columns) == types.LEAVES_MAX
    assert grown(columns, {"more": 1}) == columns


def test_depth_is_capped() -> None:
    value: Any = 1
    for _ in range(3 * types.DEPTH_MAX):
        value = {"d": value, "leaf": 1}
    columns = grown([], value)
    depth = 0
    while columns:
        depth += 1
        columns = [child for column in columns for child in column.children]
    assert depth == types.DEPTH_MAX


def test_hints_say_what_a_stream_mostly_holds() -> None:
    columns = grown([], {"n": 1, "o": {"p": 1}})
    columns = grown(columns, {"n": 1.5, "o": {"p": "x"}}, {"n": "x"})
    assert shape(columns, seen({"n": "y"}, {"n": "z"}, {"n": 1})) == {
        "n": "string",
        "n number": "long",
    }
    assert shape(columns, seen({"n": 0.5, "o": {"p": "x"}})) == {"n": "number", "o\0p": "string"}
    assert shape(columns, seen({"other": 1})) == {}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "A", "offset", "b c", "é"]), inner, max_size=3)
    ),
    max_leaves=8,
)
samples = st.lists(
    st.dictionaries(st.sampled_from(["a", "A", "offset", "b c", "é", ""]), values, max_size=4),
    max_size=6,
)


@settings(max_examples=examples(100), deadline=None)
@given(samples, samples)
def test_columns_only_ever_grow(first: list[Any], second: list[Any]) -> None:
    columns = grown([], *first)
    wide = grown(columns, *second)
    _check_grown(columns, wide)
    assert grown(wide, *second) == wide, "what was adopted is not proposed again"
    _check_names(wide, types.OUR_COLUMNS)
    assert adopt(columns, proposed_columns(columns, seen(*second))) == wide, (
        "the same samples make the same schema"
    )


def _check_grown(before: list[Column], after: list[Column]) -> None:
    for old, new in zip(before, after, strict=False):
        assert (old.field, old.type, old.name) == (new.field, new.type, new.name)
        _check_grown(old.children, new.children)
    assert len(after) >= len(before)


def _check_names(columns: list[Column], reserved: tuple[str, ...]) -> None:
    folded = [column.name.casefold() for column in columns]
    assert len(set(folded)) == len(folded)
    assert not set(folded) & set(reserved)
    for column in columns:
        assert column.name
        if column.type == "list":
            assert [child.name for child in column.children] == ["element"]
        _check_names(column.children, ())
