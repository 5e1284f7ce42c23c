"""Schema files as declared columns: JSON Schema, Avro, Protobuf, Arrow and Parquet."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polynya.base.errors import ConfigError
from polynya.cli.tables.changes import declared_columns
from polynya.cli.terminal import exits
from polynya.lakehouse.schema.files import declared_in

JSON_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["number", "null"]},
        "either": {"type": ["integer", "number"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        "ok": {"type": "boolean"},
        "customer": {"$ref": "#/$defs/customer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "odd": {"type": ["integer", "string"]},
        "a.b": {"type": "string"},
        "loop": {"$ref": "#/properties/loop"},
    },
    "$defs": {
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "parent": {"$ref": "#/$defs/customer"}},
        }
    },
}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "big", "type": {"type": "bytes", "logicalType": "decimal", "precision": 30}},
        {
            "name": "cents",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {
            "name": "customer",
            "type": {
                "type": "record",
                "name": "Customer",
                "fields": [{"name": "name", "type": "string"}],
            },
        },
        {"name": "payer", "type": ["null", "shop.Customer"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def test_a_json_schema_declares_its_scalars() -> None:
    found = declared_in(json.dumps(JSON_SCHEMA).encode())
    first = dict(found.columns)
    assert first["customer.parent.name"] == "string"
    assert {name: kind for name, kind in first.items() if "parent" not in name} == {
        "id": "long", "price": "double", "either": "double", "at": "timestamptz", "day": "date", "ok": "boolean",
        "customer.name": "string",
    }  # fmt: skip
    assert {"tags", "odd", "a.b", "loop"} <= set(found.skipped)


def test_an_avro_schema_declares_its_scalars() -> None:
    AVRO["fields"][8]["type"]["namespace"] = "shop"
    found = declared_in(json.dumps(AVRO, indent=1).encode())
    assert dict(found.columns) == {
        "id": "long", "price": "double", "at": "timestamptz", "day": "date", "big": "decimal", "kind": "string",
        "other": "string", "customer.name": "string", "payer.name": "string",
    }  # fmt: skip
    assert found.skipped == ["cents", "tags"]


def test_an_arrow_schema_and_a_parquet_file_declare_theirs() -> None:
    schema = pa.schema(
        {
            "id": pa.int32(),
            "huge": pa.uint64(),
            "at": pa.timestamp("us", "UTC"),
            "local": pa.timestamp("us"),
            "day": pa.date32(),
            "o": pa.struct({"name": pa.string(), "list": pa.list_(pa.int64())}),
        }
    )
    parquet = io.BytesIO()
    pq.write_table(schema.empty_table(), parquet)
    file = io.BytesIO()
    with pa.ipc.new_file(file, schema):
        pass
    for data in (schema.serialize().to_pybytes(), parquet.getvalue(), file.getvalue()):
        found = declared_in(data)
        assert dict(found.columns) == {
            "id": "long", "huge": "decimal", "at": "timestamptz", "day": "date", "o.name": "string"
        }  # fmt: skip
        assert found.skipped == ["local", "o.list"]


PROTO = b"""
// orders
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";

message Order {
  int64 order_id = 1;
  optional string name = 2 [json_name = "label"];
  repeated int32 amounts = 3;
  map<string, int32> tags = 4;
  Kind kind = 5;
  Customer customer = 6;
  google.protobuf.Timestamp placed_at = 7;
  oneof payment { string card = 8; double cash = 9; }
  .shop.v1.Address ship_to = 10;
  google.protobuf.Struct extra = 11;
  enum Kind { NONE = 0; }
  message Customer { bool vip = 1; Order last = 2; sfixed32 visits = 3; }
}
message Address { string street = 1; bytes place = 2; }
"""


def test_a_protobuf_schema_declares_the_fields_of_its_json_mapping() -> None:
    found = declared_in(PROTO)
    assert dict(found.columns) == {
        "orderId": "string", "label": "string", "kind": "string", "customer.vip": "boolean",
        "customer.visits": "long", "placedAt": "timestamptz", "card": "string", "cash": "double",
        "shipTo.street": "string", "shipTo.place": "string",
    }  # fmt: skip
    assert found.skipped == ["amounts", "tags", "customer.last", "extra"]
    assert declared_in(PROTO, "Address").columns == [("street", "string"), ("place", "string")]
    assert dict(declared_in(PROTO, "shop.v1.Order.Customer").columns)["visits"] == "long"


@pytest.mark.parametrize(
    ("data", "message", "error"),
    [
        (b"message A { int32 a = 1; } message B { int32 b = 1; }", "", "A, B; name one"),
        (b"message A { int32 a = 1; }", "B", "no message 'B'; it has A"),
        (b"message A { int32 a }", "", "line 1, column 21: mismatched input '}'"),
        (b'syntax = "proto3";', "", "messages none"),
        (b'{"type": "object", "properties": {}}', "A", "only Protobuf schemas"),
    ],
)
def test_a_protobuf_schema_that_cannot_be_used_says_why(
    data: bytes, message: str, error: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        declared_in(data, message)
    assert error in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"type":"record"}',
        b"PAR1",
        b"ARROW1",
        b"\xff" * 40,
        b"A",
        b"[" * 200_000,
    ],
)
def test_what_is_no_schema_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="schema") as refused:
        declared_in(data)
    assert "metadata bytes" not in str(refused.value), "a detail of Arrow"


def test_a_command_names_the_file_that_is_no_schema(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"type": "object",')
    with pytest.raises(exits.Misused, match=r"broken\.json: .*line 1 column 19"):
        declared_columns((), (broken, ""))
    for column in ("id", ":long"):
        with pytest.raises(exits.Misused, match="names no field or no type"):
            declared_columns((column,), None)
