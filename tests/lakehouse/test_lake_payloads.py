"""Framed values of a schema registry as typed columns of both formats, from the plan to the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from worlds.lakehouse import Lake, quiet
from worlds.schema_registry import CLICK, COMMON, ORDER, SALE, WIDER, avro, batch_of, framed

from polynya.front.http.api.schemas import info_of
from polynya.lakehouse.jobs import prepare, worker
from polynya.lakehouse.jobs.rewrites.redo import Redefined
from polynya.lakehouse.jobs.worker import TablesFailed, compact, merge, rebuild
from polynya.stream.parts import Encoding


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    lake = Lake(str(tmp_path / "store"))
    with_payload(lake, "registry")
    return lake


def with_payload(lake: Lake, payload: str) -> None:
    coordinator = lake.coordinator
    coordinator.table = msgspec.structs.replace(coordinator.table, columns=[("", payload)])


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
    lake.source.append_kafka("kafka/orders/0", batch_of(first, None, b"plain", b'{"id": 9}'))
    rows = synced(lake)
    assert column(rows, "value") == [first, None, b"plain", b'{"id": 9}']
    assert column(rows, "id") == [7, None, None, 9]
    assert column(rows, "price") == [0.5, None, None, None]
    # a field that no record has a value of has its column all the same
    assert column(rows, "note") == [None] * 4

    registry.register(2, WIDER)
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    row = {"id": 1 << 40, "price": 1e300, "note": "x", "at": moment}
    lake.source.append_kafka("kafka/orders/0", batch_of(framed(2, avro(WIDER, row)), first))
    rows = synced(lake)
    assert column(rows, "id") == [7, None, None, 9, 1 << 40, 7]
    assert column(rows, "price") == [0.5, None, None, None, 1e300, 0.5]
    assert column(rows, "note") == [None] * 4 + ["x", None]
    assert column(rows, "at") == [None] * 4 + [moment, None]
    assert dead(lake) == []
    # a schema never changes: it is read once
    assert sorted(registry.calls) == ["/schemas/ids/1", "/schemas/ids/2"]


def test_records_of_an_unknown_id_are_set_aside_by_name_until_it_is_registered(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    known, late, never = (
        framed(number, avro(ORDER, {"id": number, "price": 0.5, "note": None}))
        for number in (1, 17, 18)
    )
    each = [known, late, late, known, never, known]
    lake.source.append_kafka("kafka/orders/1", batch_of(*each))
    with pytest.raises(TablesFailed) as failed:
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    assert "records 1 to 2 of stream 'kafka/orders/1'" in str(failed.value)
    assert "schema 17 is unknown" in str(failed.value)
    assert "record 4 of stream" in str(failed.value)
    # the other records of the slice are there
    assert column(rows_of(lake), "offset") == [0, 3, 5]
    assert column(synced(lake), "id") == [1, 1, 1]
    assert dead(lake) == []

    registry.register(17, ORDER)
    with pytest.raises(TablesFailed, match="schema 18 is unknown"):
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    rows = rows_of(lake)
    assert column(rows, "offset") == [0, 1, 2, 3, 5]
    assert column(rows, "id") == [1, 17, 17, 1, 1]
    registry.register(18, ORDER)
    assert column(synced(lake), "value") == each
    assert dead(lake) == []


def test_three_wire_formats_become_one_table(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    registry.register(2, COMMON, "PROTOBUF")
    registry.name("common.proto", 2)
    registry.register(3, SALE, "PROTOBUF", ("common.proto",))
    registry.register(4, CLICK, "JSON")
    sale = b"\x08\x05\x12\x03\x0a\x01\x78\x1a\x05\x0a\x03EUR"
    refund = b"\x0a\x02ok"
    click = b'{"id": 3, "at": "2024-01-02T03:04:05Z", "tags": ["a"], "free": 1.5}'
    lake.source.append_kafka(
        "kafka/shop/0",
        batch_of(
            framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": "n"})),
            framed(3, b"\0" + sale),
            framed(3, b"\x02\x02" + refund),
            framed(4, click),
            None,
        ),
    )
    rows = synced(lake)
    assert dead(lake) == []
    assert column(rows, "id") == [7, 5, None, 3, None]
    assert column(rows, "item") == [None, {"name": "x", "size": "SMALL"}, None, None, None]
    assert column(rows, "price") == [0.5, None, None, None, None]
    assert column(rows, "price__struct") == [None, {"currency": "EUR"}, None, None, None]
    assert column(rows, "reason") == [None, None, "ok", None, None]
    assert column(rows, "at") == [None] * 3 + [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), None]
    assert column(rows, "tags") == [None] * 3 + [["a"], None]
    assert column(rows, "free") == [None] * 3 + [1.5, None]


def test_bodies_that_do_not_decode_are_dead_letters(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    registry.register(2, '{"type": "recard", "name": "Broken"}')
    registry.register(3, SALE, "PROTOBUF")  # its import is missing
    good = avro(ORDER, {"id": 7, "price": 0.5, "note": "n"})
    each = [
        framed(1, good),
        framed(1, good[:-1]),
        framed(1, good + b"x"),
        framed(2, b""),
        framed(3, b"\0"),
        framed(1, good),
        b"\0\0\0\1",
    ]
    lake.source.append_kafka("kafka/orders/0", batch_of(*each))
    rows = synced(lake)
    assert column(rows, "value") == each
    assert column(rows, "id") == [7, None, None, None, None, 7, None]
    found = dead(lake)
    assert [(offset, reason) for offset, reason, _, _ in found] == [
        (1, "bad_body"),
        (2, "bad_body"),
        (3, "bad_schema"),
        (4, "bad_schema"),
    ]
    assert "1 bytes follow it" in found[1][3]
    assert "schema 2: the Avro schema cannot be read" in found[2][3]
    assert "common.Money" in found[3][3]

    # a rebuild and a replay decode by the same schemas
    registry.name("common.proto", 1)
    worker.rebuild(lake.coordinator, "flights", lambda: lake.runner, quiet, Redefined())
    assert column(rows_of(lake), "id") == [7, None, None, None, None, 7, None]
    assert [(offset, reason) for offset, reason, _, _ in dead(lake)] == [
        (offset, reason) for offset, reason, _, _ in found
    ]


def test_a_replay_decodes_what_a_new_reading_of_the_schema_can(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(2, COMMON, "PROTOBUF")
    registry.register(3, SALE, "PROTOBUF")
    lake.source.append_kafka("kafka/orders/0", batch_of(framed(3, b"\0\x08\x05")))
    assert column(synced(lake), "offset") == [0]
    assert [reason for _, reason, _, _ in dead(lake)] == ["bad_schema"]
    lake.coordinator._reader = registry.reader()  # another process
    registry.register(3, SALE, "PROTOBUF", ("common.proto",))
    registry.name("common.proto", 2)
    worker.replay(lake.coordinator, "flights", lambda: lake.runner, quiet)
    assert column(rows_of(lake), "id") == [5]
    assert dead(lake) == []


def test_values_without_ids_are_decoded_by_the_tables_schema(lake: Lake) -> None:
    with_payload(lake, f"avro:{json.dumps(ORDER)}")
    body = avro(ORDER, {"id": 7, "price": 0.5, "note": "n"})
    lake.source.append("readings/a", [body, body[:-1]], encoding=Encoding.BYTES)
    lake.source.append_kafka("kafka/r/0", batch_of(body, None))
    rows = synced(lake)
    assert column(rows, "id") == [7, None, 7, None]
    assert [reason for _, reason, _, _ in dead(lake)] == ["bad_body"]


def test_protobuf_without_ids_is_of_the_message_that_is_named(lake: Lake) -> None:
    text = 'syntax = "proto3"; message A { int32 a = 1; } message B { int32 b = 1; }'
    with_payload(lake, f"protobuf:B:{text}")
    lake.source.append("readings/a", [b"\x08\x05", b"\xff", b""], encoding=Encoding.BYTES)
    rows = synced(lake)
    assert column(rows, "b") == [5, None, 0]
    assert "a" not in rows[0]
    assert [reason for _, reason, _, _ in dead(lake)] == ["bad_body"]


def test_ids_that_no_sample_has_are_found_by_the_tasks(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    registry.register(2, WIDER)
    registry.register(3, SALE.replace("common.Money", "string"), "PROTOBUF")
    monkeypatch.setattr(prepare, "_sampled", lambda plan, every: {})
    one = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": "n"}))
    moment = datetime(2023, 11, 14, tzinfo=UTC)
    two = framed(2, avro(WIDER, {"id": 8, "price": 0.5, "note": "n", "at": moment}))
    lake.source.append_kafka("kafka/orders/0", batch_of(one, two, framed(3, b"\2\2\x0a\x02ok")))
    lake.source.append("json/a", [b'{"more": 1}'])
    rows = synced(lake)
    assert column(rows, "id") == [None, 7, 8, None]
    assert column(rows, "at") == [None, None, moment, None]
    assert column(rows, "reason") == [None, None, None, "ok"]
    assert column(rows, "more") == [1, None, None, None]
    assert "item" not in rows[0]  # of a message that no record has


def test_values_without_the_wire_format_are_counted(lake: Lake) -> None:
    """The server reads their number from the metadata. A merge and a rebuild count none twice."""

    def counted() -> int:
        metadata = Path(lake.coordinator.table.iceberg.removeprefix("file://")).read_bytes()
        return info_of(metadata).unframed_values

    lake.coordinator.registry.register(1, ORDER)
    body = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": "n"}))
    messages = list[str]()
    for sent in ((body, b"plain", None, b'{"id": 9}'), (b"\0x", body), (body, body)):
        lake.source.append_kafka("kafka/orders/0", batch_of(*sent))
        compact(lake.coordinator, [], lambda: lake.runner, lambda step, said: messages.append(said))
    assert [said for said in messages if " records" in said and "schema's id" in said] == [
        "4 records, 2 of them without a schema's id",
        "2 records, 1 of them without a schema's id",
    ]
    assert counted() == 3
    merge(lake.coordinator, "flights", lambda: lake.runner, quiet)
    assert counted() == 3
    rebuild(lake.coordinator, "flights", lambda: lake.runner, quiet, Redefined())
    assert counted() == 3
    table = lake.coordinator.table
    lake.coordinator.table = msgspec.structs.replace(table, columns=[])
    rebuild(lake.coordinator, "flights", lambda: lake.runner, quiet, Redefined())
    assert counted() == 0, "all are JSON or bytes now"


def test_references_that_cannot_be_followed_stop_the_job_and_say_so(lake: Lake) -> None:
    """A foreign registry may have lost one, name more than is followed, or name them in a circle."""
    registry = lake.coordinator.registry
    body = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": "n"}))
    lake.source.append_kafka("kafka/orders/0", batch_of(body))
    registry.register(1, ORDER, references=("lost",))
    with pytest.raises(TablesFailed, match="has no version 1 of the subject 'lost'"):
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    registry.register(1, ORDER, references=tuple(f"s{each}" for each in range(101)))
    for number in range(101):
        registry.register(1000 + number, {"type": "enum", "name": f"E{number}", "symbols": ["A"]})
        registry.name(f"s{number}", 1000 + number)
    with pytest.raises(TablesFailed, match="a schema refers to more than 100 others"):
        compact(lake.coordinator, [], lambda: lake.runner, quiet)
    registry.register(1, ORDER, references=("circle",))
    registry.register(2, {"type": "enum", "name": "E", "symbols": ["A"]}, references=("circle",))
    registry.name("circle", 2)
    assert column(synced(lake), "id") == [7]


def test_a_registry_that_fails_stops_the_job_and_loses_nothing(lake: Lake) -> None:
    registry = lake.coordinator.registry
    registry.register(1, ORDER)
    body = framed(1, avro(ORDER, {"id": 7, "price": 0.5, "note": "n"}))
    lake.source.append_kafka("kafka/orders/0", batch_of(body))
    for status, message in ((503, "answered 503"), (401, "Check the URL and the permissions")):
        registry.status = status
        with pytest.raises(TablesFailed, match=message):
            compact(lake.coordinator, [], lambda: lake.runner, quiet)
    registry.status = 0
    assert column(synced(lake), "id") == [7]
