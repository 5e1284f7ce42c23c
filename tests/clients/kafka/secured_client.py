"""A client of a library writes numbered records and reads them, by SASL over TLS; prints JSON.

python secured_client.py LIBRARY MECHANISM BROKERS CA USER PASSWORD TOPIC COUNT
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from typing import Any

SECONDS = 60.0


def confluent(mechanism: str, config: dict[str, str], topic: str, count: int) -> list[str]:
    from confluent_kafka import Consumer, Producer, TopicPartition

    common: dict[str, Any] = {
        "bootstrap.servers": config["brokers"],
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": config["ca"],
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        common["oauth_cb"] = lambda _: (config["password"], time.time() + 600)
    else:
        common |= {"sasl.username": config["user"], "sasl.password": config["password"]}
    errors: list[str] = []
    producer = Producer(common)
    for number in range(count):
        producer.produce(
            topic,
            f"value {number}",
            on_delivery=lambda error, _: errors.append(str(error)) if error else None,
        )
    assert producer.flush(SECONDS) == 0
    assert not errors, errors
    consumer = Consumer({**common, "group.id": "mine.group", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, SECONDS)
    consumer.close()
    return [(each.value() or b"").decode() for each in found]


def python(mechanism: str, config: dict[str, str], topic: str, count: int) -> list[str]:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition

    common: dict[str, Any] = {
        "bootstrap_servers": config["brokers"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": config["ca"],
        "sasl_mechanism": mechanism,
        "sasl_plain_username": config["user"],
        "sasl_plain_password": config["password"],
    }
    producer = KafkaProducer(**common)
    for number in range(count):
        producer.send(topic, f"value {number}".encode()).get(SECONDS)
    consumer = KafkaConsumer(group_id=None, **common)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    return [next(consumer).value.decode() for _ in range(count)]


def aio(mechanism: str, config: dict[str, str], topic: str, count: int) -> list[str]:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    common: dict[str, Any] = {
        "bootstrap_servers": config["brokers"],
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=config["ca"]),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": config["user"],
        "sasl_plain_password": config["password"],
    }

    async def run() -> list[str]:
        async with AIOKafkaProducer(**common) as producer:
            for number in range(count):
                await producer.send_and_wait(topic, f"value {number}".encode())
        async with AIOKafkaConsumer(**common) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            return [(await consumer.getone()).value.decode() for _ in range(count)]

    return asyncio.run(run())


if __name__ == "__main__":
    library, mechanism, brokers, ca, user, password, topic, count = sys.argv[1:]
    client = {"confluent": confluent, "python": python, "aio": aio}[library]
    config = {"brokers": brokers, "ca": ca, "user": user, "password": password}
    print(json.dumps(client(mechanism, config, topic, int(count))))
