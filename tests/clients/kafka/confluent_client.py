"""confluent-kafka (librdkafka) writes and reads with its defaults, which are idempotent; prints
JSON."""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

SECONDS = 60.0


def write(servers: str, topic: str, codec: str, count: int) -> list[str]:
    """Write numbered records; return the errors."""
    errors: list[str] = []
    producer = Producer(
        {"bootstrap.servers": servers, "compression.type": codec, "enable.idempotence": True}
    )
    for number in range(count):
        producer.produce(
            topic,
            partition=0,
            key=None if number % 7 == 3 and number % 5 != 2 else f"k{number}",
            value=None if number % 5 == 2 else f"{codec} {number} ".encode() * 9,
            headers=[("n", str(number).encode()), ("none", None)] if number % 3 == 0 else None,
            timestamp=1_700_000_000_000 + number,
            on_delivery=lambda error, message: errors.append(str(error)) if error else None,
        )
        producer.poll(0)
    left = producer.flush(SECONDS)
    return errors + [f"{left} were not delivered"] * bool(left)


def read(servers: str, topic: str, count: int) -> list[object]:
    """Read from the beginning by assignment; return each record as JSON."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[object] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise SystemExit(str(message.error()))
        key, value = message.key(), message.value()
        found.append(
            [
                message.offset(),
                None if key is None else key.decode(),
                None if value is None else value.decode(),
                [
                    [name, None if data is None else data.decode()]
                    for name, data in message.headers() or []
                ],
                message.timestamp()[1],
            ]
        )
    partitions = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
    at = consumer.offsets_for_times(
        [TopicPartition(topic, 0, 1_700_000_000_000 + count // 2)], timeout=SECONDS
    )
    consumer.close()
    return [found, list(partitions), at[0].offset]


if __name__ == "__main__":
    verb, servers, topic, *rest = sys.argv[1:]
    if verb == "write":
        print(json.dumps(write(servers, topic, rest[0], int(rest[1]))))
    else:
        print(json.dumps(read(servers, topic, int(rest[0]))))
