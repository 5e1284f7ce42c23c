"""A group of the consumer protocol (KIP-848) and a cluster of three: members join and leave while
its coordinator dies. No record is lost, no partition is owned twice, and no commit goes back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.test_e2e_kafka_groups import BROKERS_PER_NODE, addresses
from polling import wait_until
from product import environment
from worlds.dev_cluster import dev_cluster

pytestmark = pytest.mark.process
SECONDS = 60.0
PARTITIONS = 6
# Members in threads. "+" and "-" on the input start and stop one, "?" prints how many partitions
# each has and how many records were read, "=" stops all and prints the outcome.
MEMBERS = """
import json, sys, threading
from confluent_kafka import Consumer, KafkaException
servers, owners, seen, lock, twice = sys.argv[1], {}, {}, threading.Lock(), []
class Member(threading.Thread):
    def __init__(self, name):
        super().__init__(daemon=True)
        self.name, self.over, self.errors = name, threading.Event(), []
    def gained(self, consumer, places):
        with lock:
            twice.extend(place.partition for place in places if place.partition in owners)
            owners.update({place.partition: self.name for place in places})
    def lost(self, consumer, places):
        with lock:
            for place in places:
                owners.pop(place.partition, None)
    def run(self):
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "g",
                             "group.protocol": "consumer", "auto.offset.reset": "earliest",
                             "enable.auto.commit": False})
        consumer.subscribe(["t"], on_assign=self.gained, on_revoke=self.lost, on_lost=self.lost)
        while not self.over.is_set():
            for each in consumer.consume(100, 0.05):
                if not each.error():
                    with lock:
                        seen[each.value().decode()] = seen.get(each.value().decode(), 0) + 1
            try:
                consumer.commit(asynchronous=True)
            except KafkaException:
                pass  # nothing was read, or the coordinator is gone
        consumer.close()
members, count = [], 0
for line in sys.stdin:
    command = line.strip()
    if command == "+":
        count += 1
        members.append(Member(f"m{count}"))
        members[-1].start()
    elif command == "-":
        gone = members.pop(0)
        gone.over.set()
        gone.join(60)
    elif command == "?":
        with lock:
            shares = sorted(list(owners.values()).count(each.name) for each in members)
            print(json.dumps([shares, len(seen)]), flush=True)
    else:
        for each in members:
            each.over.set()
        for each in members:
            each.join(60)
        print(json.dumps([len(seen), twice]), flush=True)
        break
"""


class Members:
    """The process of the members."""

    def __init__(self, servers: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBERS, servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> list[object]:
        self.tell(command)
        assert self.process.stdout is not None
        found: list[object] = json.loads(self.process.stdout.readline())
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def test_members_join_and_leave_while_the_coordinator_dies(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1") as cluster:
        from confluent_kafka import Producer
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            NewTopic,
            ResourceType,
        )

        servers = ",".join(addresses(cluster))
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(SECONDS)
        often = ConfigEntry(
            "consumer.heartbeat.interval.ms", "300", incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[often])
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)
        wait_until(
            lambda: len(admin.list_topics(timeout=SECONDS).brokers) == 3,
            what="all nodes to be brokers",
        )
        producer = Producer({"bootstrap.servers": servers})
        written = 0

        def write() -> None:
            nonlocal written
            for _ in range(60):
                producer.produce("t", partition=written % PARTITIONS, value=str(written))
                written += 1
            assert producer.flush(SECONDS) == 0

        members = Members(servers)

        def shared(*shares: int) -> None:
            wait_until(
                lambda: members.ask("?") == [list(shares), written],
                what=f"the shares {shares}, and all records",
                seconds=SECONDS,
            )

        try:
            members.tell("+")
            members.tell("+")
            write()
            shared(3, 3)
            found = admin.describe_consumer_groups(["g"])["g"].result(SECONDS)
            node = found.coordinator.id // BROKERS_PER_NODE
            members.tell("+")
            cluster.kill(node)
            write()
            shared(2, 2, 2)
            members.tell("-")
            write()
            shared(3, 3)
            assert members.ask("=") == [written, []], "records read, and partitions owned twice"
        finally:
            members.close()
