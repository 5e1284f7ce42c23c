"""aiokafka writes idempotently and reads by assignment; prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def write(servers: str, topic: str, codec: str, count: int) -> list[int]:
    """Write numbered records; return their offsets."""
    async with AIOKafkaProducer(
        bootstrap_servers=servers,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
    ) as producer:
        sent = [
            await producer.send(
                topic,
                key=None if number % 7 == 3 and number % 5 != 2 else f"k{number}".encode(),
                value=None if number % 5 == 2 else f"{codec} {number} ".encode() * 9,
                headers=[("n", str(number).encode())] if number % 3 == 0 else None,
                partition=0,
                timestamp_ms=1_700_000_000_000 + number,
            )
            for number in range(count)
        ]
        return [(await each).offset for each in sent]


async def read(servers: str, topic: str, count: int) -> list[object]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, group_id=None)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found: list[object] = []
        async with asyncio.timeout(60):
            while len(found) < count:
                message = await consumer.getone()
                found.append(
                    [
                        message.offset,
                        None if message.key is None else message.key.decode(),
                        None if message.value is None else message.value.decode(),
                        [
                            [name, None if data is None else data.decode()]
                            for name, data in message.headers
                        ],
                        message.timestamp,
                    ]
                )
        ends = [
            (await consumer.beginning_offsets([partition]))[partition],
            (await consumer.end_offsets([partition]))[partition],
        ]
        at = (await consumer.offsets_for_times({partition: 1_700_000_000_000 + count // 2}))[
            partition
        ]
        return [found, ends, at.offset]
    finally:
        await consumer.stop()


if __name__ == "__main__":
    verb, servers, topic, *rest = sys.argv[1:]
    if verb == "write":
        print(json.dumps(asyncio.run(write(servers, topic, rest[0], int(rest[1])))))
    else:
        print(json.dumps(asyncio.run(read(servers, topic, int(rest[0])))))
