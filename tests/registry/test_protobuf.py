"""Protobuf schemas: texts and descriptors against Google's library, and which reader reads which
writer."""

from __future__ import annotations

import base64

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2, wrappers_pb2

from polynya.registry.protobuf.compatible import differences
from polynya.registry.protobuf.schema import canonical, parse, serialized
from polynya.registry.refused import BadSchema

TEXT = """
// a comment
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "com.shop";
option java_multiple_files = true;
message Order {
  reserved 5, 10 to 20, 1000 to max;
  reserved "old", 'older';
  int64 item = 1;
  optional string note = 2;
  repeated Line lines = 3;
  map<string, Line> by_name = 4;
  oneof payment { string card = 6; Cash cash = 7 [deprecated = true]; }
  google.protobuf.Timestamp at = 8;
  State state = 9; /* a state */
  bytes raw_bytes = 21 [json_name = "RAW"];
  message Line { uint32 count = 0x1; State state = 2; }
}
message Cash { double amount = 1; }
enum State { option allow_alias = true; UNKNOWN = 0; NEW = 1; FRESH = 1; OLD = -1; }
service Shop { rpc Get (Cash) returns (stream .shop.v1.Order) {} rpc Put (Cash) returns (Cash); }
"""


def in_pool(text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a text, which Google's library accepts."""
    found = descriptor_pb2.FileDescriptorProto()
    found.ParseFromString(base64.b64decode(serialized(parse(text, {}))))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(found.SerializeToString())
    return found


def coded(file: descriptor_pb2.FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def test_a_text_becomes_a_descriptor_and_a_text_again() -> None:
    file = in_pool(TEXT)
    order, cash = file.message_type
    assert (file.package, file.options.java_package, cash.name) == ("shop.v1", "com.shop", "Cash")
    assert [(each.name, each.number) for each in order.field][:3] == [
        ("item", 1),
        ("note", 2),
        ("lines", 3),
    ]
    assert order.field[3].type_name == ".shop.v1.Order.ByNameEntry"
    assert [each.name for each in order.oneof_decl] == ["payment", "_note"]
    assert canonical(parse(coded(file), {})) == canonical(parse(TEXT, {}), normalize=True)
    assert not differences(parse(coded(file), {}), parse(TEXT, {}))


def test_a_text_stays_as_it_is() -> None:
    assert canonical(parse(TEXT, {})) == TEXT


@pytest.mark.parametrize("module", [descriptor_pb2, timestamp_pb2, wrappers_pb2])
def test_descriptors_of_other_people_are_printed_without_loss(module: object) -> None:
    """A descriptor with more than a text, such as ranges of extensions with options, stays one."""
    given = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(given)  # type: ignore[attr-defined]
    text = canonical(parse(coded(given), {}))
    again = descriptor_pb2.FileDescriptorProto()
    again.ParseFromString(base64.b64decode(serialized(parse(text, {}))))
    again.name = given.name
    for each in (given, again):
        _plain(each)
    assert again == given


def _plain(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Remove names in JSON that are the default, which compilers write or not."""
    pending = [*file.message_type]
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for field in message.field:
            field.ClearField("json_name")


def test_custom_options_keep_the_descriptor() -> None:
    file = in_pool(TEXT)
    file.options.MergeFromString(b"\xc2\x3e\x01a")  # field 1000, of an extension
    text = coded(file)
    assert canonical(parse(text, {})) == text
    assert serialized(parse(text, {})) == text


HEAD = 'syntax = "proto3"; package p; '
HEAD2 = 'syntax = "proto2"; package p; '
READ = [
    ("message M { int64 a = 1; }", "message M { int32 a = 1; }"),
    ("message M { bytes a = 1; }", "message M { string a = 1; }"),
    ("message M { int32 b = 1; }", "message M { int32 a = 1; }"),
    ("message M { }", "message M { int32 a = 1; }"),
    ("message M { int32 a = 1; string b = 2; }", "message M { int32 a = 1; }"),
    ("message M { repeated int32 a = 1; }", "message M { int32 a = 1; }"),
    ("message M { } message N { }", "message M { }"),
    ("message M { E e = 1; } enum E { A = 0; }", "message M { E e = 1; } enum E { A = 0; B = 1; }"),
    ("message M { oneof o { int32 a = 1; } }", "message M { int32 a = 1; }"),
    (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    ("message M { map<string, int64> a = 1; }", "message M { map<string, int32> a = 1; }"),
    ("message M { M m = 1; int64 a = 2; }", "message M { M m = 1; int32 a = 2; }"),
]
REFUSED = [
    ("message N { }", "message M { }", "MESSAGE_REMOVED"),
    ("message M { int32 a = 1; }", "message M { int64 a = 1; }", "FIELD_TYPE_CHANGED"),
    ("message M { string a = 1; }", "message M { bytes a = 1; }", "FIELD_TYPE_CHANGED"),
    ("message M { int32 a = 1; }", "message M { sint32 a = 1; }", "FIELD_TYPE_CHANGED"),
    ("message M { int32 a = 1; }", "message M { repeated int32 a = 1; }", "FIELD_LABEL_CHANGED"),
    (
        "message M { N a = 1; } message N { } message O { }",
        "message M { O a = 1; } message O { }",
        "FIELD_TYPE_CHANGED",
    ),
    (
        "message M { message I { int32 a = 1; } I i = 1; }",
        "message M { message I { string a = 1; } I i = 1; }",
        "FIELD_TYPE_CHANGED",
    ),
    (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { int32 a = 1; int32 b = 2; }",
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
    ),
    (
        "message M { map<int32, int32> a = 1; }",
        "message M { map<int64, int32> a = 1; }",
        "FIELD_TYPE_CHANGED",
    ),
]


@pytest.mark.parametrize(("reader", "writer"), READ)
def test_a_reader_reads(reader: str, writer: str) -> None:
    assert not differences(parse(HEAD + reader, {}), parse(HEAD + writer, {}))


@pytest.mark.parametrize(("reader", "writer", "kind"), REFUSED)
def test_a_reader_does_not_read(reader: str, writer: str, kind: str) -> None:
    found = differences(parse(HEAD + reader, {}), parse(HEAD + writer, {}))
    assert kind in [each.kind for each in found]


def test_required_fields_and_closed_enums_of_proto2() -> None:
    required = parse(HEAD2 + "message M { required int32 a = 1; }", {})
    optional = parse(HEAD2 + "message M { optional int32 a = 1; }", {})
    assert [each.kind for each in differences(required, optional)] == ["REQUIRED_FIELD_ADDED"]
    assert not differences(optional, required)
    few, many = (
        parse(HEAD2 + f"message M {{ optional E e = 1; }} enum E {{ A = 0; {each} }}", {})
        for each in ("", "B = 1;")
    )
    assert [each.kind for each in differences(few, many)] == ["ENUM_CONST_REMOVED"]


def test_types_of_references_are_compared() -> None:
    text = HEAD + 'import "item.proto"; message M { q.Item item = 1; }'
    one, two = (
        parse(
            text, {"item.proto": f'syntax = "proto3"; package q; message Item {{ {each} a = 1; }}'}
        )
        for each in ("int32", "int64")
    )
    assert not differences(two, one)
    assert [each.where for each in differences(one, two)] == ["#/M/1/1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty"),
        ("hello", "line 1, column 1: expected 'message', 'enum'"),
        ('syntax = "proto4";', 'line 1, column 10: expected "proto2" or "proto3"'),
        ("message M {\n  int32 a;\n}", "line 2, column 10: expected '=', not ';'"),
        ("message M {\n  int32 a = 0;\n}", "line 2, column 13: 0 is no number of a field"),
        ("message M { int32 a = 1; int32 b = 1; }", "has the number 1 twice"),
        ("message M { int32 a = 1; int32 a = 2; }", "has the field 'a' twice"),
        ("message M { N a = 1; }", "line 1, column 13: the type 'N' of the field 'a' is unknown"),
        ("message M { } message M { }", "the type 'M' is defined twice"),
        ("enum E { }", "the enum E has no constants"),
        ("message M {", "expected .*, not the end of the text"),
        ("message M { map<float, int32> a = 1; }", "a map has no keys of the type 'float'"),
        ("message M { repeated group G = 1 { } }", "groups are not supported"),
        ('import "other.proto";', "the imported file 'other.proto' is not one of 'references'"),
        ('syntax = "proto3"; message M { required int32 a = 1; }', "only in proto2"),
        ("message M { \x01 }", "unexpected"),
        ("AAAA", "no descriptor|descriptor is empty"),
        ("message M { " * 70, "nested deeper than 64"),
    ],
)
def test_a_bad_schema_is_told_where(text: str, message: str) -> None:
    with pytest.raises(BadSchema, match=message):
        parse(text, {})
