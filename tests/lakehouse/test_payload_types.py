"""The types of Avro, Protobuf and JSON Schema: the column of each, and its value."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2
from worlds.schema_registry import framed

from polynya.lakehouse.decoding.assemble import arrow_type
from polynya.lakehouse.decoding.decode import Decoded, Schema
from polynya.lakehouse.jobs.plan import Writer
from polynya.lakehouse.payloads.avro import AvroDecoder
from polynya.lakehouse.payloads.decode import Layout, decoded_payloads
from polynya.lakehouse.payloads.fields import with_writers
from polynya.lakehouse.payloads.framing import framed as framed_records
from polynya.lakehouse.payloads.framing import message_indexes
from polynya.lakehouse.payloads.nodes import BadSchema
from polynya.lakehouse.payloads.proto_files import linked
from polynya.lakehouse.reading.slices import Kind
from polynya.lakehouse.schema.columns import Column

MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC)
MICROS = int(MOMENT.timestamp()) * 1_000_000 + 123_000


def decoded(
    writers: dict[int, Writer], bodies: Sequence[bytes], columns: Sequence[Column] = ()
) -> tuple[list[Column], Decoded]:
    """The columns of schemas and bodies framed already, and the decoded block."""
    data = b"".join(body + b"," for body in bodies)
    ends = np.cumsum([len(body) + 1 for body in bodies])
    heads = {number: {body[5:]} for body in bodies for number in writers if body[4] == number}
    wide, _ = with_writers(columns, writers, heads)
    records = Layout(
        Kind.MAYBE_JSON,
        np.frombuffer(bytearray(data), np.uint8),
        ends,
        np.zeros(len(ends), np.bool_),
        1,
    )
    return wide, decoded_payloads(records, Schema(wide), writers)


def avro_body(schema: Any, value: Any) -> bytes:
    made = io.BytesIO()
    schemaless_writer(made, parse_schema(schema), value)
    return made.getvalue()


def avro_value(kind: Any, value: Any) -> tuple[str, str, Any]:
    """Return the type of the column of a field, its Arrow type, and the value in it."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    writer = Writer("AVRO", json.dumps(schema))
    columns, found = decoded({1: writer}, [framed(1, avro_body(schema, {"x": value}))])
    assert found.problems == {}
    (column,), (array,) = columns, found.arrays
    return column.type, str(arrow_type(column)), array.to_pylist()[0]


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


POINT = {"type": "record", "name": "P", "fields": [{"name": "y", "type": "long"}]}
COLOR = {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}
LIST = {"type": "array", "items": ["null", "int"]}
AVRO = [
    ("boolean", True, "boolean", "bool", True),
    ("int", 5, "long", "int64", 5),
    ("long", -(2**63), "long", "int64", -(2**63)),
    ("float", 0.5, "double", "double", 0.5),
    ("double", 1e300, "double", "double", 1e300),
    ("string", "é\0", "string", "string", "é\0"),
    ("bytes", b"\xff", "binary", "binary", b"\xff"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", "binary", "binary", b"ab"),
    (COLOR, "BLUE", "string", "string", "BLUE"),
    (["null", "string"], None, "string", "string", None),
    (["string", "null"], "x", "string", "string", "x"),
    (logical("int", "date"), date(2024, 2, 29), "date", "date32[day]", date(2024, 2, 29)),
    (
        logical("bytes", "decimal", precision=10, scale=2),
        Decimal("-12.34"),
        "decimal(10,2)",
        "decimal128(10, 2)",
        Decimal("-12.34"),
    ),
    (
        logical("bytes", "decimal", precision=50, scale=3),
        Decimal("1" * 40 + ".125"),
        "string",
        "string",
        "1" * 40 + ".125",
    ),
    (
        logical("long", "timestamp-millis"),
        MOMENT,
        "timestamptz",
        "timestamp[us, tz=UTC]",
        MOMENT,
    ),
    (
        logical("long", "timestamp-micros"),
        MOMENT,
        "timestamptz",
        "timestamp[us, tz=UTC]",
        MOMENT,
    ),
    (
        logical("long", "timestamp-nanos"),
        MICROS * 1000 + 999,
        "timestamptz",
        "timestamp[us, tz=UTC]",
        MOMENT,
    ),
    (
        logical("long", "local-timestamp-micros"),
        MOMENT.replace(tzinfo=None),
        "timestamp",
        "timestamp[us]",
        MOMENT.replace(tzinfo=None),
    ),
    (logical("int", "time-millis"), 45_000_250, "string", "string", "12:30:00.250"),
    (logical("long", "time-micros"), 1, "string", "string", "00:00:00.000001"),
    (
        logical("string", "uuid"),
        UUID(int=7),
        "string",
        "string",
        "00000000-0000-0000-0000-000000000007",
    ),
    (LIST, [1, None], "list", "list<element: int64>", [1, None]),
    (
        {"type": "map", "values": ["null", "long"]},
        {"a": 1, "b": None},
        "map",
        "map<string, int64>",
        [("a", 1)],
    ),
    (POINT, {"y": 3}, "struct", "struct<y: int64>", {"y": 3}),
    (
        {"type": "array", "items": POINT},
        [{"y": 3}],
        "list",
        "list<element: struct<y: int64>>",
        [{"y": 3}],
    ),
    (["int", "string"], 5, "string", "string", "5"),
    (["int", "string"], "5", "string", "string", '"5"'),
    (["int", POINT], {"y": 3}, "string", "string", '{"y":3}'),
    (["int", "bytes"], b"\xff", "string", "string", '"/w=="'),
    (logical("string", "of-a-later-release"), "x", "string", "string", "x"),
]


@pytest.mark.parametrize(("kind", "value", "column", "arrow", "wanted"), AVRO)
def test_a_type_of_avro(kind: Any, value: Any, column: str, arrow: str, wanted: Any) -> None:
    assert avro_value(kind, value) == (column, arrow, wanted)


def nested(depth: int) -> tuple[Any, Any]:
    kind, value = "int", 1
    for level in range(depth):
        fields = [{"name": "x", "type": kind}]
        kind, value = {"type": "record", "name": f"R{level}", "fields": fields}, {"x": value}
    return kind, value


def test_what_is_deeper_than_eight_levels_is_json() -> None:
    *_, found = avro_value(*nested(10))
    for _ in range(7):
        found = found["x"]
    assert found == '{"x":{"x":{"x":1}}}'


def test_a_record_inside_itself_is_json_and_cannot_end_the_process() -> None:
    chain = {
        "type": "record",
        "name": "N",
        "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "N"]}],
    }
    writer = Writer("AVRO", json.dumps(chain))
    short = avro_body(chain, {"n": 1, "next": {"n": 2, "next": None}})
    deep = b"\2\2" * 200_000 + b"\2\0"
    columns, found = decoded({1: writer}, [framed(1, short), framed(1, deep)])
    assert [column.name for column in columns] == ["n", "next"]
    assert [array.to_pylist() for array in found.arrays] == [
        [1, None],
        ['{"n":2,"next":null}', None],
    ]
    assert [problem.reason for problem in found.problems[1]] == ["bad_body"]


def test_a_schema_that_is_no_record_has_a_column_of_its_own() -> None:
    columns, found = decoded({1: Writer("AVRO", '"string"')}, [framed(1, b"\4hi")])
    assert [(column.name, column.type) for column in columns] == [("value_2", "string")]
    assert found.arrays[0].to_pylist() == ["hi"]


def test_a_body_never_takes_the_bytes_of_the_next() -> None:
    """The first body lacks a byte, and the next has one more: together they would decode."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]}
    writer = Writer("AVRO", json.dumps(schema))
    bodies = [b"\6ab", b"c\4de", b"\2f"]
    _, found = decoded({1: writer}, [framed(1, body) for body in bodies])
    assert found.arrays[0].to_pylist() == [None, None, "f"]
    assert sorted(found.problems) == [0, 1]


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "array", "items": "null"}',
        '{"type": "array", "items": {"type": "record", "name": "E", "fields": []}}',
        '{"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}',
    ],
)
def test_items_without_bytes_are_refused(schema: str) -> None:
    """A body of six bytes would ask for 2^40 of them."""
    with pytest.raises(BadSchema, match="items without bytes"):
        AvroDecoder(schema)


def test_a_value_beyond_its_column_costs_one_field() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "at", "type": logical("long", "timestamp-millis")},
            {"name": "n", "type": "int"},
        ],
    }
    raw = {**schema, "fields": [{"name": "at", "type": "long"}, schema["fields"][1]]}
    bodies = [avro_body(raw, {"at": at, "n": at & 1}) for at in (2**63 - 1, 0)]
    writer = Writer("AVRO", json.dumps(schema))
    _, found = decoded({1: writer}, [framed(1, body) for body in bodies])
    assert found.arrays[1].to_pylist() == [1, 0]
    assert found.arrays[0].to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC)]
    assert [(each.reason, each.field) for each in found.problems[0]] == [("misfit", "at")]


def versions(*kinds: Any) -> tuple[list[Column], list[dict[str, Any]]]:
    """The columns of schemas that give a field these types, and the rows of a value of each."""
    writers, bodies = {}, []
    for number, (kind, value) in enumerate(kinds, 1):
        schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
        writers[number] = Writer("AVRO", json.dumps(schema))
        bodies.append(framed(number, avro_body(schema, {"x": value})))
    columns, found = decoded(writers, bodies)
    assert found.problems == {}
    names = [column.name for column in columns]
    rows = zip(*(array.to_pylist() for array in found.arrays), strict=True)
    return columns, [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in rows
    ]


def test_a_type_that_widens_keeps_its_column() -> None:
    assert versions(("int", 1), ("long", 2**40))[1] == [{"x": 1}, {"x": 2**40}]
    assert versions(("float", 0.5), ("double", 1e300))[1] == [{"x": 0.5}, {"x": 1e300}]


def test_a_type_that_changes_gets_a_column_of_its_own() -> None:
    assert versions(("int", 1), ("string", "a"), ("double", 0.5))[1] == [
        {"x": 1},
        {"x__string": "a"},
        {"x__double": 0.5},
    ]
    two = logical("bytes", "decimal", precision=6, scale=2)
    three = logical("bytes", "decimal", precision=7, scale=3)
    assert versions((two, Decimal("1.25")), (three, Decimal("1.125")))[1] == [
        {"x": Decimal("1.25")},
        {"x__decimal_7_3": Decimal("1.125")},
    ]


def test_a_list_whose_elements_change_goes_on_as_json() -> None:
    items = ({"type": "array", "items": kind} for kind in ("int", "string", "long"))
    values = ([1], ["a"], [2])
    assert versions(*zip(items, values, strict=True))[1] == [
        {"x": [1]},
        {"x__string": '["a"]'},
        {"x": [2]},
    ]


def test_a_record_in_a_list_or_a_map_grows() -> None:
    wider = {**POINT, "fields": [*POINT["fields"], {"name": "z", "type": "string"}]}
    for outer in ({"type": "array", "items": None}, {"type": "map", "values": None}):
        inner = "items" if outer["type"] == "array" else "values"
        wrap = (lambda row: [row]) if inner == "items" else (lambda row: {"k": row})
        columns, _ = versions(
            ({**outer, inner: POINT}, wrap({"y": 1})),
            ({**outer, inner: wider}, wrap({"y": 2, "z": "b"})),
        )
        assert [child.name for child in columns[0].children[0].children] == ["y", "z"]


PROTO = """
syntax = "proto3";
package t;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message M {
  int32 a = 1; uint64 b = 2; float c = 3; bool d = 4; bytes e = 5; Kind f = 6;
  optional string g = 7; repeated sint64 h = 8; map<bool, Inner> i = 9;
  google.protobuf.Timestamp j = 10; google.protobuf.Duration k = 11;
  google.protobuf.Int64Value l = 12; google.protobuf.Struct m = 13; M n = 14;
  oneof o { string p = 15; Inner q = 16; }
  message Inner { fixed32 x = 1; }
  enum Kind { NONE = 0; SOME = 1; }
}
"""


def test_the_types_of_protobuf() -> None:
    made = message_of(PROTO)
    message = made(a=-1, b=2**64 - 1, c=0.5, d=True, e=b"\xff", f=1, h=[-5], p="x")
    message.i[True].x = 7
    message.j.FromDatetime(MOMENT)
    message.k.seconds = 90
    message.l.value = 0
    message.m["y"] = 1
    message.n.a = 3
    bodies = [b"\0" + message.SerializeToString(), b"\0" + made(f=9).SerializeToString()]
    writer = Writer("PROTOBUF", PROTO)
    columns, found = decoded({1: writer}, [framed(1, body) for body in bodies])
    assert found.problems == {}
    rows = {
        column.name: (column.type, *array.to_pylist())
        for column, array in zip(columns, found.arrays, strict=True)
    }
    assert rows == {
        "a": ("long", -1, 0),
        "b": ("decimal", Decimal(2**64 - 1), Decimal(0)),
        "c": ("double", 0.5, 0.0),
        "d": ("boolean", True, False),
        "e": ("binary", b"\xff", b""),
        "f": ("string", "SOME", "9"),
        "g": ("string", None, None),
        "h": ("list", [-5], []),
        "i": ("map", [("true", {"x": 7})], []),
        "j": ("timestamptz", MOMENT, None),
        "k": ("string", "90s", None),
        "l": ("long", 0, None),
        "m": ("string", '{"y":1.0}', None),
        "n": ("string", '{"a":3}', None),
        "p": ("string", "x", None),
        "q": ("struct", None, None),
    }


def message_of(text: str) -> Any:
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(linked(text, ()).message_types_by_name["M"])


@pytest.mark.parametrize(
    "text",
    [
        'syntax = "proto2"; message M { required int32 a = 1; optional group G = 2 { optional '
        "int32 x = 1; } extensions 100 to max; optional int32 d = 3 [default = 7]; }",
        'edition = "2023"; message M { int32 a = 1; }',
        'syntax = "proto3"; enum E { option allow_alias = true; A = 0; B = 0; } message M { E a = 1; }',
        'syntax = "proto3"; import "confluent/meta.proto"; message M { int32 a = 1 '
        '[(confluent.field_meta).doc = "x"]; }',
    ],
)
def test_files_of_every_syntax_are_read(text: str) -> None:
    assert "M" in linked(text, ()).message_types_by_name


def test_descriptors_in_base64_are_read_with_what_they_import() -> None:
    """Options of others stay in it, and their files are often not registered."""
    common = descriptor_pb2.FileDescriptorProto(name="any.proto", package="c")
    common.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    file = descriptor_pb2.FileDescriptorProto(name="any.proto", package="shop", syntax="proto3")
    file.dependency.extend(["buf/validate.proto", "common.proto", "google/protobuf/any.proto"])
    file.public_dependency.extend([0, 1])
    made = file.message_type.add(name="M")
    made.field.add(name="price", number=1, type=11, label=1, type_name=".c.Money")
    made.field.add(name="more", number=2, type=11, label=1, type_name=".google.protobuf.Any")
    made.field[0].options.MergeFromString(b"\xc2\x3e\x01a")  # field 1000, of an extension
    made.extension.add(name="x", number=9, type=3, label=1, extendee=".buf.Gone")
    file.extension.add(name="y", number=9, type=3, label=1, extendee=".buf.Gone")
    file.service.add(name="S").method.add(name="do", input_type=".buf.Gone", output_type=".shop.M")
    one, two = (b64encode(each.SerializeToString()).decode() for each in (common, file))
    found = linked(two, [("common.proto", one)])
    assert [each.name for each in found.dependencies] == [
        "common.proto",
        "google/protobuf/any.proto",
    ]
    assert [each.name for each in found.public_dependencies] == ["common.proto"]
    price = found.message_types_by_name["M"].fields_by_name["price"]
    assert price.message_type.full_name == "c.Money"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm90IGEgZGVzY3JpcHRvcg==", "cannot be linked"),
        ("message M { Gone a = 1; }", "Gone"),
        ("message M { int32 a = 1; int32 b = 1; }", "duplicate field number"),
        ("massage M {}", "line 1"),
    ],
)
def test_a_file_that_cannot_be_linked_says_why(text: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        linked(text, ())


def test_the_types_of_json_schema() -> None:
    money = {"$id": "http://x/money", "type": "object", "properties": {"n": {"type": "number"}}}
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": ["null", "integer"]},
            "day": {"type": "string", "format": "date"},
            "price": {"$ref": "money.json"},
            "same": {"$ref": "http://x/money"},
            "by": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "either": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/t"}]},
            "open": {"type": ["string", "integer"]},
            "self": {"$ref": "#"},
        },
        "definitions": {"t": {"type": "array", "items": {"type": "string"}}},
    }
    writer = Writer("JSON", json.dumps(schema), [("money.json", json.dumps(money))])
    columns, found = decoded(
        {1: writer},
        [framed(1, b'{"id":1,"day":"2024-02-29","price":{"n":2}}'), framed(1, b"[1]")],
    )
    assert [(column.name, column.type) for column in columns] == [
        ("id", "long"),
        ("day", "date"),
        ("price", "struct"),
        ("same", "struct"),
        ("by", "map"),
        ("either", "list"),
    ]
    assert [array.to_pylist()[0] for array in found.arrays[:3]] == [
        1,
        date(2024, 2, 29),
        {"n": 2.0},
    ]
    assert [problem.reason for problem in found.problems[1]] == ["not_object"]


def test_the_wire_format_is_told_from_other_bytes() -> None:
    each = [b"\0\0\0\0\1", b"\0\0\0\1", b"\1\0\0\0\1", b"{}", b"", b"\0\xff\xff\xff\xffx"]
    data = np.frombuffer(b"".join(each), np.uint8)
    ends = np.cumsum([len(one) for one in each])
    found = framed_records(data, ends, np.zeros(len(each), np.bool_), 0)
    assert found.tolist() == [True, False, False, False, False, True]


@pytest.mark.parametrize(
    ("body", "indexes", "begin"),
    [(b"\0x", [0], 1), (b"\2\0x", [0], 2), (b"\4\2\6x", [1, 3], 3), (b"\2\x80\1", [64], 3)],
)
def test_the_indexes_of_a_message(body: bytes, indexes: list[int], begin: int) -> None:
    assert message_indexes(body) == (indexes, begin)


@pytest.mark.parametrize("body", [b"", b"\1", b"\4\2", b"\xff\xff\xff\xff\xff\xff"])
def test_indexes_that_are_none_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="message indexes"):
        message_indexes(body)
