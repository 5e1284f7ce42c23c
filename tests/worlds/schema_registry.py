"""A schema registry with the calls of Confluent's API that a reader needs, without a socket."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
from fastavro import parse_schema, schemaless_writer

from polynya.lakehouse.payloads.registry import SchemaReader
from polynya.wire.kafka.batches import Record, build_batch

TIME = 1_700_000_000_000
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": "float"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
WIDER = {
    **ORDER,
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
COMMON = 'syntax = "proto3"; package common; message Money { string currency = 1; }'
SALE = """
syntax = "proto3";
package shop;
import "common.proto";
message Sale {
  message Item { string name = 1; Size size = 2; }
  enum Size { SMALL = 0; LARGE = 1; }
  int32 id = 1;
  Item item = 2;
  common.Money price = 3;
}
message Refund { string reason = 1; }
"""
CLICK = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}


def avro(schema: Any, row: Any) -> bytes:
    made = io.BytesIO()
    schemaless_writer(made, parse_schema(schema), row)
    return made.getvalue()


def batch_of(*each: bytes | None) -> tuple[int, bytes]:
    return len(each), build_batch([Record(None, value, TIME) for value in each])


def framed(number: int, body: bytes) -> bytes:
    """Put a body into the wire format of Confluent's serializers."""
    return b"\0" + number.to_bytes(4, signed=True) + body


class SchemaRegistry:
    """Schemas by id, and by subject and version."""

    def __init__(self) -> None:
        self.by_id: dict[int, dict[str, Any]] = {}
        self.by_subject: dict[tuple[str, int], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.status = 0  # of every answer, if it is not 0

    def register(
        self, number: int, schema: Any, kind: str = "AVRO", references: tuple[str, ...] = ()
    ) -> None:
        """Register a schema; each of `references` is a subject, whose version 1 has that name."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found: dict[str, Any] = {"schema": text}
        found |= {} if kind == "AVRO" else {"schemaType": kind}
        named = [{"name": each, "subject": each, "version": 1} for each in references]
        self.by_id[number] = found | ({"references": named} if named else {})

    def name(self, subject: str, number: int) -> None:
        """Make the schema of an id version 1 of a subject."""
        self.by_subject[subject, 1] = self.by_id[number]

    def reader(self, url: str = "http://registry") -> SchemaReader:
        return SchemaReader(url, httpx.Client(transport=httpx.MockTransport(self._answer)))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.calls.append(request.url.path)
        if self.status:
            return httpx.Response(self.status, json={"error_code": self.status, "message": "no"})
        parts = request.url.path.strip("/").split("/")
        found = None
        if parts[:2] == ["schemas", "ids"]:
            found = self.by_id.get(int(parts[2]))
        elif parts[0] == "subjects":
            found = self.by_subject.get((parts[1], int(parts[3])))
        if found is None:
            return httpx.Response(404, json={"error_code": 40403, "message": "Schema not found"})
        return httpx.Response(200, json=found)
