"""Three wire formats with evolving schemas through Spark, whose drivers die in each job. After each job
pyiceberg, deltalake, DuckDB, and Spark's own readers of both formats have the same rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from missing import missing, needed_module
from shared_spark import Unclosed, shared_runner
from spark_jars import jars
from worlds.lakehouse import Lake, quiet
from worlds.schema_registry import CLICK, avro, batch_of, framed

from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.sql.query import query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
pyspark = needed_module("pyspark")
__all__ = ["jars"]  # the fixture

BASE = [
    {"name": "id", "type": "int"},
    {"name": "raw", "type": "bytes"},
    {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
]
COST = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}
ONE = {"type": "record", "name": "Order", "fields": BASE}
TWO = {**ONE, "fields": [{"name": "id", "type": "long"}, *BASE[1:], {"name": "cost", "type": COST}]}
SALE = 'syntax = "proto3"; message Sale { uint64 big = 1; Part part = 2; %s message Part { %s } }'
LOCAL = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC).replace(tzinfo=None)


class Killed(BaseException):
    """The driver is dead."""


def test_every_reader_sees_what_the_schemas_say(tmp_path: Path, jars: tuple[str, str]) -> None:
    if not jars[0]:
        missing(jars[1])
    lake, runner = Lake(str(tmp_path / "store")), shared_runner()
    coordinator = lake.coordinator
    coordinator.table = msgspec.structs.replace(coordinator.table, columns=[("", "registry")])
    registry = coordinator.registry
    registry.register(1, ONE)
    registry.register(2, SALE % ("", "string x = 1;"), "PROTOBUF")
    row: dict[str, Any] = {"id": 7, "raw": b"\xff\0", "local": LOCAL, "tags": ["a", "b"]}
    sale = b"\x08" + b"\xff" * 9 + b"\x01\x12\x03\x0a\x01\x78"
    sent = [framed(1, avro(ONE, row)), framed(2, b"\0" + sale), b"\0"]
    lake.source.append_kafka("kafka/shop/0", batch_of(*sent))
    synced(lake, runner, "ran", "staged-dlq")
    assert read_by_all(lake, runner, ("id", "raw", "local", "tags", "part.x", "value")) == [
        (7, b"\xff\0", LOCAL, ["a", "b"], None, sent[0]),
        (None, None, None, None, "x", sent[1]),
        (None, None, None, None, None, sent[2]),
    ]

    registry.register(3, TWO)
    registry.register(4, SALE % ("string more = 3;", "string x = 1; bool y = 2;"), "PROTOBUF")
    registry.register(5, CLICK, "JSON")
    row |= {"id": 1 << 40, "cost": Decimal("-1.125")}
    more = [
        framed(3, avro(TWO, row)),
        framed(4, b"\0\x12\x02\x10\x01\x1a\x01\x6d"),
        framed(5, b'{"id":3,"tags":["c"],"at":"2024-01-02T03:04:05Z"}'),
    ]
    lake.source.append_kafka("kafka/shop/0", batch_of(*more))
    synced(lake, runner, "pointer")
    names = ("id", "local", "cost", "big", "part.x", "part.y", "more", "value")
    nothing = (None, None, None, None)
    assert read_by_all(lake, runner, names) == [
        (7, LOCAL, None, None, *nothing[1:], sent[0]),
        (None, None, None, Decimal(2**64 - 1), "x", None, None, sent[1]),
        (*nothing, *nothing[1:], sent[2]),
        (1 << 40, LOCAL, Decimal("-1.125"), None, *nothing[1:], more[0]),
        (None, None, None, Decimal(0), "", True, "m", more[1]),
        (3, None, None, None, *nothing[1:], more[2]),
    ]
    assert lake.iceberg("dlq").num_rows == 0


def synced(lake: Lake, runner: Any, *deaths: str) -> None:
    """Build the table: a driver dies after each of these steps, and the next one goes on."""
    for step in deaths:

        def dying(done: str, message: str, step: str = step) -> None:
            if done == step:
                raise Killed(step)

        with pytest.raises(Killed):
            compact(lake.coordinator, [], lambda: Unclosed(runner), dying)
    compact(lake.coordinator, [], lambda: Unclosed(runner), quiet)


def read_by_all(lake: Lake, runner: Any, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """The rows of these columns in order, which are the same for every reader."""
    spark, table = runner.session, lake.coordinator.table
    delta_uri = lake.blobs.uri(f"{table.location}/main")
    found = {}
    for form, path in (("iceberg", table.iceberg), ("delta", delta_uri)):
        frame = spark.read.format(form).load(path).orderBy("offset").select(*names)
        found[f"spark {form}"] = [tuple(map(plain, row)) for row in frame.collect()]
    statement = f'select {", ".join(names)} from flights order by "offset"'
    found["duckdb"] = [
        tuple(map(plain, row)) for row in query(lake.coordinator.tables(), statement).rows
    ]
    for name, whole in (("pyiceberg", lake.iceberg()), ("deltalake", lake.delta())):
        rows = whole.sort_by("offset").to_pylist()
        found[name] = [tuple(plain(within(row, path)) for path in names) for row in rows]
    for name, rows in found.items():
        assert rows == found["deltalake"], name
    return found["deltalake"]


def within(row: Any, path: str) -> Any:
    for name in path.split("."):
        row = None if row is None else row[name]
    return row


def plain(value: Any) -> Any:
    """A value as every reader has it: an empty list is none to some."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return list(value) or None
    return value
