"""A consumer group and a cluster of three: its coordinator dies, and no acknowledged commit is
lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from polling import wait_until
from product import environment
from worlds.dev_cluster import DevCluster, dev_cluster

pytestmark = pytest.mark.process
SECONDS = 60.0
BROKERS_PER_NODE = 256  # ids
# commits one offset after the other; prints the last one, the longest pause, and the assignments
COMMITTER = """
import json, sys, time
from confluent_kafka import Consumer, KafkaException, TopicPartition
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g", "enable.auto.commit": False,
                     "session.timeout.ms": 10000})
assigned = []
consumer.subscribe(["t"], on_assign=lambda c, places: assigned.append(len(places)))
while not assigned:
    consumer.poll(0.1)
acknowledged, longest, last, end = 0, 0.0, time.monotonic(), None
while end is None or time.monotonic() < end:
    consumer.poll(0)
    try:
        consumer.commit(offsets=[TopicPartition("t", 0, acknowledged + 1)], asynchronous=False)
    except KafkaException:
        continue
    now = time.monotonic()
    acknowledged, longest, last = acknowledged + 1, max(longest, now - last), now
    if acknowledged == 20:
        print("go", flush=True)
        sys.stdin.readline()
        last = time.monotonic()
        end = last + 8
print(json.dumps([acknowledged, longest, assigned]), flush=True)
sys.stdin.readline()
"""


def addresses(cluster: DevCluster) -> list[str]:
    """Return the Kafka bootstrap addresses: the fourth port of each node."""
    return [f"127.0.0.1:{int(url.rpartition(':')[2]) + 3}" for url in cluster.urls]


def test_no_commit_is_lost_when_the_coordinator_dies(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1") as cluster:
        from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
        from confluent_kafka.admin import AdminClient, NewTopic

        servers = ",".join(addresses(cluster))
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("t", 1)])["t"].result(SECONDS)

        def brokers() -> bool:
            return len(admin.list_topics(timeout=SECONDS).brokers) == 3

        wait_until(brokers, what="all nodes to be brokers")
        committer = subprocess.Popen(
            [sys.executable, "-c", COMMITTER, servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        assert committer.stdout is not None and committer.stdin is not None
        try:
            assert committer.stdout.readline() == "go\n"
            described = admin.describe_consumer_groups(["g"])["g"].result(SECONDS)
            node = described.coordinator.id // BROKERS_PER_NODE
            cluster.kill(node)
            committer.stdin.write("go on\n")
            committer.stdin.flush()
            acknowledged, longest, assigned = json.loads(committer.stdout.readline())
            assert longest < 3 * float(os.environ.get("SLOWER", "1")), "seconds of a failover"
            assert assigned == [1], "the member stays, without a rebalance"
            asked = [ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0)])]
            left = ",".join(
                address for number, address in enumerate(addresses(cluster), 1) if number != node
            )
            later = AdminClient({"bootstrap.servers": left})
            found = later.list_consumer_group_offsets(asked)["g"].result(SECONDS)
            assert acknowledged > 20
            assert found.topic_partitions[0].offset in (acknowledged, acknowledged + 1)
        finally:
            committer.kill()
            committer.wait()
            committer.stdin.close()
            committer.stdout.close()
        cluster.start(node)
