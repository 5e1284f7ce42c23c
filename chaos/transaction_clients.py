"""Transactional Kafka clients: producers that fight for their ids, abort at random and stop without
a word, a copier that commits its position with its outputs, and readers with both isolation levels.
`chaos/transaction_history.py` judges them.

They are in the process of `chaos/kafka_clients.py`. The run changes the profile of one topic and
reads by HTTP (`chaos/transaction_watch.py`)."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.history import INFO, OK
from chaos.transaction_history import (
    ABORT,
    COMMIT,
    COMMITTED,
    FENCED,
    UNCOMMITTED,
    End,
    Ends,
    Final,
    Init,
    Offsets,
    Poll,
    Position,
    Produce,
    Transaction,
    TransactionHistory,
    check_transactions,
    is_committed,
)

if TYPE_CHECKING:
    from chaos.kafka_clients import KafkaClients

INPUT, REPLICATED, DISKLESS, SWITCHED = (
    "chaos-tx-in", "chaos-tx-replicated", "chaos-tx-diskless", "chaos-tx-switched"
)  # fmt: skip
PROFILES = {
    INPUT: "replicated",
    REPLICATED: "replicated",
    DISKLESS: "diskless",
    SWITCHED: "diskless",
}
PARTITIONS = {INPUT: 1, REPLICATED: 2, DISKLESS: 2, SWITCHED: 2}
PLACES = [(topic, number) for topic, count in PARTITIONS.items() for number in range(count)]
WRITTEN = [topic_partition for topic_partition in PLACES if topic_partition[0] != INPUT]
IDS, INSTANCES = 2, 2  # of the writers
COPIER, COPIERS = "chaos-tx-copier", 2  # the id and the group of the copier, and its instances
OUTPUT = (SWITCHED, 0)
TIMEOUT_SECONDS = 10.0  # of a transaction
CALL_SECONDS = 5.0  # of one try of a call
END_SECONDS = 60.0  # of all tries of a call
STAY_TRANSACTIONS = (3, 40)  # an instance is begun again after so many
AGAIN_SECONDS = (0.5, 4.0)  # before it is
ABORTED, ABANDONED, SLOW = 0.2, 0.04, 0.04  # shares of the transactions
SLOW_SECONDS = (0.5, 3.0)
WITH_OFFSETS = 0.3  # share of those of the writers
PAUSE_SECONDS = 0.1  # between two transactions of an instance
ENDS_SECONDS = 1.0  # between two looks at the ends
BATCH = 20  # records of the copier in a transaction
SETTLE_SECONDS = 60.0  # after the longest transaction
SETTINGS = {"transaction.timeout.ms": int(TIMEOUT_SECONDS * 1000), "linger.ms": 5}


def stream_of(topic: str, partition: int) -> str:
    return f"kafka/{topic}/{partition}"


STREAMS = [stream_of(*topic_partition) for topic_partition in PLACES]


class TransactionsFound(msgspec.Struct):
    """The history of the clients, what a reader found at the end, and the errors that they were
    told."""

    history: TransactionHistory
    final: Final
    errors: dict[str, int] = {}

    def wrong(self) -> list[str]:
        """Return what was wrong."""
        return [f"transactions: {each}" for each in check_transactions(self.history, self.final)]

    def committed(self) -> int:
        """Count the transactions whose commit was acknowledged."""
        return sum(map(is_committed, self.history.transactions))


class Over(Exception):
    """Raised where an instance cannot go on."""


class Instance:
    """One life of a transactional producer. Raises Over when it is fenced, or fails."""

    def __init__(self, clients: TransactionClients, id_: str, name: str) -> None:
        self.id, self.name, self._clients = id_, name, clients
        self._now, self._count = clients.clients.now, 0
        self._client = clients.clients.transactional_producer(id_, **SETTINGS)

    def init(self) -> None:
        made = Init(self.id, self.name, self._now())
        self._clients.history.inits.append(made)
        self._must("init", lambda: self._client.init_transactions(CALL_SECONDS), made)

    def begin(self) -> Transaction:
        self._count += 1
        name = f"{self.name}.{self._count}"
        made = Transaction(name, self.id, self.name, self._now(), TIMEOUT_SECONDS)
        self._clients.history.transactions.append(made)
        self._must("begin", self._client.begin_transaction)
        return made

    def produce(
        self,
        of: Transaction,
        topic_partition: tuple[str, int],
        value: str,
        sources: tuple[str, ...] = (),
    ) -> None:
        topic, partition = topic_partition
        made = Produce(stream_of(*topic_partition), [value], self._now(), sources=[*sources])
        of.produces.append(made)

        def delivered(error: Any, message: Any) -> None:
            made.ended = self._now()
            if error is None:
                made.outcome = OK
            else:
                self._clients.errors[f"produce: {error.name()}"] += 1

        send = self._client.produce
        self._must(
            "produce", lambda: send(topic, value, partition=partition, on_delivery=delivered)
        )

    def send_offsets(self, of: Transaction, consumer: Any, group: str, offset: int) -> None:
        from confluent_kafka import TopicPartition

        made = Offsets(group, {stream_of(INPUT, 0): offset}, self._now())
        of.offsets.append(made)
        partitions = [TopicPartition(INPUT, 0, offset)]

        def send() -> None:
            metadata = consumer.consumer_group_metadata()
            self._client.send_offsets_to_transaction(partitions, metadata, CALL_SECONDS)

        self._must("offsets", send, made)

    def end(self, of: Transaction, kind: str) -> None:
        """Commit or abort. A commit that the client gives up is aborted, with an unknown outcome.
        An abort of records that were never sent is answered without a request: it shows nothing."""
        made = of.end = End(kind, self._now())
        call = self._client.commit_transaction if kind == COMMIT else self._client.abort_transaction
        self._must(kind, lambda: call(CALL_SECONDS), made)
        if kind == ABORT and not any(
            each.outcome == OK for each in of.effects() if each is not made
        ):
            made.outcome = INFO

    def _must(
        self,
        what: str,
        call: Callable[[], Any],
        made: Init | Offsets | End | None = None,
    ) -> None:
        """Call until it is done, and write the outcome down. Raises Over when the client gives
        up."""
        error = self._tried(call)
        if made is not None and (error is None or not isinstance(made, Init)):
            made.ended = self._now()  # an Init that was given up may still come
        if error is None:
            if made is not None:
                made.outcome = OK
            return
        self._clients.errors[f"{what}: {error.name()}"] += 1
        if made is not None and _is_fenced(error):
            made.error = FENCED
        if error.txn_requires_abort():
            self._tried(lambda: self._client.abort_transaction(CALL_SECONDS))
        raise Over

    def _tried(self, call: Callable[[], Any]) -> Any:
        """Return the error that repeating does not mend; None: it is done."""
        from confluent_kafka import KafkaError, KafkaException

        deadline, again = self._now() + END_SECONDS, False
        while True:
            try:
                if again:
                    self._clients.clients.served(self._client, 0.1)  # may tell a fatal error
                call()
                return None
            except BufferError:
                again = True
            except SystemError:  # an error of a callback, which it has told by then
                return KafkaError(KafkaError._FAIL)
            except KafkaException as fault:
                error = fault.args[0]
                if not error.retriable() or self._now() > deadline:
                    return error
                again = True


def _is_fenced(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)


class TransactionClients:
    """The clients of one run. `clients` has their threads and settings."""

    def __init__(self, clients: KafkaClients) -> None:
        self.clients = clients
        copied = {COPIER: (stream_of(INPUT, 0), stream_of(*OUTPUT))}
        self.history = TransactionHistory(pipelines=copied)
        self.final = Final()
        self.errors: Counter[str] = Counter()
        self._reached = {
            (kind, topic_partition): 0
            for kind in (COMMITTED, UNCOMMITTED)
            for topic_partition in PLACES
        }

    @property
    def found(self) -> TransactionsFound:
        return TransactionsFound(self.history, self.final, dict(self.errors))

    def writers(self) -> list[tuple[Callable[..., None], str, str]]:
        """List the work of each thread that writes, the transactional id and the instance."""
        work = [
            (self.write, f"chaos-tx-{number}", "ab"[instance])
            for number in range(IDS)
            for instance in range(INSTANCES)
        ]
        work += [(self.fill, "chaos-tx-filler", "a")]
        return work + [(self.copy, COPIER, "ab"[instance]) for instance in range(COPIERS)]

    # --- writing ----------------------------------------------------------------------------------

    def write(self, id_: str, name: str) -> None:
        """Write to some partitions in each transaction, beside another instance of the same id."""
        consumer = self._consumer(f"{id_}-offsets", COMMITTED)

        def once(instance: Instance, made: Transaction, draw: Random) -> None:
            for number in range(draw.choice((1, 2, 4))):
                instance.produce(made, draw.choice(WRITTEN), f"{made.name}:{number}")
            if draw.random() < WITH_OFFSETS:
                instance.send_offsets(made, consumer, f"{id_}-offsets", self._unique(draw))

        self._live(id_, name, lambda instance, draw: self._transacted(instance, draw, once))
        consumer.close()

    def fill(self, id_: str, name: str) -> None:
        """Write the inputs of the copier."""

        def once(instance: Instance, made: Transaction, draw: Random) -> None:
            for number in range(draw.choice((1, 3))):
                instance.produce(made, (INPUT, 0), f"{made.name}:{number}")

        self._live(id_, name, lambda instance, draw: self._transacted(instance, draw, once))

    def copy(self, id_: str, name: str) -> None:
        """Read committed inputs from the committed position on, and write each once."""
        self._live(id_, name, self._copied)

    def _live(self, id_: str, name: str, work: Callable[[Instance, Random], None]) -> None:
        """Begin instances one after the other, until the run ends."""
        draw, lives = Random(f"{id_} {name} {self.clients.seed}"), 0
        while not self.clients.stopping.is_set():
            lives += 1
            instance = Instance(self, id_, f"{id_}-{name}{lives}")
            with contextlib.suppress(Over):
                instance.init()
                work(instance, draw)
            self.clients.stopping.wait(draw.uniform(*AGAIN_SECONDS))

    def _transacted(
        self,
        instance: Instance,
        draw: Random,
        once: Callable[[Instance, Transaction, Random], None],
    ) -> None:
        for _ in range(draw.randint(*STAY_TRANSACTIONS)):
            if self.clients.stopping.is_set():
                return
            made = instance.begin()
            once(instance, made, draw)
            if self._ended(instance, made, draw) is None:
                return
            self.clients.stopping.wait(draw.expovariate(1 / PAUSE_SECONDS))

    def _ended(self, instance: Instance, made: Transaction, draw: Random) -> str | None:
        """End a transaction in one way or the other; None: it is left open."""
        if draw.random() < SLOW:
            self.clients.stopping.wait(draw.uniform(*SLOW_SECONDS))
        act = draw.random()
        if act < ABANDONED:
            return None
        kind = ABORT if act < ABANDONED + ABORTED else COMMIT
        instance.end(made, kind)
        return kind

    def _copied(self, instance: Instance, draw: Random) -> None:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(COPIER, COMMITTED)
        try:
            position = self._position(COPIER, consumer)
            consumer.assign([TopicPartition(INPUT, 0, position)])
            for _ in range(draw.randint(*STAY_TRANSACTIONS)):
                records = _good(consumer.consume(BATCH, 0.5))
                if self.clients.stopping.is_set():
                    return
                if not records:
                    continue
                made = instance.begin()
                for each in records:
                    text = each.value().decode()
                    instance.produce(made, OUTPUT, f"{made.name}:{text}", (text,))
                after = records[-1].offset() + 1
                instance.send_offsets(made, consumer, COPIER, after)
                kind = self._ended(instance, made, draw)
                if kind is None:
                    return
                position = after if kind == COMMIT else position
                if kind == ABORT:
                    consumer.assign([TopicPartition(INPUT, 0, position)])
        finally:
            consumer.close()

    def _unique(self, draw: Random) -> int:
        return draw.randrange(1, 1 << 40)

    # --- reading ----------------------------------------------------------------------------------

    def _consumer(self, group: str, level: str, **more: Any) -> Any:
        return self.clients.consumer(group, **{"isolation.level": level}, **more)

    def _position(self, group: str, consumer: Any) -> int:
        """Return the stable position of a group, and keep it. Raises Over: it is not told."""
        from confluent_kafka import KafkaException, TopicPartition

        began = self.clients.now()
        try:
            (found,) = consumer.committed([TopicPartition(INPUT, 0)], CALL_SECONDS)
        except KafkaException:
            raise Over from None
        if found.error is not None:
            raise Over
        offset, ended = max(0, found.offset), self.clients.now()
        stream = stream_of(INPUT, 0)
        self.history.positions.append(Position(group, stream, offset, began, ended))
        return offset

    def read(self, level: str) -> None:
        """Read all partitions from their first record on."""
        from confluent_kafka import TopicPartition

        client = self._consumer(f"chaos-tx-{level}", level)
        client.assign([TopicPartition(*topic_partition, 0) for topic_partition in PLACES])
        while not self.clients.ending.is_set():
            began, pages = self.clients.now(), dict[tuple[str, int], list[tuple[int, str]]]()
            for each in _good(client.consume(200, 0.3)):
                page = pages.setdefault((each.topic(), each.partition()), [])
                page.append((each.offset(), each.value().decode()))
            for topic_partition, page in pages.items():
                begin, end = self._reached[level, topic_partition], page[-1][0] + 1
                stream, now = stream_of(*topic_partition), self.clients.now()
                self.history.polls.append(
                    Poll(level, "kafka", stream, began, now, begin, end, page)
                )
                self._reached[level, topic_partition] = end
        with contextlib.suppress(SystemError):
            client.close()

    def watch(self) -> None:
        """Look at the stable end and the end of each partition, again and again."""
        with contextlib.ExitStack() as stack:
            both = self._both(stack)
            while not self.clients.ending.is_set():
                for topic_partition in PLACES:
                    self._look(topic_partition, *both)
                self.clients.ending.wait(ENDS_SECONDS)

    def _both(self, stack: contextlib.ExitStack) -> list[Any]:
        """Make a consumer with each isolation level."""
        both = [self._consumer("chaos-tx-ends", level) for level in (COMMITTED, UNCOMMITTED)]
        for each in both:
            stack.callback(each.close)
        return both

    def _look(
        self, topic_partition: tuple[str, int], committed: Any, uncommitted: Any
    ) -> Ends | None:
        from confluent_kafka import KafkaException, TopicPartition

        began, at = self.clients.now(), TopicPartition(*topic_partition)
        try:
            _, stable = committed.get_watermark_offsets(at, CALL_SECONDS)
            _, high = uncommitted.get_watermark_offsets(at, CALL_SECONDS)
        except (KafkaException, TypeError):  # the latter: there was no answer
            return None
        made = Ends(stream_of(*topic_partition), began, self.clients.now(), stable, high)
        self.history.ends.append(made)
        return made

    # --- the end ----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until nothing is open, and read everything a last time."""
        deadline, pause = self.clients.now() + TIMEOUT_SECONDS + SETTLE_SECONDS, threading.Event()
        with contextlib.ExitStack() as stack:
            both, left = self._both(stack), {*PLACES}
            while left and self.clients.now() < deadline:
                for topic_partition in sorted(left):
                    seen = self._look(topic_partition, *both)
                    if seen is not None and seen.stable == seen.high:
                        left.remove(topic_partition)
                pause.wait(0.2)
        for each in sorted(left):
            self._note(f"the stable end of {stream_of(*each)} does not reach its end")
        for topic_partition in PLACES:
            self._read_whole(topic_partition)
        for group in (COPIER, *(f"chaos-tx-{number}-offsets" for number in range(IDS))):
            self._read_position(group)

    def wait_read(self, seconds: float) -> None:
        """Wait until both readers have the last committed record of each partition."""
        pause, deadline = threading.Event(), self.clients.now() + seconds
        for (level, topic_partition), _ in list(self._reached.items()):
            records = self.final.records.get(stream_of(*topic_partition), [])
            last = records[-1][0] if records else -1
            while self._reached[level, topic_partition] <= last and self.clients.now() < deadline:
                pause.wait(0.1)
            if self._reached[level, topic_partition] <= last:
                at = self._reached[level, topic_partition]
                self._note(
                    f"a reader ({level}) is at {at} of {stream_of(*topic_partition)}, before {last}"
                )

    def _read_whole(self, topic_partition: tuple[str, int]) -> None:
        from confluent_kafka import KafkaError, TopicPartition

        client = self._consumer("chaos-tx-last", COMMITTED, **{"enable.partition.eof": True})
        client.assign([TopicPartition(*topic_partition, 0)])
        deadline, records = self.clients.now() + END_SECONDS, list[tuple[int, str]]()
        try:
            while self.clients.now() < deadline:
                message = self.clients.served(client, 0.2)
                if message is None:
                    continue
                if message.error() is None:
                    records.append((message.offset(), message.value().decode()))
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    self.final.records[stream_of(*topic_partition)] = records
                    return
            self._note(f"a reader of {stream_of(*topic_partition)} does not reach the end")
        finally:
            client.close()

    def _read_position(self, group: str) -> None:
        consumer, deadline = self._consumer(group, COMMITTED), self.clients.now() + END_SECONDS
        try:
            while self.clients.now() < deadline:
                with contextlib.suppress(Over):
                    offset = self._position(group, consumer)
                    self.final.positions[group] = {stream_of(INPUT, 0): offset}
                    return
            self._note(f"the position of group {group} is not told")
        finally:
            consumer.close()

    def _note(self, wrong: str) -> None:
        self.clients.wrong.append(f"liveness: transactions: {wrong}")


def _good(messages: list[Any]) -> list[Any]:
    """Return the records among the events of a consumer, whose errors pass."""
    return [each for each in messages if each.error() is None]
