"""Kafka Streams with exactly_once_v2 counts words while a node of three is killed every five seconds. Its
shorter counterpart, without kills, is in `test_kafka_transaction_clients.py`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from clients.test_kafka_clients import JAVA, SCRIPTS, kafka_jars
from clients.test_kafka_failover import servers
from confluent_kafka.admin import AdminClient, NewTopic
from long_tests import long
from missing import needed_program
from worlds.dev_cluster import DevCluster, dev_cluster

pytestmark = pytest.mark.process
KILL_SECONDS = 5.0
DURATION = int(os.environ.get("STREAMS_SECONDS", "300"))  # of the writer
PAUSE_MS = 50  # between two lines
SECONDS = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path / "c", "--nodes", "3", "--cores", "1", "--groups", "6") as running:
        yield running


@pytest.mark.parametrize("run", long(range(5)))
def test_each_word_is_counted_once_while_nodes_are_killed(
    cluster: DevCluster, tmp_path: Path, run: int
) -> None:
    jars, bootstrap = kafka_jars(needed_program("mvn"), "kafka-streams"), servers(cluster)
    lines, random = DURATION * 1000 // PAUSE_MS // 4 * 4, Random(run)
    made = [NewTopic(name, 2, 3) for name in ("words", "counts")]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.create_topics(made).values():
        done.result(SECONDS)
    source = SCRIPTS.parent / "kafka_java" / "WordCount.java"
    given = (bootstrap, "words", "counts", f"{lines}", str(tmp_path / "state"), f"{PAUSE_MS}")
    with (tmp_path / "out").open("w+b") as output:
        counting = subprocess.Popen(
            ["java", *JAVA, "-cp", f"{jars}/*", str(source), *given], stdout=output, stderr=output
        )
        try:
            while counting.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    counting.wait(KILL_SECONDS)
                    break
                node = random.randint(1, 3)
                cluster.kill(node)  # once it is seen up again
                cluster.start(node)
        finally:
            counting.kill()
            counting.wait()
        output.seek(0)
        text = output.read().decode()
    counts = {"a": 3 * lines, "b": 2 * lines, "c": lines}
    expected = ", ".join(f"{word}={count}" for word, count in counts.items())
    assert counting.returncode == 0, text[-3000:]
    assert text.splitlines()[-1] == f"{{{expected}}}"
