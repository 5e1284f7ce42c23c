"""Schema files as declared columns: JSON Schema, Avro, Arrow and Parquet."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from polynya.base.errors import ConfigError
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
    with pytest.raises(ConfigError, match="schema"):
        declared_in(data)
