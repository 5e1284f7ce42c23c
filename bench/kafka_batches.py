"""CPU of a leader and of its followers for each Kafka batch of 16 KiB.

    python -m bench.kafka_batches [--nodes 3] [--batches 6000] [--size 16384] [--in-flight 5]

One connection produces batches of one partition with acks=all to its leader, so many requests in
flight, each with one batch. The batches are built before. The CPU is that of each node's processes.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import time

from confluent_kafka.admin import AdminClient, NewTopic

from bench._alone import parser_of, run_rounds
from bench._rounds import Figures
from bench.kafka import OneNode, ThreeOfOurs
from polynya.wire.kafka.batches import Record, build_batch

TOPIC = "batches"
PRODUCE, VERSION = 0, 7
RECORD = 1000
ACKS_ALL, TIMEOUT_MS = -1, 30_000
BROKERS_PER_NODE = 256
ERROR_AT = 4 + 4 + 2 + len(TOPIC) + 4 + 4  # in an answer: behind its correlation and two counts


def request_of(batch: bytes) -> bytes:
    """Return a whole Produce request with a batch for partition 0."""
    head = struct.pack(">hhih", PRODUCE, VERSION, 1, -1)
    topic = struct.pack(
        f">hhiih{len(TOPIC)}s", -1, ACKS_ALL, TIMEOUT_MS, 1, len(TOPIC), TOPIC.encode()
    )
    body = head + topic + struct.pack(">iii", 1, 0, len(batch)) + batch
    return len(body).to_bytes(4) + body


async def produce(place: tuple[str, int], request: bytes, count: int, in_flight: int) -> float:
    """Produce so many batches; return the seconds."""
    reader, writer = await asyncio.open_connection(*place)
    room = asyncio.Semaphore(in_flight)

    async def send() -> None:
        for _ in range(count):
            await room.acquire()
            writer.write(request)
            await writer.drain()

    began = time.monotonic()
    sending = asyncio.ensure_future(send())
    for _ in range(count):
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        (error,) = struct.unpack_from(">h", answer, ERROR_AT)
        assert error == 0, f"error {error}"
        room.release()
    await sending
    writer.close()
    return time.monotonic() - began


def leader_of(servers: OneNode | ThreeOfOurs) -> tuple[int, tuple[str, int]]:
    """Create the topic. Return the number of the node that leads it, and where it listens."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)
    told = admin.list_topics(TOPIC, timeout=30)
    leader = told.topics[TOPIC].partitions[0].leader
    return leader // BROKERS_PER_NODE, (told.brokers[leader].host, told.brokers[leader].port)


def run_once(arguments: argparse.Namespace) -> Figures:
    servers = (OneNode if arguments.nodes == 1 else ThreeOfOurs)(arguments.directory)
    try:
        leader, place = leader_of(servers)
        records = [Record(None, b"x" * RECORD)] * (arguments.size // RECORD)
        request, count = request_of(build_batch(records)), arguments.batches
        asyncio.run(produce(place, request, count // 10, arguments.in_flight))
        before = servers.cpus()
        seconds = asyncio.run(produce(place, request, count, arguments.in_flight))
        used = [after - each for after, each in zip(servers.cpus(), before, strict=True)]
        led = used.pop(leader - 1 if arguments.nodes > 1 else 0)
        figures = {
            "batches_per_second": count / seconds,
            "leader_us_per_batch": led / count * 1e6,
        }
        if used:
            figures["follower_us_per_batch"] = sum(used) / len(used) / count * 1e6
        return figures
    finally:
        servers.close()


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--nodes", type=int, default=3, choices=(1, 3))
    parser.add_argument("--batches", type=int, default=6000)
    parser.add_argument("--size", type=int, default=16_384, help="bytes of a batch")
    parser.add_argument("--in-flight", type=int, default=5)
    run_rounds("kafka_batches", parser.parse_args(), run_once)


if __name__ == "__main__":
    main()
