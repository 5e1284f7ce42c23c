"""Schema resolution of Avro: which reader reads which writer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from polynya.registry.avro.compatible import differences
from polynya.registry.avro.model import parse


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **more}


def decimal(precision: int, scale: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "bytes",
        "logicalType": "decimal",
        "precision": precision,
        "scale": scale,
        **more,
    }


def kinds(reader: Any, writer: Any) -> list[str]:
    """Return the kinds of the differences."""
    pair = (parse(json.dumps(each), {}) for each in (reader, writer))
    return [each.kind for each in differences(*pair)]


INT, NULL_INT = field("x", "int"), field("x", ["null", "int"], default=None)
LIST = record(field("value", "int"), field("next", ["null", "R"]))
LONG_LIST = record(field("value", "long"), field("next", ["null", "R"]))
STRING_LIST = record(field("value", "string"), field("next", ["null", "R"]))

READ = [
    ("int", "int"),
    ("long", "int"),
    ("float", "int"),
    ("double", "int"),
    ("float", "long"),
    ("double", "long"),
    ("double", "float"),
    ("bytes", "string"),
    ("string", "bytes"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ({"type": "map", "values": "double"}, {"type": "map", "values": "float"}),
    (["null", "int"], "int"),
    (["null", "long"], "int"),
    (["string", "null", "long"], ["null", "int"]),
    ("long", ["int", "long"]),
    (enum("A", "B", "C"), enum("A", "B")),
    (enum("A", default="A"), enum("A", "B")),
    (fixed(4), fixed(4)),
    (record(INT), record(INT, field("y", "string"))),
    (record(INT, field("y", "string", default="")), record(INT)),
    (record(NULL_INT), record(INT)),
    (record(NULL_INT), record()),
    (record(field("z", "int", aliases=["x"])), record(INT)),
    (record(INT, name="S", aliases=["R"]), record(INT)),
    (record(INT, name="n.S", aliases=["R"]), record(INT, name="n.R")),
    (enum("A", name="G", aliases=["E"]), enum("A")),
    (fixed(4, name="G", aliases=["F"]), fixed(4)),
    (LONG_LIST, LIST),
    (decimal(9, 2), decimal(9, 2)),
    ("bytes", decimal(9, 2)),
    (decimal(9, 2), "bytes"),
    (decimal(9, 2), decimal(9, 2, note="other")),
    ({"type": "long", "logicalType": "timestamp-millis"}, "long"),
    ([record(INT, name="A"), record(INT, name="B")], record(INT, name="B")),
]
REFUSED = [
    ("int", "long", "TYPE_MISMATCH"),
    ("int", "string", "TYPE_MISMATCH"),
    ("long", "float", "TYPE_MISMATCH"),
    ("float", "double", "TYPE_MISMATCH"),
    ("boolean", "int", "TYPE_MISMATCH"),
    ("int", ["int", "null"], "TYPE_MISMATCH"),
    (["null", "int"], "string", "MISSING_UNION_BRANCH"),
    (["null", "int"], ["null", "long"], "MISSING_UNION_BRANCH"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "TYPE_MISMATCH"),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "TYPE_MISMATCH"),
    (enum("A"), enum("A", "B"), "MISSING_ENUM_SYMBOLS"),
    (enum("A", name="G"), enum("A"), "NAME_MISMATCH"),
    (fixed(4), fixed(5), "FIXED_SIZE_MISMATCH"),
    (record(INT, field("y", "string")), record(INT), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (record(INT, field("y", ["null", "int"])), record(INT), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    (record(INT, name="S"), record(INT), "NAME_MISMATCH"),
    (record(INT, namespace="n"), record(INT), "NAME_MISMATCH"),
    (LIST, LONG_LIST, "TYPE_MISMATCH"),
    (STRING_LIST, LIST, "TYPE_MISMATCH"),
    (decimal(9, 2), decimal(9, 3), "DECIMAL_MISMATCH"),
    (decimal(10, 2), decimal(9, 2), "DECIMAL_MISMATCH"),
]


@pytest.mark.parametrize(("reader", "writer"), READ)
def test_a_reader_reads(reader: Any, writer: Any) -> None:
    assert kinds(reader, writer) == []


@pytest.mark.parametrize(("reader", "writer", "kind"), REFUSED)
def test_a_reader_does_not_read(reader: Any, writer: Any, kind: str) -> None:
    assert kinds(reader, writer) == [kind]


def test_a_difference_says_where_it_is() -> None:
    inner = record(field("deep", "int"), name="I")
    other = record(field("deep", "string"), name="I")
    made = [parse(json.dumps(record(field("a", each))), {}) for each in (inner, other)]
    (found,) = differences(*made)
    assert (found.where, "reader type int" in found.message) == (
        "/fields/0/type/fields/0/type/",
        True,
    )


def test_many_differences_of_shared_types_stay_few() -> None:
    """Each level names the type of the level below twice."""
    sides = []
    for base in ("int", "string"):
        levels: list[Any] = [record(field("x", base), name="L0")]
        levels += [
            record(field("a", f"L{number}"), field("b", f"L{number}"), name=f"L{number + 1}")
            for number in range(40)
        ]
        top = record(*(field(f"f{number}", each) for number, each in enumerate(levels)))
        sides.append(parse(json.dumps(top), {}))
    assert len(differences(*sides)) == 20
