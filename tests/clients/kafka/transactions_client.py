"""Transactions with librdkafka or aiokafka; prints JSON: the values that readers of committed and
of all records get, the group's offsets after a commit and after an abort, and the fenced error.

transactions_client.py confluent|aio SERVERS TOPIC
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

SECONDS = 30.0


def offset_of(consumer: Consumer, topic: str) -> int:
    (found,) = consumer.committed([TopicPartition(topic, 0)], SECONDS)
    return int(found.offset)


def confluent(servers: str, topic: str) -> list[Any]:
    def made() -> Producer:
        producer = Producer({"bootstrap.servers": servers, "transactional.id": topic})
        producer.init_transactions(SECONDS)
        return producer

    first = made()
    for number in range(4):
        first.begin_transaction()
        for part in range(2):
            first.produce(topic, b"%s%d" % (b"a" if number % 2 else b"c", number), partition=part)
        first.flush(SECONDS)
        if number % 2:
            first.abort_transaction(SECONDS)
        else:
            first.commit_transaction(SECONDS)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic})
    offsets = []
    for offset in (7, 9):
        first.begin_transaction()
        partition = TopicPartition(topic, 0, offset)
        first.send_offsets_to_transaction([partition], consumer.consumer_group_metadata(), SECONDS)
        if offset == 7:
            first.commit_transaction(SECONDS)
        else:
            first.abort_transaction(SECONDS)
        offsets.append(offset_of(consumer, topic))
    consumer.close()
    first.begin_transaction()
    first.produce(topic, b"a5", partition=1)
    first.flush(SECONDS)
    second = made()
    error = ""
    try:
        first.commit_transaction(SECONDS)
    except KafkaException as fault:
        error = fault.args[0].name()
    second.begin_transaction()
    second.produce(topic, b"c6", partition=1)
    second.commit_transaction(SECONDS)
    made()  # waits for the markers
    reads = [rd_values(servers, topic, level) for level in ("read_committed", "read_uncommitted")]
    return [*reads, offsets, error]


def rd_values(servers: str, topic: str, level: str) -> list[str]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "none",
            "isolation.level": level,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, part, 0) for part in range(2)])
    found, ended = [], set[int]()
    while len(ended) < 2:
        message = consumer.poll(SECONDS)
        assert message is not None, "nothing came"
        if message.error():
            ended.add(message.partition())
        else:
            found.append(f"{message.partition()}{message.value().decode()}")
    consumer.close()
    return sorted(found)


async def aio(servers: str, topic: str) -> list[Any]:
    async def made() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=topic)
        await producer.start()
        return producer

    async def write(producer: AIOKafkaProducer, value: bytes, *parts: int) -> None:
        for part in parts:
            await producer.send_and_wait(topic, value, partition=part)

    first = await made()
    for number in range(4):
        await first.begin_transaction()
        await write(first, b"%s%d" % (b"a" if number % 2 else b"c", number), 0, 1)
        if number % 2:
            await first.abort_transaction()
        else:
            await first.commit_transaction()
    offsets = []
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=topic)
    await consumer.start()
    partition = AioPartition(topic, 0)
    for offset in (7, 9):
        await first.begin_transaction()
        await first.send_offsets_to_transaction({partition: offset}, topic)
        if offset == 7:
            await first.commit_transaction()
        else:
            offsets.append(
                await consumer.committed(partition)
            )  # the markers of the first one are there
            await first.abort_transaction()
    await first.begin_transaction()
    await write(first, b"a5", 1)
    offsets.append(await consumer.committed(partition))
    await consumer.stop()
    second = await made()
    error = ""
    try:
        await first.commit_transaction()
    except ProducerFenced:
        error = "_FENCED"
    await second.begin_transaction()
    await write(second, b"c6", 1)
    await second.commit_transaction()
    await second.stop()
    await (await made()).stop()  # waits for the markers
    reads = [
        await aio_values(servers, topic, level) for level in ("read_committed", "read_uncommitted")
    ]
    return [*reads, offsets, error]


async def aio_values(servers: str, topic: str, level: str) -> list[str]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=level)
    await consumer.start()
    partitions = [AioPartition(topic, part) for part in range(2)]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    ends = await consumer.end_offsets(partitions)
    found = []
    async with asyncio.timeout(SECONDS):
        while any(
            [await consumer.position(partition) < ends[partition] for partition in partitions]
        ):
            for some in (await consumer.getmany(timeout_ms=200)).values():
                found += [f"{each.partition}{each.value.decode()}" for each in some]
    await consumer.stop()
    return sorted(found)


if __name__ == "__main__":
    kind, *given = sys.argv[1:]
    print(json.dumps(confluent(*given) if kind == "confluent" else asyncio.run(aio(*given))))
