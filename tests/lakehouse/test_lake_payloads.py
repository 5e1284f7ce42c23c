"""Framed values of a schema registry as typed columns of both formats, from the plan to the rows."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastavro import parse_schema, schemaless_writer
from worlds.lakehouse import Lake, quiet
from worlds.schema_registry import framed

from polynya.lakehouse.jobs import worker
from polynya.lakehouse.jobs.worker import TablesFailed, compact
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


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    lake = Lake(str(tmp_path / "store"))
    with_payload(lake, "registry")
    return lake


def with_payload(lake: Lake, payload: str) -> None:
    coordinator = lake.coordinator
    coordinator.table = msgspec.structs.replace(coordinator.table, columns=[("", payload)])


def avro(schema: Any, row: Any) -> bytes:
    made = io.BytesIO()
    schemaless_writer(made, parse_schema(schema), row)
    return made.getvalue()


def values(*each: bytes | None) -> tuple[int, bytes]:
    return len(each), build_batch([Record(None, value, TIME) for value in each])


def synced(lake: Lake) -> list[dict[str, Any]]:
    """Build the table; return its rows, which are the same in both formats."""
    compact(lake.coordinator, [], lambda: lake.runner, quiet)
    return rows_of(lake)


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    one, two = (
        sorted(table.to_pylist(), key=lambda row: (row["stream"], row["offset"]))
        for table in (lake.iceberg(), lake.delta())
    )
    for row in one:
        row["headers"] = row["headers"] or None
    assert one == two
    return two


def column(rows: list[Mapping[str, Any]] | list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def dead(lake: Lake) -> list[tuple[Any, ...]]:
    found = lake.iceberg("dlq").to_pylist()
    assert found == lake.delta("dlq").to_pylist()
    return [(row["offset"], row["reason"], row["field"], row["message"]) for row in found]


def test_columns_come_from_the_schemas_and_widen_with_each_id(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    first = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": None}))
    lake.source.append_kafka("kafka/orders/0", values(first, None, b"plain", b'{"id": 9}'))
    rows = synced(lake)
    assert column(rows, "value") == [first, None, b"plain", b'{"id": 9}']
    assert column(rows, "id") == [7, None, None, 9]
    assert column(rows, "price") == [0.5, None, None, None]
    # a field that no record has a value of has its column all the same
    assert column(rows, "note") == [None] * 4

    registry.register(2, WIDER)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    row = {"id": 1 << 40, "price": 1e300, "note": "x", "at": moment}
    lake.source.append_kafka("kafka/orders/0", values(framed(2, avro(WIDER, row)), first))
    rows = synced(lake)
    assert column(rows, "id") == [7, None, None, 9, 1 << 40, 7]
    assert column(rows, "price") == [0.5, None, None, None, 1e300, 0.5]
    assert column(rows, "note") == [None] * 4 + ["x", None]
    assert column(rows, "at") == [None] * 4 + [moment, None]
    assert dead(lake) == []
    # a schema never changes: it is read once
    assert sorted(registry.calls) == ["/schemas/ids/1", "/schemas/ids/2"]


def test_an_unknown_id_fails_its_range_by_name_and_is_read_when_it_is_known(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    known = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": None}))
    late = framed(17, avro(ORDER, {"id": 8, "price": 0.5, "note": None}))
    lake.source.append_kafka("kafka/orders/0", values(known))
    lake.source.append_kafka("kafka/orders/1", values(known, late))
    with pytest.raises(TablesFailed, match=r"records 0 to 1 .*schema 17 is unknown") as failed:
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    assert "kafka/orders/1" in str(failed.value)
    assert column(rows_of(lake), "id") == [7]
    assert dead(lake) == []
