"""Java's producer may send EndTxn before the batches of its transaction; a debugger makes it do so. The
short counterpart, without a JVM, is in `tests/front/test_kafka_producers_in_transactions.py`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import committed_numbers
import pytest
from clients.test_kafka_clients import JAVA, SECONDS, kafka_jars
from confluent_kafka.admin import AdminClient, NewTopic
from long_tests import long
from missing import needed_program
from polling import wait_until
from product import RunningNode

pytestmark = pytest.mark.process
SOURCE = Path(__file__).parent / "kafka_java" / "EarlyCommit.java"
TRANSACTIONS = 20  # of one record


@pytest.mark.parametrize("profile", long(["replicated", "diskless"]))
def test_a_commit_that_overtakes_its_batches_ends_no_producer(tmp_path: Path, profile: str) -> None:
    jars = kafka_jars(needed_program("mvn"))
    node = RunningNode(tmp_path / "data", ("--cores", "1", "--diskless-interval", "50ms"))
    try:
        admin = AdminClient({"bootstrap.servers": node.kafka})
        made = NewTopic("early", 1, 1, config={"profile": profile})
        admin.create_topics([made])["early"].result(SECONDS)
        done = subprocess.run(
            ["java", *JAVA, "-cp", f"{jars}/*", str(SOURCE), str(SOURCE), node.kafka, "early"],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == f"{TRANSACTIONS} committed"
        expected = [list(range(TRANSACTIONS))]
        wait_until(  # the last markers follow the answer
            lambda: committed_numbers.committed(node.kafka, "early", 1, SECONDS) == expected,
            what="each record once",
            seconds=SECONDS,
        )
    finally:
        assert node.stop() == 0, "".join(node.log)
