"""Requests of Kafka for `bench.trace`, made with kio: one broker, one topic, one partition."""

from __future__ import annotations

import datetime as dt
import importlib
import io
import struct
import uuid
from typing import Any

import google_crc32c
from kio.schema.types import ProducerId
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import Records, i16, i32, i32Timedelta, i64

from polynya.front.kafka.brokers import Broker
from polynya.wire.kafka.batches import Record, build_batch

TOPIC = "traced"
VERSIONS = {"Produce": 9, "Fetch": 12, "InitProducerId": 4}
KEYS = {"Produce": 0, "Fetch": 1, "InitProducerId": 22}
WAIT_MS = 10_000


class OneBroker:
    """A node alone."""

    cluster_id, own, zone = "bench", 0, ""

    def all(self) -> tuple[Broker, ...]:
        return (Broker(0, "127.0.0.1", 9092),)

    def leader_of(self, group: int) -> int:
        return 0

    def epoch_of(self, group: int) -> int:
        return 1

    def replicas_of(self, group: int) -> tuple[list[int], list[int]]:
        return [0], [0]

    def nodes_in(self, zone: str) -> tuple[int, ...]:
        return () if zone else (0,)

    def owners(self, zone: str) -> tuple[int, ...]:
        return (0,)

    def owner_of(self, stream: str, group: int, zone: str) -> int:
        return 0

    def owners_of(self, stream: str, group: int, zone: str) -> list[int]:
        return [0]

    async def follow(self) -> None:
        """Learn nothing: the leaders do not change."""


def _module(name: str, side: str) -> Any:
    snake = "".join("_" + each.lower() if each.isupper() else each for each in name).lstrip("_")
    return importlib.import_module(f"kio.schema.{snake}.v{VERSIONS[name]}.{side}")


def _frame(name: str, request: Any) -> bytes:
    buffer = io.BytesIO()
    head = struct.pack(">hhih", KEYS[name], VERSIONS[name], 1, 5) + b"trace"
    buffer.write(head + b"\0")
    entity_writer(type(request))(buffer, request)
    return struct.pack(">i", len(buffer.getvalue())) + buffer.getvalue()


def read_response(name: str, frame: bytes) -> Any:
    """Return kio's message of a whole frame."""
    kind = getattr(_module(name, "response"), f"{name}Response")
    return entity_reader(kind)(frame, 9)[0]


def init_producer_id() -> bytes:
    """Ask for the id of an idempotent producer."""
    request = _module("InitProducerId", "request").InitProducerIdRequest(
        transactional_id=None,
        transaction_timeout=i32Timedelta.parse(_milliseconds(1000)),
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
    )
    return _frame("InitProducerId", request)


def produce(producer: int, sequence: int) -> bytes:
    """Encode a request with one record in one batch of an idempotent producer, acks=-1."""
    made = bytearray(build_batch([Record(None, b"x" * 256, 1000)]))
    struct.pack_into(">qhi", made, 43, producer, 0, sequence)
    struct.pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    types = _module("Produce", "request")
    request = types.ProduceRequest(
        transactional_id=None,
        acks=i16(-1),
        timeout=i32Timedelta.parse(_milliseconds(WAIT_MS)),
        topic_data=(
            types.TopicProduceData(
                name=TOPIC,
                partition_data=(
                    types.PartitionProduceData(index=i32(0), records=Records(bytes(made))),
                ),
            ),
        ),
    )
    return _frame("Produce", request)


def fetch(offset: int) -> bytes:
    """Encode a request for one partition from an offset on; it waits for a record."""
    types = _module("Fetch", "request")
    request = types.FetchRequest(
        max_wait=i32Timedelta.parse(_milliseconds(WAIT_MS)),
        min_bytes=i32(1),
        topics=(
            types.FetchTopic(
                topic=TOPIC,
                partitions=(
                    types.FetchPartition(
                        partition=i32(0), fetch_offset=i64(offset), partition_max_bytes=i32(1 << 20)
                    ),
                ),
            ),
        ),
        forgotten_topics_data=(),
    )
    return _frame("Fetch", request)


def _milliseconds(count: int) -> dt.timedelta:
    return dt.timedelta(milliseconds=count)


def new_id() -> bytes:
    """Return the id of a topic."""
    return uuid.uuid4().bytes
