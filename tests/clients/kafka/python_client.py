"""kafka-python writes and reads by assignment, with its defaults; prints JSON."""

from __future__ import annotations

import json
import sys

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic


def write(servers: str, topic: str, codec: str, count: int) -> list[int]:
    """Write numbered records; return their offsets."""
    producer = KafkaProducer(
        bootstrap_servers=servers, compression_type=None if codec == "none" else codec
    )
    sent = [
        producer.send(
            topic,
            key=None if number % 7 == 3 and number % 5 != 2 else f"k{number}".encode(),
            value=None if number % 5 == 2 else f"{codec} {number} ".encode() * 9,
            headers=[("n", str(number).encode())] if number % 3 == 0 else None,
            partition=0,
            timestamp_ms=1_700_000_000_000 + number,
        )
        for number in range(count)
    ]
    producer.flush(timeout=60)
    return [each.get(timeout=60).offset for each in sent]


def read(servers: str, topic: str, count: int) -> list[object]:
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=None, consumer_timeout_ms=20_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found: list[object] = []
    for message in consumer:
        found.append(
            [
                message.offset,
                None if message.key is None else message.key.decode(),
                None if message.value is None else message.value.decode(),
                [[name, None if data is None else data.decode()] for name, data in message.headers],
                message.timestamp,
            ]
        )
        if len(found) == count:
            break
    begin, end = (
        consumer.beginning_offsets([partition])[partition],
        consumer.end_offsets([partition])[partition],
    )
    at = consumer.offsets_for_times({partition: 1_700_000_000_000 + count // 2})[partition]
    return [found, [begin, end], at.offset]


def administer(servers: str, topic: str) -> list[object]:
    """Create a topic, list, delete and list again."""
    admin = KafkaAdminClient(bootstrap_servers=servers)
    admin.create_topics([NewTopic(topic, 3, 1)])
    before = sorted(admin.list_topics())
    described = [len(each["partitions"]) for each in admin.describe_topics([topic])]
    admin.delete_topics([topic])
    return [before, described, sorted(admin.list_topics())]


if __name__ == "__main__":
    verb, servers, topic, *rest = sys.argv[1:]
    if verb == "write":
        print(json.dumps(write(servers, topic, rest[0], int(rest[1]))))
    elif verb == "read":
        print(json.dumps(read(servers, topic, int(rest[0]))))
    else:
        print(json.dumps(administer(servers, topic)))
