"""Kafka clients and a cluster of three: every node is a broker, any of them answers, one of them
dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from free_ports import ports_in_a_row
from polling import wait_until
from product import environment
from worlds.dev_cluster import PORTS, DevCluster, dev_cluster

pytestmark = pytest.mark.process
PARTITIONS, COUNT = 6, 3000
WRITER = """
import sys, time
from confluent_kafka import Producer
servers, count = sys.argv[1], int(sys.argv[2])
errors = []
producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "message.timeout.ms": 120000})
for number in range(count):
    producer.produce("orders", partition=number % 6, value=b"%d" % number, on_delivery=lambda e, m: errors.append(e) if e else None)
    producer.poll(0)
    if number == count // 2:
        producer.flush(60)
        print("half", flush=True)
        sys.stdin.readline()
left = producer.flush(120)
print(f"left {left} errors {errors[:3]}", flush=True)
"""
READER = """
import sys, time
from confluent_kafka import Consumer, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "none", "enable.auto.commit": False})
consumer.assign([TopicPartition("orders", partition, 0) for partition in range(6)])
found, end = {}, time.monotonic() + 100
while sum(map(len, found.values())) < int(sys.argv[2]) and time.monotonic() < end:
    message = consumer.poll(1)
    if message is not None and not message.error():
        found.setdefault(message.partition(), []).append(int(message.value()))
print(all(found.get(p) == list(range(p, int(sys.argv[2]), 6)) for p in range(6)), {p: len(v) for p, v in found.items()})
"""


def addresses(cluster: DevCluster) -> list[str]:
    """Return the Kafka bootstrap addresses: the fourth port of each node."""
    return [f"127.0.0.1:{int(url.rpartition(':')[2]) + 3}" for url in cluster.urls]


def client(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True
    )


def test_metadata_names_all_brokers_once_a_new_cluster_is_ready(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    with ports_in_a_row(PORTS) as port:
        urls = [f"http://127.0.0.1:{port + 10 * number}" for number in range(3)]
        flags = ("--nodes", "3", "--cores", "1", "--groups", "4")
        cluster = DevCluster(tmp_path / "c", port, *flags)
        try:
            wait_until(lambda: all(map(is_ready, urls)), what="all to be ready", seconds=60)
            for url in urls:
                address = f"127.0.0.1:{int(url.rpartition(':')[2]) + 3}"
                metadata = AdminClient({"bootstrap.servers": address}).list_topics(timeout=60)
                assert sorted(each // 256 for each in metadata.brokers) == [1, 2, 3]
        finally:
            cluster.close()


def is_ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
def test_a_default_producer_sees_no_error_when_a_node_dies(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1") as cluster:
        from confluent_kafka.admin import AdminClient, NewTopic

        first, *_, last = addresses(cluster)
        admin = AdminClient({"bootstrap.servers": first})
        admin.create_topics([NewTopic("orders", PARTITIONS)])["orders"].result(60)

        def all_are_brokers() -> bool:
            metadata = admin.list_topics(timeout=60)
            found = sorted(f"{each.host}:{each.port}" for each in metadata.brokers.values())
            leaders = {each.leader for each in metadata.topics["orders"].partitions.values()}
            return found == sorted(addresses(cluster)) and len(leaders) > 1

        wait_until(all_are_brokers, what="all nodes to be brokers that lead some partitions")
        writer = client(WRITER, ",".join(addresses(cluster)), COUNT)
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == "half\n"
        cluster.kill(2)
        writer.stdin.write("go on\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "left 0 errors []\n"
        assert writer.wait(60) == 0
        reader = client(READER, last, COUNT)
        assert reader.communicate(timeout=120)[0].startswith("True"), "each record once, in order"
        cluster.start(2)
        writer.stdin.close()
        writer.stdout.close()
