"""`polynya mirror` from a real Kafka: transactions, a compacted topic, groups and a running
producer; the mirror is killed, goes on, and is cut over."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from polling import wait_until
from product import CommandProcess, RunningNode, polynya, running_node
from worlds.kafka_server import running_kafka

pytestmark = pytest.mark.process

SECONDS = 60.0
QUIET = {"log_level": 0}
Row = tuple[int, int, bytes | None, bytes | None, tuple[int, int], Any]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with running_node(tmp_path / "node", "--cores", "1") as node:
        yield node


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    with running_kafka(tmp_path / "kafka") as address:
        yield address


def created(address: str, name: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    made = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
    made[name].result(SECONDS)


def producer(address: str, **more: str) -> Producer:
    found = Producer({"bootstrap.servers": address, **QUIET, **more})
    if more:
        found.init_transactions(SECONDS)
    return found


def rows(address: str, topic: str, partitions: int = 1) -> list[Row]:
    """All committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "none",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: list[Row] = []
    ended: set[int] = set()
    while len(ended) < partitions:
        message = consumer.poll(SECONDS)
        assert message is not None, (
            f"{address} has nothing behind {consumer.position(consumer.assignment())}; ends: {ended}"
        )
        if message.error():
            ended.add(message.partition())
        else:
            found.append(_row(message))
    consumer.close()
    return sorted(found)


def _row(message: Message) -> Row:
    return (
        message.partition(), message.offset(), message.key(), message.value(), message.timestamp(),
        tuple(message.headers() or ()),
    )  # fmt: skip


def ends(address: str, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "none", **QUIET})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, number), SECONDS)
            for number in range(partitions)
        ]
    except KafkaException:  # the topic does not exist yet
        return []
    finally:
        consumer.close()


def transacted(address: str) -> Producer:
    """Write a committed and an aborted transaction, a record without one, and leave one open."""
    writer = producer(address, **{"transactional.id": "mirrored"})
    for outcome in ("committed", "aborted", "committed", "open"):
        writer.begin_transaction()
        for number in range(20):
            writer.produce("orders", f"{outcome} {number}", "k", number % 3)
        if outcome == "open":
            writer.flush(SECONDS)
        elif outcome == "aborted":
            writer.abort_transaction(SECONDS)
        else:
            writer.commit_transaction(SECONDS)
    return writer


def compacted(address: str) -> None:
    """Fill a topic until Kafka has compacted it: offsets are missing inside batches and between."""
    created(
        address, "states", cleanup_policy="compact", segment_ms="100",
        min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="0",
    )  # fmt: skip
    writer = producer(address)
    count = 0

    def has_holes() -> bool:
        nonlocal count
        for _ in range(30):
            writer.produce(
                "states", f"value {count}", f"key {count % 7 if count % 10 else count}", 0
            )
            count += 1
        writer.flush(SECONDS)
        return len(rows(address, "states")) < count - 60

    wait_until(has_holes, what="Kafka compacts the topic", pause=0.3)


class Running:
    """A producer that writes until it is stopped."""

    def __init__(self, address: str, topic: str, partitions: int) -> None:
        self._writer = producer(address)
        self._topic, self._partitions = topic, partitions
        self._stop = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for _ in range(10):
                self._writer.produce(
                    self._topic, f"running {self.count}" * 20, None, self.count % self._partitions,
                    headers=[("n", str(self.count).encode())],
                )  # fmt: skip
                self.count += 1
            self._writer.poll(0)

    def stop(self) -> None:
        """Stop, and wait until all is written; again: do nothing."""
        self._stop.set()
        self._thread.join()
        assert self._writer.flush(SECONDS) == 0


def committed(address: str, group: str, *committed_at: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, **QUIET})
    consumer.commit(offsets=list(committed_at), asynchronous=False)
    consumer.close()


def next_of(address: str, group: str, topic: str) -> dict[int, int]:
    """The first offset of each partition that a group's consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "error",
            "isolation.level": "read_committed", **QUIET,
        }
    )  # fmt: skip
    consumer.subscribe([topic])
    found: dict[int, int] = {}
    while len(found) < 3:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        found.setdefault(message.partition() or 0, message.offset() or 0)
    consumer.close()
    return found


def has_said(process: CommandProcess, text: str) -> bool:
    return any(text in line for line in process.log)


def mirrored(node: RunningNode, kafka: str, *more: str) -> CommandProcess:
    return CommandProcess(
        "mirror", "--from", kafka, "--topics", "orders,states", *more, POLYNYA_SERVER=node.url
    )


def test_a_kafka_is_mirrored_and_cut_over(node: RunningNode, kafka: str) -> None:
    created(kafka, "orders", 3, retention_ms="600000000")
    compacted(kafka)
    open_ = transacted(kafka)
    committed_at = [TopicPartition("orders", number, 5 + number) for number in range(3)]
    committed(kafka, "readers", *committed_at)
    running = Running(kafka, "orders", 3)
    first = mirrored(node, kafka)
    try:
        wait_until(lambda: ends(node.kafka, "states") == ends(kafka, "states"), what="a copy")
    except BaseException:
        running.stop()
        raise
    finally:
        first.process.kill()
        first.process.wait()
        first.end_reading()
    ending = mirrored(node, kafka, "--cut-over")
    try:
        wait_until(lambda: has_said(ending, "the cut-over waits for"), what="it waits")
        refused = Producer({"bootstrap.servers": node.kafka, **QUIET})
        failures: list[str] = []
        refused.produce("orders", b"x", on_delivery=lambda error, _: failures.append(error.name()))
        refused.flush(SECONDS)
        assert failures == ["POLICY_VIOLATION"]
        running.stop()
        open_.abort_transaction(SECONDS)
        assert ending.process.wait(SECONDS) == 0, "".join(ending.log)
        ending.end_reading()
    finally:
        running.stop()
        ending.process.kill()
    assert has_said(ending, "open transactions at the source: orders/")
    assert has_said(ending, "cut over: 2 topics take records here now")
    for topic, partitions in (("orders", 3), ("states", 1)):
        assert rows(node.kafka, topic, partitions) == rows(kafka, topic, partitions)
        assert ends(node.kafka, topic, partitions) == ends(kafka, topic, partitions)
    assert len(rows(node.kafka, "orders", 3)) == 40 + running.count
    assert next_of(node.kafka, "readers", "orders") == next_of(kafka, "readers", "orders")
    shown = polynya("topic", "describe", "orders", server=node.url).out
    assert "600000000" in shown
    assert "mirror.from" not in shown
    last = Producer({"bootstrap.servers": node.kafka, **QUIET})
    last.produce("orders", b"own", partition=0)
    assert last.flush(SECONDS) == 0
    assert rows(node.kafka, "orders", 3)[-1][3] != b"own"
    again = polynya("mirror", "--from", kafka, "--topics", "orders", "--cut-over", server=node.url)
    assert (again.code, "left as it is" in again.err) == (0, True), again.err


class Transacting:
    """A producer that commits and aborts transactions over all partitions until it is stopped."""

    def __init__(self, address: str, number: int) -> None:
        self._writer = producer(address, **{"transactional.id": f"transacting-{number}"})
        self._chance = random.Random(number)
        self._stop = threading.Event()
        self.committed = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._writer.begin_transaction()
            count = self._chance.randint(1, 40)
            for number in range(count):
                self._writer.produce(
                    "orders", b"x" * self._chance.randint(1, 500), None, number % 3
                )
            if self._chance.random() < 0.4:
                self._writer.flush(SECONDS)
                self._writer.abort_transaction(SECONDS)
            else:
                self._writer.commit_transaction(SECONDS)
                self.committed += count

    def stop(self) -> None:
        """Stop after the transaction in work; again: do nothing."""
        self._stop.set()
        self._thread.join()


@pytest.mark.long
def test_a_mirror_is_killed_again_and_again(node: RunningNode, kafka: str) -> None:
    created(kafka, "orders", 3)
    compacted(kafka)
    chance = random.Random(7)
    writers = [Transacting(kafka, number) for number in range(3)]
    running = Running(kafka, "states", 1)
    try:
        for _ in range(20):
            mirror = mirrored(node, kafka)
            with contextlib.suppress(subprocess.TimeoutExpired):
                mirror.process.wait(chance.uniform(1.0, 5.0))
                raise AssertionError("".join(mirror.log))
            mirror.process.kill()
            mirror.process.wait()
            mirror.end_reading()
            for topic, partitions in (("orders", 3), ("states", 1)):
                here = ends(node.kafka, topic, partitions)
                there = ends(kafka, topic, partitions)
                assert all(at <= to for (_, at), (_, to) in zip(here, there, strict=False))
    finally:
        for writer in writers:
            writer.stop()
        running.stop()
    done = polynya(
        "mirror", "--from", kafka, "--topics", "orders,states", "--cut-over",
        server=node.url, seconds=4 * SECONDS,
    )  # fmt: skip
    assert done.code == 0, done.err
    for topic, partitions in (("orders", 3), ("states", 1)):
        assert ends(node.kafka, topic, partitions) == ends(kafka, topic, partitions)
    assert rows(node.kafka, "orders", 3) == rows(kafka, "orders", 3)
    assert len(rows(kafka, "orders", 3)) == sum(each.committed for each in writers)
    # Kafka may have compacted more of it since: a later record of a key is in both
    here = {row[1]: row for row in rows(node.kafka, "states")}
    assert all(here[row[1]] == row for row in rows(kafka, "states"))
