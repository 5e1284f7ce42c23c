"""Transactions while a node of three dies: each is whole or not there at all, and its offset with
it."""

from __future__ import annotations

from collections.abc import Iterator

import committed_numbers
import pytest
from clients.test_kafka_failover import SECONDS, servers
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from worlds.dev_cluster import DevCluster, dev_cluster

pytestmark = pytest.mark.process
PARTITIONS = 3
BEFORE, AFTER = 6, 12  # transactions before and after a node dies; each third one is aborted
CALL_SECONDS = 60.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    folder = tmp_path_factory.mktemp("transactions") / "c"
    with dev_cluster(folder, "--nodes", "3", "--cores", "1") as running:
        yield running


class TransactionWriter:
    """A producer that begins again where Kafka's clients are told to. `unknown`: transactions whose
    commit has no known outcome."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self.committed: set[int] = set()
        self.unknown: set[int] = set()
        self._producer = self._made()
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})

    def _made(self) -> Producer:
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": self._topic})
        producer.init_transactions(CALL_SECONDS)
        return producer

    def write(self, number: int) -> None:
        """Write a value to each partition, and an offset, in one transaction."""
        producer, is_ending = self._producer, False
        try:
            producer.begin_transaction()
            for part in range(PARTITIONS):
                producer.produce(self._topic, b"%d" % number, partition=part)
            partition = TopicPartition(self._topic, 0, number)
            metadata = self._consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([partition], metadata, CALL_SECONDS)
            producer.flush(CALL_SECONDS)
            if number % 3 == 2:
                producer.abort_transaction(CALL_SECONDS)
                return
            is_ending = True
            producer.commit_transaction(CALL_SECONDS)
            self.committed.add(number)
        except KafkaException as fault:
            if is_ending and not fault.args[0].txn_requires_abort():
                self.unknown.add(number)
            self._producer = self._made()  # which aborts what is open

    def wait_settled(self) -> None:
        """Wait until the last transaction has all of its markers."""
        self._producer = self._made()

    def offset(self) -> int:
        """Return the last committed offset."""
        (found,) = self._consumer.committed([TopicPartition(self._topic, 0)], CALL_SECONDS)
        return int(found.offset)

    def close(self) -> None:
        self._consumer.close()


def read(bootstrap: str, topic: str) -> list[list[int]]:
    return committed_numbers.committed(bootstrap, topic, PARTITIONS, CALL_SECONDS)


@pytest.mark.parametrize("profile", ["replicated", "diskless"])
def test_transactions_are_whole_after_a_node_died(cluster: DevCluster, profile: str) -> None:
    bootstrap, topic = servers(cluster), f"whole-{profile}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = NewTopic(topic, PARTITIONS, config={"profile": profile})
    admin.create_topics([made])[topic].result(SECONDS)
    writer = TransactionWriter(bootstrap, topic)
    try:
        for number in range(BEFORE):
            writer.write(number)
        assert writer.committed == {0, 1, 3, 4}
        cluster.kill(2)
        for number in range(BEFORE, AFTER):
            writer.write(number)
        assert len(writer.unknown) <= 1, "a commit that was repeated has an outcome"
        writer.wait_settled()
        found = read(bootstrap, topic)
        assert found[0] == found[1] == found[2] == sorted(found[0])
        assert writer.committed <= set(found[0]) <= writer.committed | writer.unknown
        assert writer.offset() == found[0][-1]
    finally:
        writer.close()
