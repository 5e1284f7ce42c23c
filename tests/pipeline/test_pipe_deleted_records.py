"""Kafka clients delete records inside a batch: consumers, HTTP readers, forks, later jobs and SQL
begin at the offset that was asked; an earlier fork and earlier rows stay."""

from __future__ import annotations

import json
from typing import Any

import pytest
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
RECORDS = "application/vnd.polynya.records+json"
SECONDS = 60
# by topic, the profile and the codec
TOPICS = {
    "plain": ("replicated", "none"),
    "gzipped": ("replicated", "gzip"),
    "diskless": ("diskless", "none"),
    "packed": ("diskless", "zstd"),
}
TABLES = {"topics": "kafka/", "shop": "shop/"}
ALL = [*range(10)]


def write(world: PipeWorld, topic: str, codec: str) -> None:
    """One batch of ten records."""
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": world.node.kafka, "compression.type": codec, "linger.ms": 1000}
    )
    failed: list[Any] = []
    for number in ALL:
        producer.produce(
            topic,
            b'{"n":%d}' % number,
            partition=0,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(SECONDS) == 0 and not failed


def delete_by_librdkafka(world: PipeWorld, topic: str, offset: int) -> int:
    """Return the low watermark."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": world.node.kafka})
    (done,) = admin.delete_records([TopicPartition(topic, 0, offset)]).values()
    return int(done.result(SECONDS).low_watermark)


def delete_by_kafka_python(world: PipeWorld, topic: str, offset: int) -> int:
    """Return the low watermark."""
    from kafka import TopicPartition
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=world.node.kafka)
    try:
        (answer,) = admin.delete_records({TopicPartition(topic, 0): offset}).values()
    finally:
        admin.close()
    return int(answer["low_watermark"] if isinstance(answer, dict) else answer.low_watermark)


def consumed(world: PipeWorld, topic: str, begin: int) -> list[int]:
    """The numbers that a consumer of librdkafka gets from its `begin` to the end."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": world.node.kafka,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, begin)])
    found: list[int] = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        assert json.loads(message.value())["n"] == message.offset()
        found.append(message.offset())
    consumer.close()
    return found


def fetched(world: PipeWorld, topic: str) -> list[int]:
    """Return the numbers that a consumer of kafka-python gets from the first record on."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(
        bootstrap_servers=world.node.kafka,
        consumer_timeout_ms=1000 * SECONDS,
        auto_offset_reset="earliest",
    )
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    begin = consumer.beginning_offsets([partition])[partition]
    found: list[int] = []
    while found[-1:] != ALL[-1:]:
        found.append(next(consumer).offset)
    consumer.close()
    assert found[0] == begin
    return found


def read(world: PipeWorld, stream: str, **more: str) -> list[int]:
    answer = world.http.get(
        f"{world.node.url}/v1/stream/{stream}",
        params={"offset": "-1", **more},
        headers={"Accept": RECORDS},
    )
    assert answer.status_code == 200, answer.text
    return [each["offset"] for each in answer.json()]


def followed(world: PipeWorld, stream: str) -> list[int]:
    """Return the offsets in the first event of a follower."""
    request = world.http.stream(
        "GET",
        f"{world.node.url}/v1/stream/{stream}",
        params={"offset": "-1", "live": "sse"},
        headers={"Accept": RECORDS},
    )
    with request as answer:
        data = next(line for line in answer.iter_lines() if line.startswith("data:"))
    return [each["offset"] for each in json.loads(data.removeprefix("data:"))]


def fork(world: PipeWorld, name: str, source: str) -> None:
    made = world.http.put(
        f"{world.node.url}/v1/stream/{name}", headers={"Stream-Forked-From": f"/v1/stream/{source}"}
    )
    assert made.status_code == 201, made.text


def rows(world: PipeWorld) -> dict[str, list[int]]:
    """The offsets of the rows of each stream."""
    both = " union all ".join(f'select stream, "offset" from {name}' for name in TABLES)  # noqa: S608
    found: dict[str, list[int]] = {}
    for stream, offset in world.sql(f"{both} order by 1, 2"):
        found.setdefault(stream, []).append(offset)
    return found


def check(world: PipeWorld, topic: str, stream: str, start: int) -> None:
    rest = ALL[start:]
    for begin in (0, start):
        assert consumed(world, topic, begin) == rest, topic
    assert fetched(world, topic) == rest, topic
    assert read(world, stream) == read(world, stream, live="long-poll") == rest, topic
    assert followed(world, stream) == rest, topic
    values = world.http.get(f"{world.node.url}/v1/stream/{stream}").json()
    assert [each["n"] for each in values] == rest, topic
    before = f"{start - 1:016d}_{0:016d}"
    refused = world.http.get(f"{world.node.url}/v1/stream/{stream}", params={"offset": before})
    assert (refused.status_code, refused.json()["error"]["code"]) == (410, "TRIMMED")


def make(world: PipeWorld) -> dict[str, str]:
    """Make the topics, with a batch in each; return their partitions' streams."""
    streams = {topic: f"kafka/{topic}/0" for topic in TOPICS} | {"adopted": "shop/orders"}
    for topic, (profile, _) in TOPICS.items():
        body = {"configs": {"content.type": "application/json", "profile": profile}}
        made = world.http.put(f"{world.node.url}/v1/topics/{topic}", json=body)
        assert made.status_code == 201, made.text
    world.create("shop/orders")
    body = {"streams": ["shop/orders"]}
    adopted = world.http.put(f"{world.node.url}/v1/topics/adopted", json=body)
    assert adopted.status_code == 201, adopted.text
    for topic in streams:
        write(world, topic, TOPICS[topic][1] if topic in TOPICS else "gzip")
    return streams


def test_deleted_records_are_in_no_reader_fork_job_or_query(world: PipeWorld) -> None:
    flags = ("--cores", "2")
    world.start(*flags)
    for table, prefix in TABLES.items():
        made = world.http.put(f"{world.node.url}/v1/tables/{table}", json={"prefix": prefix})
        assert made.status_code == 201, made.text
    streams = make(world)
    fork(world, "forks/before", "shop/orders")
    for number, (topic, stream) in enumerate(streams.items()):
        delete = (delete_by_librdkafka, delete_by_kafka_python)[number % 2]
        assert delete(world, topic, 4) == 4, topic
        assert delete(world, topic, 2) == 4, "before the log start"
        check(world, topic, stream, 4)
    fork(world, "forks/after", "shop/orders")
    world.compact_here(*TABLES)
    later = dict.fromkeys(streams.values(), ALL[4:])
    assert rows(world) == later
    for topic in streams:
        assert delete_by_librdkafka(world, topic, 7) == 7, topic
    assert world.node.stop() == 0
    world.start(*flags)
    for topic, stream in streams.items():
        check(world, topic, stream, 7)
    assert rows(world) == later, "earlier rows stay"
    assert read(world, "forks/before") == ALL
    assert read(world, "forks/after") == ALL[4:]
