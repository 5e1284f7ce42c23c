"""Spark's own Kafka source and sink, unchanged, against a node: batch, streaming, and committed
transactions alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from missing import missing
from product import environment, running_node
from spark_jars import kafka_jars

from polynya.lakehouse.machine.java import find_java_home

__all__ = ["kafka_jars"]  # fixture
pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]
SECONDS = 600
COUNT = 20
JOB = """
import json, sys
from pyspark.sql import SparkSession

jars, brokers, folder, count = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", False)
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    .config("spark.sql.shuffle.partitions", 1)
    .getOrCreate()
)
bootstrap = {"kafka.bootstrap.servers": brokers}
rows = spark.range(int(count)).selectExpr(
    "'k' || id as key", "'value ' || id as value", "cast(id % 2 as int) as partition"
)
rows.write.format("kafka").options(**bootstrap).option("topic", "spark").save()
source = {**bootstrap, "subscribe": "spark", "startingOffsets": "earliest"}
read = "partition, offset, cast(key as string), cast(value as string)"
batch = spark.read.format("kafka").options(**source).load().selectExpr(*read.split(", "))
stream = spark.readStream.format("kafka").options(**source, maxOffsetsPerTrigger=7).load()
query = (
    stream.selectExpr(*read.split(", "))
    .writeStream.format("memory").queryName("followed")
    .option("checkpointLocation", folder)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
batches = query.lastProgress["batchId"]
settled = {**source, "subscribe": "settled", "kafka.isolation.level": "read_committed"}
committed = spark.read.format("kafka").options(**settled).load().selectExpr(*read.split(", "))
found = [
    sorted(map(list, each.collect())) for each in (batch, spark.table("followed"), committed)
]
print(json.dumps([*found, batches]))
"""


def test_spark_writes_reads_and_follows_a_topic(
    tmp_path: Path, kafka_jars: tuple[str, str]
) -> None:
    paths, why = kafka_jars
    if not paths:
        missing(why)
    with running_node(tmp_path / "data", "--cores", "1") as node:
        script = tmp_path / "job.py"
        script.write_text(JOB)
        create_topics(node.kafka)
        write_transactions(node.kafka)
        done = subprocess.run(
            [sys.executable, str(script), paths, node.kafka, str(tmp_path / "checkpoint"), str(COUNT)],
            env=environment(JAVA_HOME=find_java_home()), capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    batch, followed, committed, batches = json.loads(done.stdout.splitlines()[-1])
    assert batch == [
        [number % 2, number // 2, f"k{number}", f"value {number}"]
        for number in sorted(range(COUNT), key=lambda number: (number % 2, number // 2))
    ]
    assert followed == batch
    assert [value for *_, value in committed] == ["kept 0", "kept 1", "kept 2"]
    assert batches >= 2, "several micro-batches, each with its own range of offsets"


def create_topics(brokers: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    made = [NewTopic("spark", 2), NewTopic("settled", 1)]
    for done in admin.create_topics(made).values():
        done.result(60)


def write_transactions(brokers: str) -> None:
    """Write committed transactions with aborted ones between and an open one behind them."""
    from confluent_kafka import Producer

    def producer(id_: str) -> Producer:
        made = Producer({"bootstrap.servers": brokers, "transactional.id": id_})
        made.init_transactions(60)
        made.begin_transaction()
        return made

    one = producer("one")
    for number in range(3):
        one.produce("settled", f"kept {number}")
        one.commit_transaction(60)
        one.begin_transaction()
        one.produce("settled", f"aborted {number}")
        one.flush(60)  # else it would not be sent
        one.abort_transaction(60)
        one.begin_transaction()
    open_ = producer("open")
    open_.produce("settled", "open")
    assert open_.flush(60) == 0
    producer("one")  # waits for the last markers
