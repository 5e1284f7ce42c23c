"""The part of the demo's flights that a Kafka client writes: the streams are the partitions of a
topic."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from polynya.cli.kafka.brokers import Failures, explained, kafka_config
from polynya.cli.remote.client import Client
from polynya.cli.terminal import exits

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

TOPIC = "flights"
_LINGER_MS = 5
_REPORTED = 2000  # records between two looks at what is durable
_FLUSH_SECONDS = 60.0


def adopt(client: Client, streams: Sequence[str]) -> bool:
    """Make the streams the partitions of `TOPIC`. False: there is no Kafka client, or the node
    serves none."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return False
    if not client.call("GET", "/v1/node").json().get("kafka"):
        return False
    client.call("PUT", f"/v1/topics/{TOPIC}", body={"streams": list(streams)})
    return True


def append(
    client: Client,
    partition: int,
    records: Sequence[bytes],
    key: str,
    progress: Callable[[int], None],
) -> int:
    """Write records to a partition with an idempotent producer; return how many are durable.
    Raises `exits.Ended`."""
    failures = Failures()
    config = kafka_config(client, None, failures) | {
        "enable.idempotence": True,
        "compression.type": "zstd",
        "linger.ms": _LINGER_MS,
        "queue.buffering.max.messages": 1_000_000,
    }
    from confluent_kafka import Producer

    producer = Producer(config)
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    reported = 0
    for number, record in enumerate(records, 1):
        producer.produce(TOPIC, record, key, partition=partition, on_delivery=delivered)
        if number % _REPORTED == 0:
            producer.poll(0)
            progress(number - reported)
            reported = number
    left = producer.flush(_FLUSH_SECONDS)
    progress(len(records) - reported)
    failures.check()
    if failed:
        raise explained(failed[0], f"a flight was not written to {TOPIC}")
    if left:
        raise exits.Unknown(f"{left} flights were not acknowledged; run the demo again")
    return len(records)
