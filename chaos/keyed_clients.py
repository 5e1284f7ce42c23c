"""Kafka clients of a compacted topic: idempotent producers that write and delete a few keys, and readers that
begin at the first record again and again and read to the end. Rule I of `chaos/transaction_history.py`
judges them: a reader finds the last value of each key, and reaches the end.

They are in the process of `chaos/kafka_clients.py`. The run asks for passes (`chaos/run.py`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.history import OK
from chaos.transaction_history import (
    COMMITTED,
    Final,
    Poll,
    Produce,
    TransactionHistory,
    check_transactions,
)

if TYPE_CHECKING:
    from chaos.kafka_clients import KafkaClients

TOPIC = "chaos-keyed"
PARTITIONS = 2
STREAMS = [f"kafka/{TOPIC}/{number}" for number in range(PARTITIONS)]
KEYS = 12
DELETED = 0.1  # share of the records
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "1000",
}
PAUSE_SECONDS = 0.3  # between two reads from the first record on


class KeyedFound(msgspec.Struct):
    """The history of the clients, and the records that a reader found at the end."""

    history: TransactionHistory
    records: dict[str, list[tuple[int, str]]] = {}

    def wrong(self) -> list[str]:
        """Return what was wrong."""
        found = check_transactions(self.history, Final(self.records))
        return [f"key compaction: {each}" for each in found]

    def dropped(self) -> int:
        """Count the records that passes have dropped."""
        there = sum(map(len, self.records.values()))
        return sum(each.outcome == OK for each in self.history.plain) - there


class KeyedClients:
    """The clients of one run. `clients` has their threads and settings."""

    def __init__(self, clients: KafkaClients) -> None:
        self._clients = clients
        self.found = KeyedFound(TransactionHistory(compacted={*STREAMS}))

    def produce(self, producer: int, pause: float) -> None:
        """Write until the run ends; then wait for all of it."""
        draw = Random(f"keyed producer {producer} {self._clients.seed}")
        client, stopping = self._clients.idempotent_producer(draw), self._clients.stopping
        number = 0
        while not stopping.is_set():
            for _ in range(draw.choice((1, 3, 10))):
                self._send(client, draw, f"v{producer}-{number}")
                number += 1
            self._clients.served(client, 0)
            stopping.wait(draw.expovariate(1 / pause))
        self._clients.flush(client)

    def _send(self, client: Any, draw: Random, text: str) -> None:
        """Send one record. A deleting one has its text in a header."""
        partition, key = draw.randrange(PARTITIONS), f"key-{draw.randrange(KEYS)}"
        made = Produce(STREAMS[partition], [text], self._clients.now(), keys=[key])
        value: bytes | None = text.encode()
        if draw.random() < DELETED:
            self.found.history.tombstones.add(text)
            value = None

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self._clients.wrong.append(f"{made.stream}: {text} is refused: {error}")
            else:
                made.outcome, made.ended = OK, self._clients.now()

        self.found.history.plain.append(made)
        headers = [("text", text.encode())]
        while True:
            try:
                client.produce(TOPIC, value, key, partition, on_delivery=delivered, headers=headers)
                return
            except BufferError:  # its queue is full: the nodes are away
                self._clients.served(client, 0.1)

    def read(self) -> None:
        """Read from the first record to the end, again and again, until the run ends."""
        draw = Random(f"keyed reader {self._clients.seed}")
        while not self._clients.ending.is_set():
            partition, began = draw.randrange(PARTITIONS), self._clients.now()
            found = self._whole(partition, self._clients.ending.is_set)
            if found is not None:
                end, records = found
                poll = Poll(
                    COMMITTED,
                    "keyed",
                    STREAMS[partition],
                    began,
                    self._clients.now(),
                    0,
                    end,
                    records,
                    whole=True,
                )
                self.found.history.polls.append(poll)
            self._clients.ending.wait(PAUSE_SECONDS)

    def finish(self, seconds: float) -> None:
        """Read all partitions a last time."""
        for number, stream in enumerate(STREAMS):
            deadline = time.monotonic() + seconds
            found = self._whole(number, lambda: time.monotonic() > deadline)  # noqa: B023 (called here)
            if found is None:
                self._clients.wrong.append(
                    f"liveness: a reader of {stream} does not reach the end within {seconds:.0f} s"
                )
            else:
                self.found.records[stream] = found[1]

    def _whole(
        self, partition: int, is_over: Callable[[], bool]
    ) -> tuple[int, list[tuple[int, str]]] | None:
        """Read a partition from its first record to its end; None: it was over before."""
        from confluent_kafka import KafkaError, TopicPartition

        client = self._clients.consumer("keyed", **{"enable.partition.eof": True})
        client.assign([TopicPartition(TOPIC, partition, 0)])
        records: list[tuple[int, str]] = []
        try:
            while not is_over():
                message = self._clients.served(client, 0.2)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    ((_, text),) = message.headers()
                    records.append((message.offset(), text.decode()))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return message.offset(), records
            return None
        finally:
            client.close()
