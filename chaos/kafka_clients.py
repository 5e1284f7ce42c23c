"""The Kafka clients of a run: idempotent producers, a reader of all partitions, and a consumer
group. All are unchanged clients of librdkafka, each in a thread of its own.

They are in a process of their own, `python -m chaos.kafka_clients`: some of their calls hold all
threads up while no node answers, and the proxies between the nodes must go on. What they did goes
into the history of the run, so the checker of HTTP clients judges them too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from chaos.group_history import Commit, Committed, Delivery, GroupHistory
from chaos.history import FAIL, OK, Append, History, Piece, Tail
from chaos.keyed_clients import CONFIG as KEYED_CONFIG
from chaos.keyed_clients import PARTITIONS as KEYED_PARTITIONS
from chaos.keyed_clients import TOPIC as KEYED_TOPIC
from chaos.keyed_clients import KeyedClients, KeyedFound
from chaos.transaction_clients import PARTITIONS as TRANSACTION_PARTITIONS
from chaos.transaction_clients import PROFILES, TransactionClients, TransactionsFound
from chaos.transaction_history import COMMITTED, UNCOMMITTED, Final, TransactionHistory

TOPIC, GROUP = "chaos", "chaos-readers"
PARTITIONS, PRODUCERS, MEMBERS = 3, 2, 2
STREAMS = [f"kafka/{TOPIC}/{number}" for number in range(PARTITIONS)]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMMIT_EVERY = 8  # records of a member between two commits
STAY_RECORDS = (50, 300)  # a member leaves after so many, and joins again
NICENESS = 10
CREATE_SECONDS = FLUSH_SECONDS = 60.0
READ_SECONDS = 20.0
WAITS_MAX = 5  # of the time for the consumers to move on
JOIN_SECONDS = 40.0  # of a thread that was told to end
FOUND_BYTES_MAX = 1 << 30
COMMON = {
    "socket.timeout.ms": 10_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 0,
}


_FENCES = logging.getLogger("chaos.fences")  # each fence is an emergency to librdkafka
_FENCES.disabled = True


def why_not() -> str:
    """Return why there can be no Kafka clients; empty if there can."""
    return "" if importlib.util.find_spec("confluent_kafka") else "confluent-kafka is missing"


class Found(msgspec.Struct):
    """The history and the faults that the Kafka clients saw."""

    history: History
    group: GroupHistory
    wrong: list[str]
    keyed: KeyedFound
    transactions: TransactionsFound


class KafkaProcess:
    """The process of the clients, as the run has it. `servers`: a file with HOST:PORT of the nodes,
    which grows with the cluster."""

    def __init__(
        self, servers: Path, seed: int, pause: float, *, transactions_only: bool = False
    ) -> None:
        none = TransactionsFound(TransactionHistory(), Final())
        self.found = Found(History(), GroupHistory(), [], KeyedFound(TransactionHistory()), none)
        self._command = [sys.executable, "-m", "chaos.kafka_clients", str(servers)]
        self._command += [f"--seed={seed}", f"--pause={pause}"]
        self._command += ["--transactions-only"] if transactions_only else []
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Create the topic and start all clients. Raises RuntimeError."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=FOUND_BYTES_MAX,
            start_new_session=True,  # of its own priority
        )
        if await self._line(CREATE_SECONDS + READ_SECONDS) != b"ready\n":
            raise RuntimeError("the Kafka clients do not start")

    async def stop(self) -> None:
        """End the producers, once all that they sent is acknowledged. The consumers go on."""
        await self._ask("stop")
        if await self._line(FLUSH_SECONDS + 2 * JOIN_SECONDS) != b"stopped\n":
            self.found.wrong.append("liveness: the Kafka producers do not end")

    async def finish(self, final: dict[str, list[str]], seconds: float) -> None:
        """End the consumers, once they have everything, or the time is over; get what all did."""
        await self._ask(json.dumps([[len(final.get(each, ())) for each in STREAMS], seconds]))
        line = await self._line(WAITS_MAX * seconds + READ_SECONDS + (MEMBERS + 2) * JOIN_SECONDS)
        try:
            wrong = self.found.wrong
            self.found = msgspec.msgpack.decode(b64decode(line), type=Found)
            self.found.wrong += wrong
        except msgspec.DecodeError:
            self.found.wrong.append("liveness: the Kafka clients do not end")
        self.close()

    def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _ask(self, said: str) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(said.encode() + b"\n")
        await self._process.stdin.drain()

    async def _line(self, seconds: float) -> bytes:
        """Return the next line; nothing if it does not come in time."""
        assert self._process is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._process.stdout.readline()
        except TimeoutError:
            return b""


class KafkaClients:
    """All Kafka clients and their responses, in their own process."""

    def __init__(self, servers: Path, seed: int, now: Callable[[], float]) -> None:
        self.seed, self.now = seed, now
        self.history, self.group = History(), GroupHistory()
        self.wrong: list[str] = []
        self._trouble = ""  # why committed offsets could not be read
        self._servers, self.transactions_only = servers, False
        self.stopping, self.ending = threading.Event(), threading.Event()
        self._keyed, self._transactional = KeyedClients(self), TransactionClients(self)
        self._producers: list[threading.Thread] = []
        self._consumers: list[threading.Thread] = []

    def start(self, *, pause: float) -> None:
        """Start all; `pause` between two records of a producer, in seconds."""
        if not self.transactions_only:
            self._start_plain(pause)
        self._start_transactions()

    def _start_plain(self, pause: float) -> None:
        tails = [Tail(f"kafka-{number}", each, "kafka") for number, each in enumerate(STREAMS)]
        self.history.tails += tails
        for number in range(PRODUCERS):
            self._producers.append(self._thread(self._produce, number, pause))
            self._producers.append(self._thread(self._keyed.produce, number, pause))
        self._consumers.append(self._thread(self._read, tails))
        self._consumers.append(self._thread(self._keyed.read))
        for number in range(MEMBERS):
            self._consumers.append(self._thread(self._join, f"m{number}"))

    def _start_transactions(self) -> None:
        clients = self._transactional
        self._producers += [self._thread(*work) for work in clients.writers()]
        for level in (COMMITTED, UNCOMMITTED):
            self._consumers.append(self._thread(clients.read, level))
        self._consumers.append(self._thread(clients.watch))

    def stop(self) -> None:
        """End the producers, once all that they sent is acknowledged. The consumers go on."""
        self.stopping.set()
        self._ended(self._producers, FLUSH_SECONDS + JOIN_SECONDS)

    def finish(self, ends: list[int], seconds: float) -> Found:
        """End the consumers, once they have all records and the group has committed them, or
        neither moved for that time."""
        if not self.transactions_only:
            self._wait_read(ends, seconds)
        self._transactional.finish()
        self._transactional.wait_read(seconds)
        self.ending.set()
        self._ended(self._consumers, (MEMBERS + 1) * JOIN_SECONDS)
        if not self.transactions_only:
            self._keyed.finish(seconds)
        return Found(
            self.history, self.group, self.wrong, self._keyed.found, self._transactional.found
        )

    def _wait_read(self, ends: list[int], seconds: float) -> None:
        end = self.now() + WAITS_MAX * seconds
        deadline, before = self.now() + seconds, None
        while (found := self._committed()) != ends or self._reached() != ends:
            at = (found, self._reached())
            if at != before and -1 not in found:
                deadline, before = self.now() + seconds, at
            if self.now() > min(deadline, end):
                ended = [each.ended for each in self.group.commits if each.outcome == OK]
                self.wrong.append(
                    f"liveness: group {GROUP} is at {found} of {ends} in the end, after "
                    f"{len(ended)} commits, the last {self.now() - max(ended, default=0.0):.0f} s "
                    f"ago; {self._trouble}"
                )
                break
            time.sleep(0.2)

    def _reached(self) -> list[int]:
        """Return how far the reader is in each partition."""
        return [each.pieces[-1].resume_at if each.pieces else 0 for each in self.history.tails]

    @staticmethod
    def served(client: Any, seconds: float) -> Any:
        """Poll a client."""
        return _served(client, seconds)

    # --- threads ----------------------------------------------------------------------------------

    def _thread(self, work: Callable[..., None], *given: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*given)
            except Exception as fault:
                self.wrong.append(f"a Kafka client ended with {fault!r}")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _ended(self, threads: list[threading.Thread], seconds: float) -> None:
        deadline = self.now() + seconds
        for thread in threads:
            thread.join(max(0.1, deadline - self.now()))
            if thread.is_alive():
                self.wrong.append("liveness: a Kafka client does not end")

    @property
    def _common(self) -> dict[str, Any]:
        """Return the settings of a new client, with the current bootstrap servers: all the first
        nodes may be removed by now."""
        servers = self._servers.read_text().split()
        return COMMON | {"bootstrap.servers": ",".join(servers)}

    def _on_error(self, error: Any) -> None:
        """Note a fatal error, which ends the client; it retries after errors of connections."""
        if error.fatal():
            self.wrong.append(f"a Kafka client has a fatal error: {error}")

    def consumer(self, name: str, **more: Any) -> Any:
        from confluent_kafka import Consumer

        settings = {
            "group.id": name,
            "enable.auto.commit": False,
            "check.crcs": True,
            "auto.offset.reset": "error",  # no node may say that an offset is out of range
            "fetch.wait.max.ms": 200,
            "error_cb": self._on_error,
        }
        return Consumer(self._common | settings | more)

    def create(self) -> None:
        """Create the topics. Raises TimeoutError."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient(self._common)
        for topic, profile in PROFILES.items():
            config = {} if self.transactions_only else {"profile": profile}
            self._create(admin, NewTopic(topic, TRANSACTION_PARTITIONS[topic], config=config))
        if self.transactions_only:
            return
        json_config = {"content.type": "application/json"}
        self._create(admin, NewTopic(TOPIC, PARTITIONS, config=json_config))
        self._create(admin, NewTopic(KEYED_TOPIC, KEYED_PARTITIONS, config=KEYED_CONFIG))

    def _create(self, admin: Any, topic: Any) -> None:
        from confluent_kafka import KafkaError, KafkaException

        deadline = self.now() + CREATE_SECONDS
        while True:
            try:
                admin.create_topics([topic])[topic.topic].result(READ_SECONDS)
                return
            except KafkaException as fault:
                if fault.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    return
                if self.now() > deadline:
                    raise TimeoutError(f"{topic.topic} cannot be created: {fault}") from None
            time.sleep(0.2)

    # --- producing --------------------------------------------------------------------------------

    def _produce(self, producer: int, pause: float) -> None:
        """Send single records to all partitions with default client settings, apart from a codec,
        until the run ends; then wait for all of them."""
        draw = Random(f"kafka producer {producer} {self.seed}")
        client = self.idempotent_producer(draw)
        numbers = [0] * PARTITIONS
        while not self.stopping.is_set():
            partition = draw.randrange(PARTITIONS)
            for _ in range(draw.choice((1, 1, 5))):
                self._send(client, f"k{producer}p{partition}", numbers[partition], partition)
                numbers[partition] += 1
            _served(client, 0)
            self.stopping.wait(draw.expovariate(1 / pause))
        self.flush(client)

    def idempotent_producer(self, draw: Random) -> Any:
        """Create a client with default settings, apart from a codec."""
        from confluent_kafka import Producer

        settings = {
            "enable.idempotence": True,
            "message.timeout.ms": 0,  # for as long as it takes
            "compression.type": draw.choice(CODECS),
            "error_cb": self._on_error,
        }
        return Producer(self._common | settings)

    def transactional_producer(self, id_: str, **more: Any) -> Any:
        """Create a client with a transactional id. It may be fenced, and is then begun again."""
        from confluent_kafka import Producer

        settings = {"transactional.id": id_, "error_cb": lambda error: None, "logger": _FENCES}
        return Producer(self._common | settings | more)

    def flush(self, client: Any) -> None:
        """Wait until all records of a producer are acknowledged."""
        deadline = self.now() + FLUSH_SECONDS
        while (left := len(client)) and self.now() < deadline:
            _served(client, 0.1)
        if left:
            self.wrong.append(f"liveness: {left} records of a Kafka producer are not acknowledged")

    def _send(self, client: Any, writer: str, number: int, partition: int) -> None:
        record = f"{writer}.{number}.0"
        append = Append(STREAMS[partition], writer, number, [record], self.now(), produced=True)

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.wrong.append(f"{append.stream}: {record} is refused: {error}")
            else:
                append.outcome, append.ended = OK, self.now()
                append.end = message.offset() + 1

        self.history.appends.append(append)
        value = json.dumps(record).encode()
        while True:
            try:
                client.produce(TOPIC, value, writer, partition, on_delivery=delivered)
                return
            except BufferError:  # its queue is full: the nodes are away
                _served(client, 0.1)

    # --- consuming --------------------------------------------------------------------------------

    def _read(self, tails: list[Tail]) -> None:
        """Read all partitions from their first record on, without a group."""
        from confluent_kafka import TopicPartition

        client = self.consumer("none")
        client.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        while not self.ending.is_set():
            message = _served(client, 0.2)
            if message is not None and not self._has_error(message):
                at = message.offset()
                tail = tails[message.partition()]
                tail.pieces.append(Piece(0, at, [json.loads(message.value())], at + 1))
        with contextlib.suppress(SystemError):
            client.close()

    def _has_error(self, message: Any) -> bool:
        """Report whether an event is an error, of which most pass."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is not None and (error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET):
            self.wrong.append(f"kafka/{TOPIC}/{message.partition()}: a consumer is told {error}")
        return error is not None

    def _join(self, name: str) -> None:
        """Join the group, leave, and join again."""
        draw = Random(f"kafka member {name} {self.seed}")
        # all members of one run have the same
        strategy = Random(self.seed).choice(("range", "roundrobin", "cooperative-sticky"))
        while not self.ending.is_set():
            member = _Member(self, name, draw.randint(*STAY_RECORDS))
            client = self.consumer(
                GROUP,
                **{
                    "auto.offset.reset": "earliest",  # of a group without commits
                    "session.timeout.ms": 6000,
                    "heartbeat.interval.ms": 500,
                    "partition.assignment.strategy": strategy,
                },
            )
            client.subscribe([TOPIC], on_assign=member.assigned, on_revoke=member.revoked)
            # confluent-kafka raises SystemError for an error inside a callback: the member leaves,
            # and its commits have an unknown outcome
            with contextlib.suppress(SystemError):
                member.work(client)
            with contextlib.suppress(SystemError):
                client.close()

    def _committed(self) -> list[int]:
        """Return the committed offsets of the group; -1: unknown."""
        from confluent_kafka import KafkaException, TopicPartition

        client, began = self.consumer(GROUP), self.now()
        try:
            asked = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
            found = client.committed(asked, timeout=READ_SECONDS)
        except KafkaException as fault:
            self._trouble = str(fault)
            return [-1] * PARTITIONS
        finally:
            client.close()
        return [self.note_committed("the end", began, each) for each in found]

    def note_committed(self, reader: str, began: float, found: Any) -> int:
        """Keep a committed offset that was read, and return it; -1: unknown."""
        if found.error is not None:
            return -1
        offset = max(0, found.offset)
        self.group.committed.append(
            Committed(STREAMS[found.partition], reader, offset, began, self.now())
        )
        return offset


class _Member:
    """One stay of a member in the group."""

    def __init__(self, clients: KafkaClients, name: str, records: int) -> None:
        self._clients, self._name, self._left = clients, name, records
        self._assignments: dict[int, int] = {}  # partition -> number of its assignment
        self._next: dict[int, int] = {}  # partition -> the offset that is committed next

    def assigned(self, client: Any, partitions: list[Any]) -> None:
        """Begin at the committed offsets, and keep what these are."""
        from confluent_kafka import KafkaException

        for each in partitions:
            self._assignments[each.partition] = time.monotonic_ns()
            self._next.pop(each.partition, None)
        began = self._clients.now()
        try:
            found = client.committed(partitions, timeout=READ_SECONDS)
        except (KafkaException, RuntimeError):  # the latter: the client is being closed
            return  # the client reads them too, and tries again
        for each in found:
            self._clients.note_committed(self._name, began, each)

    def revoked(self, client: Any, partitions: list[Any]) -> None:
        self._commit(client)
        for each in partitions:
            self._next.pop(each.partition, None)

    def work(self, client: Any) -> None:
        """Read and commit, until the stay is over or the run ends."""
        ending, since = self._clients.ending, 0
        while self._left > 0 and not ending.is_set():
            message = client.poll(0.2)
            if message is None:
                since = self._commit(client) if since else 0
            elif not self._clients._has_error(message):
                self._take(message)
                since += 1
                if since >= COMMIT_EVERY:
                    since = self._commit(client)
        self._commit(client)

    def _take(self, message: Any) -> None:
        partition, offset = message.partition(), message.offset()
        self._left -= 1
        self._next[partition] = offset + 1
        delivery = Delivery(
            STREAMS[partition],
            self._name,
            self._assignments[partition],
            offset,
            json.loads(message.value()),
        )
        self._clients.group.deliveries.append(delivery)

    def _commit(self, client: Any) -> int:
        """Commit the read offsets. Return 0: all is committed, or the next attempt will commit it."""
        from confluent_kafka import KafkaException, TopicPartition

        if not self._next:
            return 0
        now = self._clients.now
        sent = {
            partition: Commit(STREAMS[partition], self._name, offset, now())
            for partition, offset in self._next.items()
        }
        self._clients.group.commits += sent.values()
        offsets = [TopicPartition(TOPIC, at, each.offset) for at, each in sent.items()]
        try:
            for each in client.commit(offsets=offsets, asynchronous=False):
                made = sent[each.partition]
                made.outcome = OK if each.error is None else FAIL
                made.ended = now()
                if each.error is None:
                    self._next.pop(each.partition, None)
        except (KafkaException, RuntimeError):  # the latter: the client is being closed
            pass  # its outcome is unknown, or another member has the partition
        return 0


def _served(client: Any, seconds: float) -> Any:
    """Poll a client. confluent-kafka raises SystemError for some errors of its callbacks, which it
    has told by then."""
    with contextlib.suppress(SystemError):
        return client.poll(seconds)
    return None


def _give_way() -> None:
    """Leave the cores to the nodes: threads of librdkafka may spin while their transaction waits for
    a node (its issue 3692). Linux shares cores among sessions first (sched(7), autogroup)."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(f"{NICENESS}\n")


def main() -> None:
    """Run the clients by commands on standard input and print the history. They end with standard
    input, also when the run is killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("servers", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, required=True)
    parser.add_argument(
        "--transactions-only",
        action="store_true",
        help="transactional clients alone, and topics without a profile",
    )
    given = parser.parse_args()
    _give_way()
    clients = KafkaClients(given.servers, given.seed, time.monotonic)
    clients.transactions_only = given.transactions_only
    clients.create()
    clients.start(pause=given.pause)
    print("ready", flush=True)
    if sys.stdin.readline() == "stop\n":
        clients.stop()
        print("stopped", flush=True)
        if line := sys.stdin.readline():
            ends, seconds = json.loads(line)
            found = msgspec.msgpack.encode(clients.finish(ends, seconds))  # JSON has no infinity
            print(b64encode(found).decode(), flush=True)
    os._exit(0)  # a thread that hangs does not keep it


if __name__ == "__main__":
    main()
