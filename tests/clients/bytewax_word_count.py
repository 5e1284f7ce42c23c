"""Count words by Bytewax, twice: the second dataflow goes on at the offsets and the state of its recovery store.

python bytewax_word_count.py SERVERS TOPIC: prints the counts of both as a line of JSON.
"""

import json
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSinkMessage
from bytewax.connectors.kafka import operators as kop
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import run_main
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

WORDS = ["a", "b", "a", "c", "a", "b"]
SECONDS = 60.0


def counted(state: int | None, word: str) -> tuple[int, int]:
    """Return the next state of a word, and its count."""
    count = (state or 0) + 1
    return count, count


def run(servers: str, topic: str, recovery: Path) -> None:
    """Count the words that were not counted yet, up to the end of the topic."""
    flow = Dataflow("words")
    source = kop.input("in", flow, brokers=[servers], topics=[topic], tail=False)
    op.inspect("errors", source.errs, lambda step, each: sys.exit(f"{step}: {each}"))
    keyed = op.map("word", source.oks, lambda message: (message.value.decode(),) * 2)
    counts = op.stateful_map("count", keyed, counted)
    made = op.map(
        "message", counts, lambda pair: KafkaSinkMessage(pair[0].encode(), b"%d" % pair[1])
    )
    kop.output("out", made, brokers=[servers], topic=f"{topic}-counts")
    config = RecoveryConfig(str(recovery))
    run_main(flow, epoch_interval=timedelta(0), recovery_config=config)


def written(servers: str, topic: str, begin: int) -> list[tuple[str, int]]:
    """Return the counts from an offset on."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "looks", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(f"{topic}-counts", 0, begin)])
    found = []
    while (message := consumer.poll(SECONDS)) is not None and message.error() is None:
        found.append((message.key().decode(), int(message.value())))
    consumer.close()
    return sorted(found)


def main() -> None:
    servers, topic = sys.argv[1:]
    made: Any = AdminClient({"bootstrap.servers": servers})
    for done in made.create_topics([NewTopic(topic, 1), NewTopic(f"{topic}-counts", 1)]).values():
        done.result(SECONDS)
    recovery = Path(tempfile.mkdtemp())
    init_db_dir(recovery, 1)
    producer, found = Producer({"bootstrap.servers": servers}), []
    for number in range(2):
        for word in WORDS:
            producer.produce(topic, word, key=word)
        producer.flush(SECONDS)
        run(servers, topic, recovery)
        found.append(written(servers, topic, number * len(WORDS)))
    print(json.dumps(found))


main()
