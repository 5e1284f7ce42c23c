"""Records of a Kafka client are the same over HTTP and SSE, in both tables and in SQL: each once,
with key, headers and timestamp."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COUNT, TIME = 40, 1_700_000_000_000
RECORDS = "application/vnd.polynya.records+json"


def written(world: PipeWorld) -> list[tuple[Any, ...]]:
    """Write with confluent-kafka, in each codec; return stream, offset, key, value, headers and
    time of each record."""
    from confluent_kafka import Producer

    records: list[tuple[Any, ...]] = []
    errors: list[Any] = []
    for number, codec in enumerate(CODECS):
        producer = Producer(
            {"bootstrap.servers": world.node.kafka, "compression.type": codec, "linger.ms": 50}
        )
        for at in range(COUNT):
            key = None if at % 7 == 3 else f"{codec} {at}".encode()
            value = (
                None
                if at % 5 == 2
                else b'{"codec":"%s","n":%d}' % (codec.encode(), at)
                if at % 2
                else b"text " * 20
            )
            headers = [("n", b"%d" % at), ("none", None)] if at % 3 == 0 else None
            producer.produce(
                "orders", value, key, partition=0, headers=headers, timestamp=TIME + at,
                on_delivery=lambda error, message: errors.append(error) if error else None,
            )  # fmt: skip
            records.append(("kafka/orders/0", number * COUNT + at, key, value, headers, TIME + at))
        assert producer.flush(60) == 0
    assert not errors
    return records


def over_http(world: PipeWorld) -> list[tuple[Any, ...]]:
    """All records as HTTP shows them whole, page by page."""
    found: list[tuple[Any, ...]] = []
    offset = "-1"
    while len(found) < len(CODECS) * COUNT:
        answer = world.http.get(
            f"{world.node.url}/v1/stream/kafka/orders/0",
            params={"offset": offset, "max_bytes": 5000},
            headers={"Accept": RECORDS},
        )
        assert answer.status_code == 200, answer.text
        found += map(shown, answer.json())
        offset = answer.headers["Stream-Next-Offset"]
    return found


def over_sse(world: PipeWorld) -> list[tuple[Any, ...]]:
    """All records as the events of a follower."""
    found: list[tuple[Any, ...]] = []
    request = world.http.stream(
        "GET",
        f"{world.node.url}/v1/stream/kafka/orders/0",
        params={"offset": "-1", "live": "sse"},
        headers={"Accept": RECORDS},
    )
    with request as answer:
        event = ""
        for line in answer.iter_lines():
            name, _, text = line.partition(":")
            if name == "event":
                event = text.strip()
            elif name == "data" and event == "data":
                found += map(shown, json.loads(text))
            if len(found) >= len(CODECS) * COUNT:
                return found
    return found


def shown(record: dict[str, Any]) -> tuple[Any, ...]:
    def of(value: Any) -> bytes | None:
        if isinstance(value, dict):
            return base64.b64decode(value["$base64"])
        return None if value is None else str(value).encode()

    headers = [(name, of(value)) for name, value in record["headers"]] or None
    key, value = of(record["key"]), of(record["value"])
    return "kafka/orders/0", record["offset"], key, value, headers, record["timestamp"]


def record_of(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(each["key"], each["value"]) for each in row["headers"] or []] or None
    time_ms = round(row["timestamp"].timestamp() * 1000)
    return row["stream"], row["offset"], row["key"], row["value"], headers, time_ms


def test_what_a_kafka_client_writes_is_a_table(world: PipeWorld) -> None:
    world.start("--cores", "2", "--kafka-listen", "127.0.0.1:0")
    made = world.http.put(f"{world.node.url}/v1/tables/orders", json={"prefix": "kafka/"})
    assert made.status_code == 201, made.text
    records = written(world)
    assert over_http(world) == records
    assert over_sse(world) == records
    world.compact_here("orders")
    for rows in (world.iceberg("orders"), world.delta("orders")):
        assert sorted(map(record_of, rows), key=lambda row: row[1]) == records
    names = ("stream", "offset", "key", "value", "headers", "timestamp")
    columns = ", ".join(f'"{name}"' for name in names)
    found = world.sql(f'select {columns} from orders order by "offset"')
    assert [record_of(dict(zip(names, row, strict=True))) for row in found] == records
    ((typed, keyed),) = world.sql(
        "select count(n), count(key) from orders where n % 2 = 1 or n is null"
    )
    assert typed == sum(record[3] is not None and record[3].startswith(b"{") for record in records)
    assert keyed == sum(record[2] is not None for record in records)
    ran = world.run("sql", "select count(*) as found, count(headers) as headers from orders")
    assert (
        ran.code == 0
        and "200" in ran.out
        and str(sum(record[4] is not None for record in records)) in ran.out
    ), ran
    assert world.iceberg("orders", "dlq") == []
