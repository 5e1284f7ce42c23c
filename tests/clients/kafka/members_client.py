"""Members of one consumer group join, share the partitions, leave and come back; prints JSON.

python members_client.py LIBRARY STRATEGY SERVERS TOPIC PARTITIONS

A strategy is `eager`, `cooperative`, `static`, or `consumer` and `consumer-static` of KIP-848.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SECONDS = 40.0
PAUSE = threading.Event()  # never set
BATCH = 60


class Member(threading.Thread):
    """A consumer with a thread of its own."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._make = make
        self.over = threading.Event()
        self.to_commit = threading.Event()
        self.partitions: set[int] = set()
        self.values: list[str] = []
        self.changes = 0

    def run(self) -> None:
        consumer = self._make()
        while not self.over.is_set():
            self.values += consumer.poll()
            partitions = consumer.partitions()
            self.changes += partitions != self.partitions
            self.partitions = partitions
            if self.to_commit.is_set() and consumer.commit():
                self.to_commit.clear()
        consumer.close()

    def stop(self) -> None:
        self.over.set()
        self.join(SECONDS)
        self.partitions = set()


class Confluent:
    """librdkafka."""

    def __init__(self, servers: str, topic: str, strategy: str, instance: str) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "group.id": f"group-{topic}",
            "auto.offset.reset": "earliest",
        }
        if strategy.startswith("consumer"):
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "session.timeout.ms": 30000,
                "heartbeat.interval.ms": 300,
                "partition.assignment.strategy": "cooperative-sticky"
                if strategy == "cooperative"
                else "range",
            }
        if strategy.endswith("static"):
            settings["group.instance.id"] = instance
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])

    def poll(self) -> list[str]:
        found = self._consumer.consume(100, 0.1)
        assert not [each.error() for each in found if each.error()]
        return [each.value().decode() for each in found]

    def partitions(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def commit(self) -> bool:
        from confluent_kafka import KafkaError, KafkaException

        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as fault:
            # a rebalance: after it, there may be nothing left to commit
            return bool(fault.args[0].code() == KafkaError._NO_OFFSET)
        return True

    def close(self) -> None:
        self._consumer.close()


class Python:
    """kafka-python."""

    def __init__(self, servers: str, topic: str, strategy: str, instance: str) -> None:
        from kafka import KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor

        cooperative = strategy == "cooperative"
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=f"group-{topic}",
            group_instance_id=instance if strategy == "static" else None,
            auto_offset_reset="earliest",
            session_timeout_ms=30000,
            heartbeat_interval_ms=300,
            partition_assignment_strategy=[
                CooperativeStickyAssignor if cooperative else RangePartitionAssignor
            ],
        )

    def poll(self) -> list[str]:
        found = self._consumer.poll(timeout_ms=100)
        return [each.value.decode() for some in found.values() for each in some]

    def partitions(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def commit(self) -> bool:
        from kafka.errors import KafkaError

        try:
            self._consumer.commit()
        except KafkaError:
            return False
        return True

    def close(self) -> None:
        self._consumer.close()


class Aio:
    """aiokafka, which has no cooperative and no static members."""

    def __init__(self, servers: str, topic: str, strategy: str, instance: str) -> None:
        from aiokafka import AIOKafkaConsumer

        self._loop = asyncio.new_event_loop()
        self._consumer = self._loop.run_until_complete(self._made(AIOKafkaConsumer, servers, topic))

    async def _made(self, kind: Any, servers: str, topic: str) -> Any:
        consumer = kind(
            topic,
            bootstrap_servers=servers,
            group_id=f"group-{topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=30000,
            heartbeat_interval_ms=300,
        )
        await consumer.start()
        return consumer

    def poll(self) -> list[str]:
        found = self._loop.run_until_complete(self._consumer.getmany(timeout_ms=100))
        return [each.value.decode() for some in found.values() for each in some]

    def partitions(self) -> set[int]:
        return {partition.partition for partition in self._consumer.assignment()}

    def commit(self) -> bool:
        from aiokafka.errors import KafkaError

        try:
            self._loop.run_until_complete(self._consumer.commit())
        except KafkaError:
            return False
        return True

    def close(self) -> None:
        self._loop.run_until_complete(self._consumer.stop())
        self._loop.close()


def wait(what: str, is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} has not come in {SECONDS} s")
        PAUSE.wait(0.02)


def main(library: str, strategy: str, servers: str, topic: str, partitions: int) -> dict[str, Any]:
    from confluent_kafka import Producer

    kind = {"confluent": Confluent, "python": Python, "aio": Aio}[library]
    producer = Producer({"bootstrap.servers": servers})
    members: dict[int, Member] = {}
    gone: list[Member] = []
    sent = 0

    def start(*numbers: int) -> None:
        for number in numbers:
            members[number] = Member(lambda n=number: kind(servers, topic, strategy, f"i{n}"))
            members[number].start()

    def stop(*numbers: int) -> None:
        for number in numbers:
            members[number].stop()
            gone.append(members.pop(number))

    def shared() -> bool:
        found = [each.partitions for each in members.values()]
        assert all(each.is_alive() for each in members.values()), "a member's thread has failed"
        return all(found) and sorted(p for some in found for p in some) == list(range(partitions))

    def values() -> list[str]:
        return [value for each in (*members.values(), *gone) for value in each.values]

    def write() -> None:
        nonlocal sent
        for _ in range(BATCH):
            producer.produce(topic, partition=sent % partitions, value=str(sent))
            sent += 1
        producer.flush(SECONDS)
        wait("the records", lambda: len(set(values())) == sent)

    start(0, 1, 2)
    wait("the first assignment", shared)
    write()
    start(3, 4)
    wait("the assignment of five", shared)
    write()
    if strategy.endswith("static"):
        changes = {number: members[number].changes for number in (0, 1, 2, 3)}
        stop(4)
        start(4)
        wait("the return", shared)
        unmoved = all(members[number].changes == changes[number] for number in changes)
    else:
        stop(1, 3)
        wait("the assignment of three", shared)
        unmoved = True
    write()
    for member in members.values():
        member.to_commit.set()
    wait("the commits", lambda: not any(each.to_commit.is_set() for each in members.values()))
    stop(*tuple(members))
    seen = values()
    return {
        "sent": sent,
        "seen": len(set(seen)),
        "twice": len(seen) - len(set(seen)),
        "unmoved": unmoved,
    }


if __name__ == "__main__":
    library, strategy, servers, topic, partitions = sys.argv[1:]
    print(json.dumps(main(library, strategy, servers, topic, int(partitions))))
