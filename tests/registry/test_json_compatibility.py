"""JSON Schemas: which reader accepts all that a writer's schema accepts."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polynya.registry.jsonschema.compatible import differences
from polynya.registry.jsonschema.model import canonical, parse
from polynya.registry.refused import BadSchema


def kinds(reader: Any, writer: Any) -> list[str]:
    """Return the kinds of the differences."""
    pair = (parse(json.dumps(each), {}) for each in (reader, writer))
    return [each.kind for each in differences(*pair)]


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def opened(*required: str, **properties: Any) -> dict[str, Any]:
    return {**closed(*required, **properties), "additionalProperties": True}


INT, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
TREE = {"$ref": "#/definitions/T", "definitions": {"T": closed(next={"$ref": "#/definitions/T"})}}
CATS = {
    "oneOf": [{"$ref": "#/definitions/A"}, {"$ref": "#/definitions/B"}],
    "definitions": {"A": closed("a", a=INT), "B": closed("b", b=INT)},
}
OTHER_CATS = {**CATS, "definitions": {"A": closed("a", a=INT), "B": closed("b", b=TEXT)}}

ACCEPTED = [
    (True, INT),
    ({}, INT),
    (INT, False),
    ({"type": "number"}, INT),
    ({"type": ["string", "null"]}, TEXT),
    (INT, {"enum": [1, 2]}),
    ({"enum": [1, 2, 3]}, {"enum": [1, 2]}),
    ({"enum": [1, 2, 3]}, {"const": 2}),
    ({**TEXT, "maxLength": 9}, {**TEXT, "maxLength": 5}),
    ({**TEXT, "minLength": 1}, {**TEXT, "minLength": 2}),
    ({**TEXT, "pattern": "a"}, {**TEXT, "pattern": "a"}),
    ({**INT, "minimum": 0}, {**INT, "minimum": 1}),
    ({**INT, "minimum": 0}, {**INT, "exclusiveMinimum": 0}),
    ({**INT, "multipleOf": 2}, {**INT, "multipleOf": 4}),
    ({"type": "array", "items": {"type": "number"}}, {"type": "array", "items": INT}),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}),
    (closed(a=INT, b=INT), closed(a=INT)),
    (opened(a=INT), closed(a=INT)),
    (opened(), opened(a=INT)),
    (closed("a", a=INT), closed("a", "b", a=INT, b=INT) | {"properties": {"a": INT}}),
    (closed(a={"type": "number"}), closed("a", a=INT)),
    ({"anyOf": [INT, TEXT]}, INT),
    ({"anyOf": [INT, TEXT, NULL]}, {"anyOf": [TEXT, INT]}),
    ({"oneOf": [INT, TEXT, NULL]}, {"oneOf": [TEXT, INT]}),
    ({"allOf": [{"type": "number"}, {"minimum": 0}]}, {**INT, "minimum": 3}),
    (INT, {"allOf": [INT, {"minimum": 0}]}),
    (TREE, TREE),
    (CATS, CATS),
    ({"not": TEXT}, {"not": TEXT}),
    (
        {"type": "object", "patternProperties": {"^a": {"type": "number"}}},
        {"type": "object", "patternProperties": {"^a": INT}},
    ),
]
REFUSED = [
    (INT, True, "TYPE_NARROWED"),
    (INT, {"type": "number"}, "TYPE_NARROWED"),
    (TEXT, INT, "TYPE_NARROWED"),
    (False, INT, "NOT_ALLOWED"),
    ({"enum": [1]}, {"enum": [1, 2]}, "ENUM_NARROWED"),
    ({"enum": [1]}, {"enum": [True]}, "ENUM_NARROWED"),
    ({**TEXT, "maxLength": 5}, {**TEXT, "maxLength": 9}, "RANGE_NARROWED"),
    ({**TEXT, "maxLength": 5}, TEXT, "RANGE_NARROWED"),
    ({**TEXT, "minLength": 1}, TEXT, "RANGE_NARROWED"),
    ({**TEXT, "pattern": "a"}, TEXT, "KEYWORD_CHANGED"),
    ({**INT, "exclusiveMinimum": 0}, {**INT, "minimum": 0}, "RANGE_NARROWED"),
    ({**INT, "multipleOf": 4}, {**INT, "multipleOf": 2}, "RANGE_NARROWED"),
    (closed(a=INT), closed(a=INT, b=INT), "NOT_ALLOWED"),
    (opened(a=INT), opened(), "TYPE_NARROWED"),
    (closed(a=INT), opened(a=INT), "NOT_ALLOWED"),
    (closed("a", a=INT), closed(a=INT), "REQUIRED_PROPERTY_ADDED"),
    (closed(a=INT), closed(a=TEXT), "TYPE_NARROWED"),
    ({"oneOf": [INT, {"minimum": 0}]}, INT, "SUM_TYPE_NARROWED"),
    ({"anyOf": [INT, TEXT]}, {"anyOf": [INT, NULL]}, "SUM_TYPE_NARROWED"),
    (OTHER_CATS, CATS, "SUM_TYPE_NARROWED"),
    ({"not": TEXT}, INT, "KEYWORD_CHANGED"),
    ({"not": {"$ref": "#/definitions/X"}, "definitions": {"X": INT}}, {"not": {"$ref": "#/definitions/X"}, "definitions": {"X": TEXT}}, "KEYWORD_CHANGED"),
    ({**INT, "minimum": 5}, {"$ref": "#/definitions/X", "minimum": 5, "definitions": {"X": INT}}, "RANGE_NARROWED"),
    ({"type": "array", "uniqueItems": True}, {"type": "array"}, "RANGE_NARROWED"),
    ({"type": "array", "items": [INT, TEXT]}, {"type": "array", "items": INT}, "TYPE_NARROWED"),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "writer"), ACCEPTED)
def test_a_reader_accepts(reader: Any, writer: Any) -> None:
    assert kinds(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "kind"), REFUSED)
def test_a_reader_may_not_accept(reader: Any, writer: Any, kind: str) -> None:
    assert kind in kinds(reader, writer)


_leaf = st.sampled_from(
    [
        *(True, False, {}, INT, TEXT, NULL, {"type": "number"}, {"type": ["integer", "string"]}),
        *({"enum": [1, "a", None]}, {"const": 1}, {"minimum": 1}, {**INT, "maximum": 2}),
        *({**TEXT, "maxLength": 1}, {"minLength": 1}, {"exclusiveMinimum": 0}, {"multipleOf": 2}),
    ]
)
_names = st.sampled_from(["a", "b"])


def _composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(_names, inner, max_size=2),
            "required": st.lists(_names, unique=True, max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            "maxProperties": st.integers(0, 2),
        },
    )
    sizes = {
        "minItems": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "uniqueItems": st.booleans(),
    }
    arrays = st.one_of(
        st.fixed_dictionaries({"items": inner}, optional=sizes),
        st.fixed_dictionaries({"items": some}, optional={"additionalItems": inner, **sizes}),
    )
    joins = st.fixed_dictionaries(
        {}, optional={"allOf": some, "anyOf": some, "oneOf": some, "not": inner}
    )
    return st.one_of(objects, arrays, joins)


_schemas = st.recursive(_leaf, _composed, max_leaves=5)
_values = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, 3, 1.5, "", "a", "ab"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=2),
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(_schemas, _schemas, st.lists(_values, min_size=3, max_size=8))
def test_what_is_found_compatible_accepts_each_value(
    reader: Any, writer: Any, values: list[Any]
) -> None:
    """Compare with the library `jsonschema`, of draft 7."""
    if kinds(reader, writer):
        return
    theirs, mine = (jsonschema.Draft7Validator(each) for each in (writer, reader))
    for value in values:
        assert mine.is_valid(value) or not theirs.is_valid(value), (reader, writer, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2"),
        ("[]", r"\$: expected a schema"),
        ('{"type": "text"}', r"\$\.type: 'text' is no type"),
        ('{"properties": {"a": 1}}', r"\$\.properties\.a: expected a schema"),
        ('{"required": "a"}', r"\$\.required: expected an array of strings"),
        ('{"minLength": -1}', r"\$\.minLength: expected a number from 0 on"),
        ('{"multipleOf": 0}', r"expected a number above 0"),
        ('{"anyOf": []}', r"\$\.anyOf: expected an array of schemas, not empty"),
        ('{"items": [{"$ref": "#/nothing"}]}', r"items\[0\]\.\$ref: '#/nothing' names nothing"),
        ('{"$ref": "other.json"}', "needs to be in 'references'"),
    ],
)
def test_a_bad_schema_is_told_where(text: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        parse(text, {})


def test_references_to_other_documents_are_followed() -> None:
    text = '{"properties": {"a": {"$ref": "item.json"}}}'
    one, two = (
        parse(text, {"item.json": each}) for each in ('{"type": "integer"}', '{"type": "number"}')
    )
    assert not differences(two, one)
    assert differences(one, two)


def test_the_text_has_no_blanks() -> None:
    schema = parse('{"b": 1.0,\n "a": "é"}', {})
    assert canonical(schema) == '{"b":1.0,"a":"é"}'
    assert canonical(schema, normalize=True) == '{"a":"é","b":1.0}'
