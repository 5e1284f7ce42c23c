"""Kafka transactions on three nodes: Polynya beside Apache Kafka, with librdkafka against both.

    python -m bench.transactions [--servers polynya,diskless,kafka] [--rounds 3] [--seconds 8]
        [--parts one,spread,many,plain] [--producers 20]

Polynya fsyncs; Kafka does not, as is its default. `diskless` is Polynya with diskless topics. A
round starts fresh servers and warms them up; rounds go through the servers forwards and backwards.
Parts:

* `one`: a producer with one record a transaction, as fast as it goes. The lag of the stable end is
the
  time from the answer to a commit until a reader of committed records has the record.
* `spread`: a transaction each 100 ms with 100 records over 10 partitions; the time from a record's
  send to its reader.
* `many`: `--producers` of them, each with 10 transactions a second over 4 partitions. CPU is that
of
  all servers.
* `plain`: produce and fetch without transactions.

Needs java, and mvn or $KAFKA_LIBS.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import _results
from bench._kafka import KafkaNodes, produce
from bench._nodes import machine
from bench._rounds import Figures, in_turn, table
from bench.kafka import PARTITIONS, RECORD, Servers, ThreeOfOurs, consume

NODES = 3
PARTS = ("one", "spread", "many", "plain")
SPREAD, EACH_SECONDS, RECORDS_EACH = 10, 0.1, 100
MANY_PARTITIONS, MANY_RATE = 4, 10.0
WARM_TRANSACTIONS = 30
CALL_SECONDS = 60.0
PLAIN_RECORDS, PLAIN_BATCH = 60_000, 131_072


class Reader(threading.Thread):
    """A reader of committed records. `seen`: when each value came."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.seen: dict[bytes, float] = {}
        self._over = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 5,
            }
        )
        assigned = [TopicPartition(topic, number, 0) for number in range(partitions)]
        self._consumer.assign(assigned)

    def run(self) -> None:
        while not self._over.is_set():
            # not `consume(1000, timeout)`: it waits that long for the thousandth message
            message = self._consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.seen[message.value() or b""] = time.perf_counter()
        self._consumer.close()

    def wait_seen(self, value: bytes) -> None:
        deadline = time.monotonic() + CALL_SECONDS
        while value not in self.seen:
            assert time.monotonic() < deadline, f"{value!r} was committed and did not come"
            time.sleep(0.01)

    def end(self) -> None:
        self._over.set()
        self.join()


class Transactor:
    """A transactional producer, and the times of its transactions."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        self.topic, self.name, self.count = topic, name, 0
        self.took: list[float] = []  # seconds of a transaction
        self.committing: list[float] = []  # and of its commit alone
        self.sent: dict[bytes, float] = {}
        self.answered: dict[bytes, float] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{topic}-{name}",
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(CALL_SECONDS)

    def transact(self, partitions: int, records: int = 1) -> None:
        began, values = time.perf_counter(), []
        self._producer.begin_transaction()
        for number in range(records):
            value = f"{self.name} {self.count} {number}".encode()
            self.sent[value] = time.perf_counter()
            values.append(value)
            self._producer.produce(self.topic, value, partition=(self.count + number) % partitions)
        self._producer.flush(CALL_SECONDS)
        ending = time.perf_counter()
        self._producer.commit_transaction(CALL_SECONDS)
        now = time.perf_counter()
        self.answered |= dict.fromkeys(values, now)
        self.took.append(now - began)
        self.committing.append(now - ending)
        self.count += 1

    def forget(self) -> None:
        self.took, self.committing = [], []
        self.sent, self.answered = {}, {}


class Run:
    """The parts of one round against one server."""

    def __init__(self, server: str, servers: Servers, options: argparse.Namespace) -> None:
        self._profile = "diskless" if server == "diskless" else ""
        self._servers, self._options = servers, options
        self._admin = AdminClient({"bootstrap.servers": servers.bootstrap})

    def figures(self) -> Figures:
        parts: dict[str, Callable[[], Figures]] = {
            "one": self._one, "spread": self._spread, "many": self._many, "plain": self._plain
        }  # fmt: skip
        found: Figures = {}
        for name in self._options.parts:
            found |= parts[name]()
        return found

    def _create(self, topic: str, partitions: int) -> None:
        config = {"profile": self._profile} if self._profile else {}
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            made = NewTopic(topic, partitions, NODES, config=config)
            try:
                self._admin.create_topics([made])[topic].result(30)
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _one(self) -> Figures:
        self._create("one", 1)
        reader = Reader(self._servers.bootstrap, "one", 1)
        reader.start()
        writer = Transactor(self._servers.bootstrap, "one", "w")
        for _ in range(WARM_TRANSACTIONS):
            writer.transact(1)
        writer.forget()
        until = time.monotonic() + self._options.seconds
        began = time.monotonic()
        while time.monotonic() < until:
            writer.transact(1)
        took = time.monotonic() - began
        reader.wait_seen(next(reversed(writer.sent)))
        reader.end()
        lags = [max(0.0, reader.seen[each] - at) for each, at in writer.answered.items()]
        return {
            "one_commits_per_second": len(writer.took) / took,
            "one_p50_ms": _ms(writer.took, 0.5),
            "one_p99_ms": _ms(writer.took, 0.99),
            "commit_p50_ms": _ms(writer.committing, 0.5),
            "commit_p99_ms": _ms(writer.committing, 0.99),
            "stable_end_p50_ms": _ms(lags, 0.5),
            "stable_end_p99_ms": _ms(lags, 0.99),
        }

    def _spread(self) -> Figures:
        self._create("spread", SPREAD)
        reader = Reader(self._servers.bootstrap, "spread", SPREAD)
        reader.start()
        writer = Transactor(self._servers.bootstrap, "spread", "w")
        for _ in range(WARM_TRANSACTIONS):
            writer.transact(SPREAD, SPREAD)
        writer.forget()
        _paced(writer, SPREAD, RECORDS_EACH, EACH_SECONDS, self._options.seconds)
        for value in list(writer.sent)[-SPREAD:]:
            reader.wait_seen(value)
        reader.end()
        times = [reader.seen[each] - at for each, at in writer.sent.items()]
        return {"spread_p50_ms": _ms(times, 0.5), "spread_p99_ms": _ms(times, 0.99)}

    def _many(self) -> Figures:
        self._create("many", PARTITIONS)
        options = self._options
        with ThreadPoolExecutor(options.producers) as pool:
            names = [f"w{number}" for number in range(options.producers)]
            bootstrap = self._servers.bootstrap
            writers = list(pool.map(lambda name: Transactor(bootstrap, "many", name), names))

            def work(writer: Transactor) -> None:
                each = 1 / MANY_RATE
                _paced(writer, PARTITIONS, MANY_PARTITIONS, each, options.seconds)

            before, began = self._servers.cpu(), time.monotonic()
            list(pool.map(work, writers))
            took, spent = time.monotonic() - began, self._servers.cpu() - before
        count = sum(len(writer.took) for writer in writers)
        times = [each for writer in writers for each in writer.took]
        return {
            "many_commits_per_second": count / took,
            "many_p99_ms": _ms(times, 0.99),
            "many_cpu_ms_each": spent / count * 1000,
        }

    def _plain(self) -> Figures:
        self._create("plain", PARTITIONS)
        bootstrap = self._servers.bootstrap
        made = produce(bootstrap, "plain", PLAIN_RECORDS, batch=PLAIN_BATCH)
        seconds = consume(bootstrap, "plain", PLAIN_RECORDS)
        return {
            "plain_mib_per_second": made.mib_per_second,
            "plain_fetch_mib_per_second": PLAIN_RECORDS * RECORD / 2**20 / seconds,
        }


def _paced(writer: Transactor, partitions: int, records: int, each: float, seconds: float) -> None:
    """Transact at a rate, and never in a burst after a slow one."""
    until = time.monotonic() + seconds
    while (began := time.monotonic()) < until:
        writer.transact(partitions, records)
        time.sleep(max(0.0, began + each - time.monotonic()))


def _ms(seconds: list[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))] * 1000


def run_once(server: str, options: argparse.Namespace) -> Figures:
    servers: Servers = (
        KafkaNodes(NODES, options.directory)
        if server == "kafka"
        else ThreeOfOurs(options.directory)
    )
    try:
        return Run(server, servers, options).figures()
    finally:
        servers.close()


def parts_of(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := {*parts} - {*PARTS}:
        raise argparse.ArgumentTypeError(
            f"expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}"
        )
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", default="polynya,diskless,kafka")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each part")
    parser.add_argument("--parts", type=parts_of, default=list(PARTS))
    parser.add_argument("--producers", type=int, default=20, help="of the part `many`")
    parser.add_argument("--directory", help="where the servers keep their data (a real disk)")
    _results.add_option(parser)
    options = parser.parse_args()
    print(machine())
    runs = in_turn(
        options.servers.split(","), options.rounds, lambda server: run_once(server, options)
    )
    print(table("server", runs))
    if options.save:
        _results.save("transactions", runs)


if __name__ == "__main__":
    main()
