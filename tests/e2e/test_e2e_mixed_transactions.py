"""Transactions during a rolling upgrade from the release before: a client that begins under the
older release is refused clearly until the last node is new, and then goes on without a restart."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

import committed_numbers
import pytest
from clients.test_kafka_failover import servers
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from polling import wait_until
from worlds.dev_cluster import DevCluster, dev_cluster
from worlds.real_cluster import ask_once, records

from polynya.base.levels import LEVEL, TRANSACTION_LEVEL

sys.path.insert(0, str(Path(__file__).parents[2]))

from chaos.upgrade_transactions import (  # noqa: E402  (not a part of the package)
    COORDINATOR_NOT_AVAILABLE,
    find_coordinator,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
OLDER, NEWER = str(TRANSACTION_LEVEL - 1), str(LEVEL)
ID, TOPIC, PARTITIONS = "upgraded-tx", "upgraded", 2
EACH_SECONDS, CALL_SECONDS, SECONDS = 0.02, 5.0, 60.0
ENOUGH = 20  # committed transactions


class Load(threading.Thread):
    """A producer that tries to begin until it may, and then writes a number to each partition in
    each transaction; each fourth one is aborted."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self.refused, self.committed, self.failed = 0, list[int](), ""
        self.over = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "transactional.id": ID, "linger.ms": 0}
        self._producer = Producer(settings)

    def run(self) -> None:
        try:
            while not self.over.is_set() and not self._may_begin():
                self.refused += 1
            number = 0
            while not self.over.wait(EACH_SECONDS):
                self._transact(number)
                number += 1
        except KafkaException as error:
            self.failed = repr(error)

    def _may_begin(self) -> bool:
        try:
            self._producer.init_transactions(CALL_SECONDS)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            return False
        return True

    def _transact(self, number: int) -> None:
        self._producer.begin_transaction()
        for part in range(PARTITIONS):
            self._producer.produce(TOPIC, b"%d" % number, partition=part)
        if number % 4 == 3:
            self._producer.abort_transaction(SECONDS)
            return
        try:
            self._producer.commit_transaction(SECONDS)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._producer.abort_transaction(SECONDS)
            return
        self.committed.append(number)

    def wait_for(self, count: int) -> None:
        wait_until(
            lambda: self.failed or len(self.committed) >= count,
            what=f"{count} committed transactions",
            seconds=SECONDS,
        )
        assert not self.failed, self.failed


def start_again(cluster: DevCluster, number: int, level: str) -> None:
    cluster.stop_node(number)
    cluster.start(number, RELEASE_LEVEL=level)
    cluster.wait_until_well(number)


def check_refused(cluster: DevCluster) -> None:
    for address in servers(cluster).split(","):
        host, port = address.split(":")
        said = asyncio.run(find_coordinator((host, int(port)), ID))
        assert said.error == COORDINATOR_NOT_AVAILABLE, address
        assert f"all nodes at level {TRANSACTION_LEVEL}" in said.message, address


def test_transactions_begin_with_the_last_node_and_the_way_back_is_open_until_then(
    tmp_path: Path,
) -> None:
    with dev_cluster(tmp_path / "c", "--nodes", "3", RELEASE_LEVEL=OLDER) as cluster:
        bootstrap = servers(cluster)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = {"content.type": "application/json"}
        made = NewTopic(TOPIC, PARTITIONS, 3, config=config)
        admin.create_topics([made])[TOPIC].result(SECONDS)
        load = Load(bootstrap)
        load.start()
        try:
            check_refused(cluster)
            start_again(cluster, 3, NEWER)
            check_refused(cluster)
            start_again(cluster, 3, OLDER)  # the way back
            check_refused(cluster)
            for number in (3, 2):
                start_again(cluster, number, NEWER)
                check_refused(cluster)
            wait_until(
                lambda: load.refused or load.committed or load.failed,
                what="a refused producer",
                seconds=SECONDS,
            )
            assert (load.committed, load.failed) == ([], "")
            start_again(cluster, 1, NEWER)
            load.wait_for(ENOUGH)
            start_again(cluster, 2, NEWER)
            load.wait_for(len(load.committed) + ENOUGH)
        finally:
            load.over.set()
            load.join(SECONDS)
        assert not load.failed, load.failed
        expected = [load.committed] * PARTITIONS
        assert committed_numbers.committed(bootstrap, TOPIC, PARTITIONS, SECONDS) == expected
        url = cluster.urls[0]
        assert [records(url, f"kafka/{TOPIC}/{part}") for part in range(PARTITIONS)] == expected
        status, body = ask_once("GET", f"{url}/v1/transactions/{ID}")
        assert (status, b'"partitions"' in body) == (200, True), body
