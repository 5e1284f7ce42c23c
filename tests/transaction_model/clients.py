"""Clients: fronts, producers of both protocols with their zombies, a pipeline, plain writers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sim.transactions import Produce as Produced
from sim.transactions import Transaction

from chaos.history import FAIL, INFO, OK
from chaos.transaction_history import ABORT, COMMIT, FENCED
from transaction_model import readers
from transaction_model import state as s
from transaction_model.compaction import DELETED
from transaction_model.state import Code, Reply
from transaction_model.world import Answer, Process, World

TIMEOUTS_MS = (3000, 6000)


@dataclass
class Topic:
    """A stream as clients know it."""

    group: int
    uid: int
    name: str
    keyed: bool = False

    @property
    def key(self) -> str:
        return f"{self.name}#{self.uid}"


@dataclass
class Connection:
    born: int
    front: Front
    is_open: bool = True


@dataclass
class Front:
    """A node that takes requests. It has numbers by (id, producer, epoch), then by uid."""

    world: World
    numbers: dict[tuple[str, int, int], dict[int, int]] = field(default_factory=dict)

    def produce(self, connection: Connection, request: Request, answer: Answer) -> Process:
        """Get the number before the write; the write is sent once more when it was ended."""
        known = self.numbers.setdefault((request.id, request.pid, request.epoch), {})
        for _ in range(8):
            number = known.get(request.topic.uid, 0)
            if not number:
                reply = yield from self._number(connection, request)
                if reply.code is not Code.OK:
                    answer(reply)
                    return
                number = known[request.topic.uid] = reply.value
            reply = yield self.world.call(
                request.topic.group,
                request.command(number),
                timeout_ms=30_000,
                slow=self.world.slow,
            )
            if reply is None:
                return
            if reply.code is Code.EVICTED:
                yield self.world.call(request.topic.group, s.Recall(request.topic.name))
            elif reply.code is Code.TXN_ENDED and self.may_ask(connection):
                known.pop(request.topic.uid, None)
            else:
                break
        answer(reply)

    def offsets(self, connection: Connection, request: OffsetsRequest, answer: Answer) -> Process:
        """Get the number of this moment, and put the offsets aside under it."""
        reply = yield from self._number(connection, request)
        if reply.code is Code.OK:
            command = request.command(reply.value)
            reply = yield self.world.call(request.group[0], command, 30_000, self.world.slow)
        if reply is not None:
            answer(reply)

    def may_ask(self, connection: Connection) -> bool:
        """A batch that its client gave up must not get the next number."""
        return connection.is_open

    def _number(self, connection: Connection, request: Request | OffsetsRequest) -> Process:
        reply: Reply | None = None
        for _ in range(6):
            if not self.may_ask(connection):
                return Reply(Code.INVALID)
            reply = yield self.world.call(
                request.pid >> s.PID_SHIFT, request.question(), timeout_ms=800
            )
            if reply is not None and reply.code is not Code.CONCURRENT:
                return reply
            yield 80
        return reply or Reply(Code.CONCURRENT)


@dataclass
class OffsetsRequest:
    """TxnOffsetCommit."""

    id: str
    version: int
    group: tuple[int, str]
    pid: int
    epoch: int
    generation: int
    positions: dict[str, int]

    def command(self, number: int) -> s.TxnOffsets:
        positions, group = tuple(self.positions.items()), self.group[1]
        return s.TxnOffsets(self.pid, self.epoch, number, group, self.generation, positions)

    def question(self) -> s.TxnAdd | s.TxnNumber:
        if self.version == 1:
            return s.TxnNumber(self.id, self.pid, self.epoch, group=self.group[1])
        return s.TxnAdd(self.id, self.pid, self.epoch, 2, (), (self.group,))


@dataclass
class Request:
    """A transactional Produce."""

    id: str
    version: int
    topic: Topic
    pid: int
    epoch: int
    sequence: int
    values: tuple[tuple[str, str], ...]

    def command(self, number: int) -> s.Produce:
        topic = self.topic
        pid, epoch = self.pid, self.epoch
        return s.Produce(topic.uid, topic.name, self.values, pid, epoch, self.sequence, number)

    def question(self) -> s.TxnAdd | s.TxnNumber:
        topic = self.topic
        if self.version == 1:
            return s.TxnNumber(self.id, self.pid, self.epoch, topic.uid)
        streams = ((topic.group, topic.uid, topic.name),)
        return s.TxnAdd(self.id, self.pid, self.epoch, 2, streams)


class Instance:
    """An instance of a transactional producer. `bumps`: it gets a new epoch after a batch was given
    up (KIP-360), as clients do now."""

    def __init__(
        self,
        world: World,
        fronts: list[Front],
        name: str,
        number: int,
        version: int,
        *,
        bumps: bool,
    ) -> None:
        self.world, self.fronts, self.id, self.version = world, fronts, name, version
        self.name, self.bumps = f"{name}/{number}", bumps
        self.coordinator = sum(map(ord, name)) % len(world.groups)
        self.timeout_ms = world.random.choice(TIMEOUTS_MS)
        self.pid, self.epoch = -1, -1
        self.sequences: dict[int, int] = {}
        self.dead = False
        self.unresolved = False  # the outcome of a batch is unknown
        self.count = 0
        self.added: set[Any] = set()
        self.connection = self.connect()

    def connect(self) -> Connection:
        self.world.connection_count += 1
        return Connection(self.world.connection_count, self.world.random.choice(self.fronts))

    def reconnect(self) -> None:
        old = self.connection
        delay = self.world.delay(0.2) if self.bumps else 0
        self.world.at(delay, lambda: setattr(old, "is_open", False))
        self.connection = self.connect()

    def ask(self, make: Any, tries: int) -> Process:
        """Ask the coordinator; the reply is with whether an earlier try may have had an effect."""
        unknown, reply = False, None
        for _ in range(tries):
            reply = yield self.world.call(self.coordinator, make(self.connection.born))
            if reply is None:
                unknown = True
                self.reconnect()
            elif reply.code is Code.NOT_COORDINATOR:
                self.reconnect()
                yield 50
            elif reply.code is Code.CONCURRENT:
                yield 60
            else:
                break
        return reply, unknown

    def init(self, *, again: bool = False) -> Process:
        operation = self.world.recorder.init(self.id, self.name, again=again)
        pid, epoch = (self.pid, self.epoch) if again else (-1, -1)
        reply, unknown = yield from self.ask(
            lambda born: s.TxnInit(self.id, self.timeout_ms, pid, epoch, born), 40
        )
        if reply is not None and reply.code is Code.OK:
            self.pid, self.epoch = reply.value
            self.sequences = {}
            self.world.recorder.ended(operation)
            return True
        self._failed(operation, reply, unknown)
        self.dead = True
        return False

    def _failed(self, operation: Any, reply: Reply | None, unknown: bool) -> None:
        fenced = reply is not None and reply.code is Code.FENCED
        certain = reply is not None and reply.code is not Code.CONCURRENT and not unknown
        self.world.recorder.ended(
            operation, FAIL if certain else INFO, FENCED if fenced else str(reply and reply.code)
        )
        self.dead = self.dead or fenced

    def begin(self) -> Transaction:
        self.count += 1
        self.added = set()
        name = f"{self.name}.{self.count}"
        return self.world.recorder.begin(name, self.id, self.name, self.timeout_ms / 1000)

    def produce(
        self, txn: Transaction, topic: Topic, values: list[str], keys: Any = (), sources: Any = ()
    ) -> Process:
        """Produce one batch; return whether it was acknowledged."""
        operation = self.world.recorder.produce(txn, topic.key, values, keys, sources)
        if self.version == 1 and not (yield from self._add(topic, operation)):
            return False
        sequence = self.sequences[topic.uid] = self.sequences.get(topic.uid, -1) + 1
        pairs = tuple(zip(keys or [""] * len(values), values, strict=True))
        request = Request(self.id, self.version, topic, self.pid, self.epoch, sequence, pairs)
        reply, unknown = None, False
        for _ in range(12):
            connection = self.connection
            reply = yield self.world.exchange(self._sender(connection, request), 1500)
            if reply is None:
                if self.world.now / 1000 - operation.began > 4:
                    break
                unknown = True
                self.reconnect()
            elif reply.code in (Code.CONCURRENT, Code.OTHER_OPEN, Code.EVICTED):
                yield 100
            else:
                break
        if reply is not None and reply.code is Code.OK:
            self.world.recorder.ended(operation)
            return True
        self.unresolved = self.unresolved or reply is None or unknown
        self._failed(operation, reply, unknown)
        self.dead = self.dead or (reply is not None and reply.code is Code.SEQUENCE)
        if reply is None:
            self.reconnect()
        return False

    def _sender(self, connection: Connection, request: Request) -> Any:
        front = connection.front
        return lambda answer: self.world.serve(front.produce(connection, request, answer))

    def _add(self, topic: Topic, operation: Produced) -> Process:
        if topic.uid in self.added:
            return True
        streams = ((topic.group, topic.uid, topic.name),)
        reply, _ = yield from self.ask(
            lambda born: s.TxnAdd(self.id, self.pid, self.epoch, 1, streams, (), born), 20
        )
        if reply is not None and reply.code is Code.OK:
            self.added.add(topic.uid)
            return True
        self._failed(operation, reply, False)
        return False

    def send_offsets(
        self, txn: Transaction, group: tuple[int, str], generation: int, positions: dict[str, int]
    ) -> Process:
        operation = self.world.recorder.offsets(txn, group[1], positions)
        if self.version == 1:
            reply, _ = yield from self.ask(
                lambda born: s.TxnAdd(self.id, self.pid, self.epoch, 1, (), (group,), born), 20
            )
            if reply is None or reply.code is not Code.OK:
                self._failed(operation, reply, False)
                return False
            self.added.add(group)
        pair = (self.pid, self.epoch)
        request = OffsetsRequest(self.id, self.version, group, *pair, generation, positions)
        reply, unknown = None, False
        for _ in range(4):
            reply = yield self.world.exchange(self._offsets_sender(request), 1500)
            if reply is None:
                unknown = operation.repeated = True
                self.reconnect()
            elif reply.code in (Code.CONCURRENT, Code.OTHER_OPEN):
                yield 100
            else:
                break
        if reply is not None and reply.code is Code.OK:
            self.world.recorder.ended(operation)
            return True
        self._failed(operation, reply, unknown)
        return False

    def _offsets_sender(self, request: OffsetsRequest) -> Any:
        connection = self.connection
        front = connection.front
        return lambda answer: self.world.serve(front.offsets(connection, request, answer))

    def end(self, txn: Transaction, kind: str) -> Process:
        operation = self.world.recorder.end(txn, kind)
        reply, unknown = yield from self.ask(
            lambda born: s.TxnEnd(
                self.id, self.pid, self.epoch, kind == COMMIT, self.version, born
            ),
            40,
        )
        if reply is not None and reply.code is Code.OK:
            self.world.recorder.ended(operation)
            if (self.pid, self.epoch) != reply.value:
                self.sequences = {}
            self.pid, self.epoch = reply.value
            if self.unresolved and self.version == 1 and self.bumps:
                yield from self.init(again=True)
            self.unresolved = False
            return True
        self._failed(operation, reply, unknown)
        self.dead = True
        return False

    def finish(self, txn: Transaction, good: bool) -> Process:
        """End the transaction as a client does: commit when all is good, abort otherwise."""
        random = self.world.random
        if self.dead or (self.version == 1 and not self.added):
            return False
        if self.world.chance(0.06):
            yield random.randint(2000, 9000)  # paused, perhaps beyond the timeout
        if self.world.chance(0.04):
            self.dead = True
            return False
        committed = good and random.random() < 0.75
        done = yield from self.end(txn, COMMIT if committed else ABORT)
        return done and committed


def writer(instance: Instance, topics: dict[str, Topic], transactions: int) -> Process:
    """Write transactions over several streams."""
    world, random = instance.world, instance.world.random
    if not (yield from instance.init()):
        return
    for _ in range(transactions):
        if instance.dead or not world.faulty:
            return
        txn, good = instance.begin(), True
        for number in range(random.randint(1, 4)):
            topic = topics[random.choice(sorted(topics))]
            values = [f"{txn.name}.{number}.{part}" for part in range(random.randint(1, 2))]
            keys = [random.choice("abc") for _ in values] if topic.keyed else ()
            if topic.keyed and random.random() < 0.3:
                values[-1] += DELETED
                world.recorder.history.tombstones.add(values[-1])
            good = yield from instance.produce(txn, topic, values, keys)
            if not good:
                break
            yield random.randint(1, 120)
        yield from instance.finish(txn, good)
        if instance.dead and world.chance(0.5):  # a zombie tries to get back
            yield from instance.init(again=True)
            return
        yield random.randint(1, 300)


def pipeline(
    instance: Instance, begin: Topic, end: Topic, group: tuple[int, str], rounds: int
) -> Process:
    """Consume, transform, produce."""
    world, random = instance.world, instance.world.random
    if not (yield from instance.init()):
        return
    reply = yield world.call(group[0], s.JoinGroup(group[1]))
    if reply is None:
        return
    generation = reply.value
    for _ in range(rounds):
        if instance.dead or not world.faulty:
            return
        position = yield from fetch_position(world, group, begin.key)
        source = world.groups[begin.group].state.streams.get(begin.uid)
        if position is None or source is None:
            yield 200
            continue
        batches, aborted, after = readers.fetched(source, position, random.randint(1, 6))
        records = readers.client_filter(batches, aborted)
        if after == position:
            yield 150
            continue
        txn, good = instance.begin(), True
        for offset, value in records:
            if offset >= position:
                made = f"{txn.name}<{value}"
                good = good and (yield from instance.produce(txn, end, [made], sources=[value]))
        good = good and (
            yield from instance.send_offsets(txn, group, generation, {begin.key: after})
        )
        yield from instance.finish(txn, good)
        if instance.dead and world.chance(0.3):
            yield from instance.init(again=True)
            return
        yield random.randint(1, 200)


def fetch_position(world: World, group: tuple[int, str], stream: str) -> Process:
    began = world.now / 1000
    reply = yield world.call(group[0], s.FetchOffset(group[1], stream))
    if reply is None or reply.code is not Code.OK:
        return None
    world.recorder.position(group[1], stream, reply.value, began)
    return reply.value


def offset_writer(instance: Instance, group: tuple[int, str], rounds: int) -> Process:
    """Commit offsets alone, in transactions of their own."""
    world, random = instance.world, instance.world.random
    if not (yield from instance.init()):
        return
    for _ in range(rounds):
        if instance.dead or not world.faulty:
            return
        txn = instance.begin()
        sent = {"elsewhere": random.randint(1, 10**9)}
        good = yield from instance.send_offsets(txn, group, -1, sent)
        yield random.randint(1, 400)
        yield from instance.finish(txn, good)


def plain_commits(world: World, group: tuple[int, str]) -> Process:
    """Commit offsets without transactions."""
    while world.faulty:
        yield world.random.randint(300, 1500)
        positions = {"elsewhere": world.random.randint(1, 10**9)}
        operation = world.recorder.offsets(None, group[1], positions)
        command = s.CommitOffsets(group[1], tuple(positions.items()))
        reply = yield world.call(group[0], command)
        if reply is not None:
            world.recorder.ended(operation)


def plain_writer(world: World, topic: Topic, name: str) -> Process:
    """Produce without transactions."""
    count = 0
    while world.faulty:
        yield world.random.randint(200, 800)
        count += 1
        values = [f"{name}.{count}"]
        operation = world.recorder.produce(None, topic.key, values)
        stream = s.Produce(topic.uid, topic.name, (("", values[0]),))
        reply = yield world.exchange(
            lambda answer, stream=stream: world.groups[topic.group].receive(stream, answer), 1500
        )
        if reply is not None and reply.code is Code.OK:
            world.recorder.ended(operation, OK)
        elif reply is not None:
            world.recorder.ended(operation, FAIL, str(reply.code))
