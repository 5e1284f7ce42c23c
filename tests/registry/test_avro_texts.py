"""Texts of Avro schemas: their one form, and what is wrong with bad ones."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from polynya.base.limits import SCHEMA_DEPTH_MAX
from polynya.registry.records import AVRO
from polynya.registry.refused import BadSchema
from polynya.registry.schemas import Candidate, spelled


def text(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ('  "string" ', '"string"'),
        ('{"type": "string"}', '"string"'),
        ('{"type": {"type": "string"}}', '"string"'),
        (
            '{"logicalType": "date", "type": "int"}',
            '{"type":"int","logicalType":"date"}',
        ),
        (
            '{"fields": [{"type": "int", "doc": "d", "name": "x", "default": 1}], "name": "n.R", "type": "record", "doc": "é"}',
            '{"type":"record","name":"R","namespace":"n","doc":"é","fields":[{"name":"x","type":"int","doc":"d","default":1}]}',
        ),
        (
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]}},{"name":"b","type":"n.E"}]}',
            '{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":{"type":"enum","name":"E","symbols":["A"]}},{"name":"b","type":"E"}]}',
        ),
        (
            '{"type":"fixed","size":4,"name":"F","aliases":["o.G"],"namespace":"o"}',
            '{"type":"fixed","name":"F","namespace":"o","size":4,"aliases":["G"]}',
        ),
    ],
)
def test_a_schema_has_one_form(given: str, wanted: str) -> None:
    found = spelled(AVRO, Candidate(given), normalize=False)
    assert found == wanted
    assert spelled(AVRO, Candidate(found), normalize=False) == found
    fastavro.parse_schema(json.loads(found))


def test_normalizing_sorts_properties() -> None:
    given = Candidate('{"type":"int","b":1,"a":2}')
    assert spelled(AVRO, given, normalize=False) == '{"type":"int","b":1,"a":2}'
    assert spelled(AVRO, given, normalize=True) == '{"type":"int","a":2,"b":1}'


def test_a_reference_defines_a_name() -> None:
    item = '{"type":"record","name":"shop.Item","fields":[]}'
    order = '{"type":"record","name":"shop.Order","fields":[{"name":"item","type":"Item"}]}'
    found = spelled(AVRO, Candidate(order, {"shop.Item": item}), normalize=False)
    assert json.loads(found)["fields"][0]["type"] == "Item"
    with pytest.raises(BadSchema, match="'Item' is unknown"):
        spelled(AVRO, Candidate(order), normalize=False)


R = {"type": "record", "name": "R"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "line 1, column 2: Expecting property name"),
        ('{"type":\n "int" "x"}', "line 2, column 8: Expecting ',' delimiter"),
        ('{"type": "int", "type": "int"}', "has the name 'type' twice"),
        ("NaN", "NaN is not JSON"),
        ("12", r"\$: expected a type"),
        ("{}", r"\$: 'type' is missing"),
        ('"nothing"', "the type 'nothing' is unknown"),
        (text({**R}), r"\$: 'fields' is missing"),
        (text({**R, "name": "1x", "fields": []}), r"\$\.name: '1x' is not a name"),
        (text({**R, "fields": [{"name": "x"}]}), r"\$\.fields\[0\]: 'type' is missing"),
        (
            text({**R, "fields": [{"name": "x", "type": "int"}] * 2}),
            r"fields\[1\]\.name: the record has the field 'x' twice",
        ),
        (
            text({**R, "fields": [{"name": "x", "type": "int", "default": "a"}]}),
            r"\$\.fields\[0\]\.default: 'a' is no value of the type int",
        ),
        (
            text({**R, "fields": [{"name": "x", "type": "int", "order": "up"}]}),
            r"order: expected one of ascending",
        ),
        (text(["int", "int"]), r"\$\[1\]: the union has the type 'int' twice"),
        (text(["int", ["null"]]), r"\$\[1\]: a union has no union"),
        (text({"type": "enum", "name": "E"}), "'symbols' is missing"),
        (text({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "a symbol is there twice"),
        (
            text({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}),
            "'B' is not one of the symbols",
        ),
        (text({"type": "fixed", "name": "F", "size": -1}), "expected a number of bytes, not -1"),
        (text({"type": "array"}), "'items' is missing"),
        (text({**R, "fields": [], "aliases": [1]}), "aliases: expected an array of strings"),
        ('{"type":"int","x":"\\ud800"}', "half a surrogate pair"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_schema_is_told_where(given: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        spelled(AVRO, Candidate(given), normalize=False)


def test_the_depth_is_bounded() -> None:
    given: Any = "int"
    for _ in range(SCHEMA_DEPTH_MAX):
        given = {"type": "array", "items": given}
    spelled(AVRO, Candidate(text(given)), normalize=False)
    with pytest.raises(BadSchema, match="deeper than 64 levels"):
        spelled(AVRO, Candidate(text({"type": "array", "items": given})), normalize=False)
