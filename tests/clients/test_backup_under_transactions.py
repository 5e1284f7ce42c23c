"""A backup while producers commit transactions over two topics, and what a restore has: each
transaction whole or not at all, with its offset."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from polling import wait_until
from product import RunningNode, polynya

pytestmark = pytest.mark.process
SECONDS = 60.0
TOPICS = ("orders", "payments")
FLAGS = ("--cores", "2", "--groups", "6", "--diskless-interval", "50ms")


class Writer(threading.Thread):
    """A producer that commits one transaction after another, with two records and an offset
    each."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(name=f"writer-{number}")
        self.number, self.group = number, f"group-{number}"
        self.committed = 0
        self.stopping = False
        self.fault: Exception | None = None
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"writer-{number}"}
        )
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": self.group})

    def run(self) -> None:
        try:
            self._producer.init_transactions(SECONDS)
            while not self.stopping:
                self._write(self.committed + 1)
                self.committed += 1
        except Exception as fault:  # noqa: BLE001  (the test shows it)
            self.fault = fault

    def _write(self, count: int) -> None:
        producer = self._producer
        producer.begin_transaction()
        for topic in TOPICS:
            producer.produce(topic, b"%d.%d" % (self.number, count), partition=self.number)
        partition = TopicPartition(TOPICS[0], self.number, count)
        metadata = self._consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([partition], metadata, SECONDS)
        producer.commit_transaction(SECONDS)

    def end(self) -> None:
        self.stopping = True
        self.join(SECONDS)
        self._consumer.close()


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[tuple[RunningNode, list[Writer]]]:
    node = RunningNode(tmp_path / "data", FLAGS)
    running: list[Writer] = []
    try:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        profiles = dict(zip(TOPICS, ("replicated", "diskless"), strict=True))
        made = [NewTopic(name, 2, 1, config={"profile": each}) for name, each in profiles.items()]
        for done in admin.create_topics(made).values():
            done.result(SECONDS)
        running += [Writer(node.kafka, number) for number in range(2)]
        for writer in running:
            writer.start()
        yield node, running
    finally:
        for writer in running:
            writer.end()
        assert node.stop() == 0, "".join(node.log)


def committed(bootstrap: str, topic: str, part: int) -> list[int]:
    """Return the committed values of a partition, in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, part, 0)])
    found: list[int] = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        found.append(int(message.value().partition(b".")[2]))
    assert message is not None, "nothing came"
    consumer.close()
    return found


def offset(bootstrap: str, writer: Writer) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": writer.group})
    (found,) = consumer.committed([TopicPartition(TOPICS[0], writer.number)], SECONDS)
    consumer.close()
    return int(found.offset)


def test_each_transaction_is_whole_after_a_restore(
    writers: tuple[RunningNode, list[Writer]], tmp_path: Path
) -> None:
    node, running = writers
    for writer in running:
        wait_until(lambda: writer.committed > 5 or writer.fault, what="commits")  # noqa: B023
    before = [writer.committed for writer in running]
    for partition in ("one", "one"):  # the second has most objects already
        ran = polynya("backup", str(tmp_path / partition), server=node.admin)
        assert ran.code == 0, ran
    during = [writer.committed for writer in running]
    assert all(writer.fault is None for writer in running), [writer.fault for writer in running]
    assert during > before
    for writer in running:
        wait_until(
            lambda: writer.committed > during[writer.number] or writer.fault,  # noqa: B023
            what="commits after the backup",
        )
    ran = polynya("restore", str(tmp_path / "one"), "--data", str(tmp_path / "new"), "--cores", "1")
    assert ran.code == 0, ran
    restored = RunningNode(tmp_path / "new", FLAGS[4:])
    try:
        for writer in running:
            values = [committed(restored.kafka, topic, writer.number) for topic in TOPICS]
            assert values[0] == values[1] == list(range(1, len(values[0]) + 1))
            assert before[writer.number] <= len(values[0])
            assert offset(restored.kafka, writer) == len(values[0])
        again = Writer(restored.kafka, 0)
        again.start()
        wait_until(lambda: again.committed > 0 or again.fault, what="a commit after the restore")
        again.end()
        assert again.fault is None, again.fault
    finally:
        assert restored.stop() == 0, "".join(restored.log)
