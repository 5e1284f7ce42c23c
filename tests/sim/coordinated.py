"""Kafka's transactions in a simulated cluster: ids that two instances fight for, timeouts,
operators and clients that stop without a word, while coordinators and partitions lose their
leaders. The history is checked by the rules of `chaos.transaction_history`."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from msgspec import structs
from sim.calls import answer_of
from sim.chaos import FULL, Episode
from sim.knobs import Knobs
from sim.transactions import Recorder
from worlds.stream import kafka_batch, kafka_producer

from chaos.history import FAIL, INFO, OK
from chaos.transaction_history import (
    ABORT,
    COMMIT,
    FENCED,
    ROWS,
    Final,
    Init,
    Transaction,
    check_transactions,
)
from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, StreamInfo
from polynya.service.transactions.calls import TransactionRefused
from polynya.service.transactions.coordinator import Pair
from polynya.stream.features.appends.commands import TxnProduce
from polynya.stream.features.consumer_groups.calls import (
    CommitInTransaction,
    FetchOffsets,
    GroupError,
    Offsets,
    Outcomes,
)
from polynya.stream.features.consumer_groups.commands import OffsetEntry
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import TRANSACTIONAL, Encoding
from polynya.stream.replies import Code, Reply

GROUP, TOPIC = "readers", bytes(16)
NAMES = ("kafka/x/0", "kafka/x/1", "kafka/x/2")
IDS, INSTANCES = 3, 2
TIMEOUT_MS = 4000
TIMEOUT_SECONDS = 0.0  # of the history: the clocks of nodes may run far ahead of it
CALL_SECONDS = 8.0
TRIES = 12
_VALUE = re.compile(rb"<([^>]*)>")
Result = TypeVar("Result")


class Gone(Exception):
    """This instance is fenced, or gives up."""


class Instance:
    """A client of an id, in one life after another."""

    def __init__(self, episode: CoordinatedEpisode, number: int) -> None:
        self.episode = episode
        self.number = number
        self.id = f"id{number % IDS}"
        self.version = 1 + number % 2
        self.random = Random(f"transactions {episode.seed} {number}")
        self.lives = self.begun = self.values = 0
        self.name = ""
        self.pair: Pair = (-1, -1)
        self.sequences: dict[str, int] = {}

    @property
    def recorder(self) -> Recorder:
        return self.episode.recorder

    async def run(self) -> None:
        await asyncio.sleep(self.random.uniform(0, 2))
        while not self.episode.over:
            with contextlib.suppress(Gone):
                await self.begin_life()
                while not self.episode.over:
                    await self.transaction()
                    await asyncio.sleep(self.random.expovariate(1 / 0.1))
            await asyncio.sleep(self.random.uniform(0.1, 3))

    async def begin_life(self) -> None:
        self.lives += 1
        self.name = f"{self.number}.{self.lives}"
        init = self.recorder.init(self.id, self.name)
        self.take(await self.refusable(init, lambda: self.init((-1, -1))))

    def take(self, pair: Pair) -> None:
        self.pair, self.sequences = pair, {}

    def init(self, pair: Pair) -> Coroutine[Any, Any, Pair]:
        return self.episode.node.engine.transactions.init(self.id, TIMEOUT_MS, pair)

    async def transaction(self) -> None:
        self.begun += 1
        made = self.recorder.begin(f"{self.name}/{self.begun}", self.id, self.name, TIMEOUT_SECONDS)
        for _ in range(self.random.randint(1, 3)):
            await self.produce(made, self.random.choice(NAMES))
        if self.random.random() < 0.5:
            await self.commit_offset(made)
        if self.random.random() < 0.1:
            raise Gone  # without a word
        if self.random.random() < 0.05:
            await asyncio.sleep(2 * TIMEOUT_MS / 1000)
        kind = COMMIT if self.random.random() < 0.7 else ABORT
        end = self.recorder.end(made, kind)

        def ended() -> Coroutine[Any, Any, Pair]:
            return self.episode.node.engine.transactions.end(
                self.id, self.pair, commit=kind == COMMIT, version=self.version
            )

        pair = await self.refusable(end, ended, again=True)
        if self.version == 2:
            self.take(pair)

    async def produce(self, made: Transaction, name: str) -> None:
        self.values += 1
        value = f"{self.number}:{self.values}"
        produce = self.recorder.produce(made, name, [value])
        number = await self.refusable(produce, lambda: self.add(name), ends=False)
        uid = self.episode.uids[name]
        payload = bytes(43) + self.pair[0].to_bytes(8, "big") + f"<{value}>".encode()
        batch = structs.replace(kafka_batch(1, payload), flags=TRANSACTIONAL)
        sequence = self.sequences.get(name, 0)
        producer = kafka_producer(self.pair[0], self.pair[1], sequence, 1)
        for _ in range(TRIES):
            reply = await self.episode.append(
                name, TxnProduce(name, 0, batch, producer, uid, number)
            )
            match reply and Code(reply.code):
                case Code.OK | Code.DUPLICATE:
                    self.sequences[name] = sequence + 1
                    self.recorder.ended(produce, OK)
                    return
                case Code.PRODUCER_STALE:
                    self.recorder.ended(produce, FAIL, FENCED)
                    raise Gone
                case Code.TXN_ENDED:  # by its timeout
                    self.recorder.ended(produce, FAIL, "ended")
                    raise Gone
                case Code.NOT_YET if reply is not None and reply.detail is not None:
                    await self.ask_soon(name, reply.detail)
                case None | Code.NOT_YET | Code.DISK_FULL | Code.MEMORY_PRESSURE:
                    pass
                case _:
                    raise AssertionError(f"{name}: {value} of {number} is answered {reply}")
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
        raise Gone

    async def commit_offset(self, made: Transaction) -> None:
        """Send the offset of the id's input with the transaction."""
        self.values += 1
        offset = self.values * IDS * INSTANCES + self.number + 1
        sent = self.recorder.offsets(made, GROUP, {self.id: offset})
        service = self.episode
        number = await self.refusable(
            sent,
            lambda: service.node.engine.transactions.add(
                self.id, self.pair, [], [GROUP], version=self.version
            ),
            ends=False,
        )
        entry = OffsetEntry(TOPIC, self.number % IDS, offset, -1, "")
        call = CommitInTransaction(GROUP, *self.pair, number, -1, "", None, [entry])
        for _ in range(TRIES):
            answer = await service.call(lambda: service.node.engine.group_coordinator.call(call))
            error = answer.errors[0] if isinstance(answer, Outcomes) else GroupError.UNKNOWN
            if error == GroupError.NONE:
                self.recorder.ended(sent, OK)
                return
            if error == GroupError.INVALID_TXN_STATE:  # it was ended by its timeout
                self.recorder.ended(sent, INFO if sent.repeated else FAIL, "ended")
                raise Gone
            sent.repeated = True
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
        raise Gone

    async def ask_soon(self, name: str, number: int) -> None:
        """Ask for the transaction that is in the way."""
        group = self.episode.world.group_of(name)
        await self.episode.call(
            lambda: self.episode.node.engine.transaction_jobs.ask_soon(group, self.pair[0], number)
        )

    def add(self, name: str) -> Coroutine[Any, Any, int]:
        stream = (self.episode.world.group_of(name), self.episode.uids[name], name)
        return self.episode.node.engine.transactions.add(
            self.id, self.pair, [stream], [], version=self.version
        )

    async def refusable(
        self, operation: Any, call: Any, *, ends: bool = True, again: bool = False
    ) -> Any:
        """Call until there is an answer; the outcome of the operation is recorded."""
        unknown = False
        for _ in range(TRIES):
            try:
                found = await self.episode.call(call)
            except TransactionRefused as refused:
                if refused.code == Code.TXN_CONCURRENT:
                    await asyncio.sleep(self.random.uniform(0.02, 0.2))
                    continue
                fenced = refused.code in (Code.FENCED, Code.NOT_FOUND)
                # an end that was sent twice may have taken effect the first time
                outcome = INFO if unknown and again else FAIL
                self.recorder.ended(operation, outcome, FENCED if fenced else refused.code.name)
                raise Gone from None
            if found is None:
                unknown = True
                if isinstance(operation, Init):
                    break  # the next life has another name
                await asyncio.sleep(self.random.uniform(0.05, 0.5))
                continue
            if ends:
                self.recorder.ended(operation, OK)
            return found
        raise Gone


class CoordinatedEpisode(Episode):
    """The plain world, with transactional clients beside a few clients of HTTP."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        self.world.release = levels.LEVEL
        self.world.runs_transactions = self.world.runs_groups = True
        self.recorder = Recorder(lambda: asyncio.get_running_loop().time())
        self.uids: dict[str, int] = {}
        self.instances = [Instance(self, number) for number in range(IDS * INSTANCES)]
        self.final = Final()

    def acknowledged_count(self) -> int:
        ends = [each.end for each in self.recorder.history.transactions if each.end is not None]
        return super().acknowledged_count() + sum(end.outcome == OK for end in ends)

    def summary(self) -> str:
        ended = [each.end for each in self.recorder.history.transactions if each.end is not None]
        commits = sum(end.kind == COMMIT and end.outcome == OK for end in ended)
        return (
            f"{super().summary()}, {len(self.recorder.history.transactions)} transactions, of which "
            f"{commits} committed"
        )

    @property
    def node(self) -> Any:
        """Return the node that the current call goes to."""
        return self._node

    async def call(self, call: Any) -> Any:
        """Ask any node; None: the answer is unknown, or did not come. Raises TransactionRefused."""
        alive = self.world.alive()
        if not alive:
            return None
        self._node = node = self.random.choice(alive)
        return await answer_of(node, call(), CALL_SECONDS)

    async def append(self, name: str, command: TxnProduce) -> Reply | None:
        alive = self.world.alive()
        if not alive:
            return None
        node = self.random.choice(alive)
        life = node.life
        try:
            reply = await node.propose(name, command)
        except (Unavailable, OutcomeUnknown):
            return None
        return reply if node.life == life and node.alive else None

    def clients(self) -> list[asyncio.Future[None]]:
        work: list[Any] = [self._append(0), self._read(), self._transact()]
        return [asyncio.ensure_future(each) for each in work]

    async def _transact(self) -> None:
        for name in NAMES:
            while name not in self.uids and not self.over:
                reply = await self.append(name, Create(name, 0, "", Encoding.KAFKA))  # type: ignore[arg-type]
                if reply is not None and reply.code in (Code.CREATED, Code.EXISTS):
                    self.uids[name] = reply.uid
                await asyncio.sleep(0.1)
        if len(self.uids) == len(NAMES):
            others = (self._look(), self._operate())
            await asyncio.gather(*(each.run() for each in self.instances), *others)

    async def _look(self) -> None:
        """Read the committed records, and the two ends."""
        while not self.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.3))
            await self.look(self.random.choice(NAMES))
            await self.look_at_offsets()

    async def look(self, name: str) -> StreamInfo | None:
        info = await self.call(lambda: self.node.engine.service.info(name))
        if isinstance(info, StreamInfo):
            self.recorder.ends(name, info.record, info.high_watermark)
        query = ReadQuery(name, 0, bytes_max=1 << 22)
        page = await self.call(lambda: self.node.engine.service.read(query))
        if isinstance(page, Page) and page.up_to_date:
            self.recorder.poll(ROWS, "rows", name, 0, page.record, _records(page))
        return info if isinstance(info, StreamInfo) else None

    async def look_at_offsets(self) -> None:
        """Read the offsets that no open transaction may change."""
        began = asyncio.get_running_loop().time()
        call = FetchOffsets(GROUP)
        answer = await self.call(lambda: self.node.engine.group_coordinator.call(call))
        if isinstance(answer, Offsets):
            known = {entry.partition: entry.offset for entry in answer.entries}
            unstable = {partition for _, partition in answer.unstable}
            for number in {*range(IDS)} - unstable:
                offset = known.get(number, 0)
                self.recorder.position(GROUP, f"id{number}", offset, began)

    async def _operate(self) -> None:
        """Abort the transaction of an id now and then."""
        while not self.over:
            await asyncio.sleep(self.random.expovariate(1 / 3))
            id_ = f"id{self.random.randrange(IDS)}"
            self.recorder.force(id_)
            with contextlib.suppress(TransactionRefused):
                await self.call(lambda id_=id_: self.node.engine.transactions.abort(id_))

    async def settle(self) -> None:
        """Wait on the healthy cluster until nothing is open, then read all and check."""
        if len(self.uids) < len(NAMES):
            return
        self.recorder.history.healed = asyncio.get_running_loop().time()
        for _ in range(100):
            await asyncio.sleep(0.5)
            if not self.held():
                break
        assert not self.held(), f"what is held though all is well: {self.held()}"
        await self.look_at_offsets()
        self.final.positions[GROUP] = {
            seen.stream: seen.offset for seen in self.recorder.history.positions[-IDS:]
        }
        for name in NAMES:
            info = await self.look(name)
            assert info is not None
            assert info.record == info.high_watermark, f"the stable end of {name} stands"
            poll = self.recorder.history.polls[-1]
            assert poll.stream == name
            self.final.records[name] = poll.records
        assert check_transactions(self.recorder.history, self.final) == []

    def held(self) -> list[str]:
        """Return what leaders hold of transactions."""
        return [
            f"{node.number}: {what}"
            for node in self.world.alive()
            for machine in node.engine.local.led.values()
            for what in (
                *machine.transactions.active,
                *(stream.name for stream in machine.directory.undecided.values()),
                *machine.consumer_groups.undecided,
            )
        ]


def _records(page: Page) -> list[tuple[int, str]]:
    """Return the values of a page, each a batch of one record."""
    found = []
    for span in page.spans:
        values = _VALUE.findall(bytes(span.payload))
        found += [(span.record + index, value.decode()) for index, value in enumerate(values)]
    return found


def run_coordinated(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode; the same seed gives the same checksum. Raises AssertionError with the
    violated invariant."""
    return CoordinatedEpisode(seed, mishaps, knobs).play()


__all__ = ["FULL", "CoordinatedEpisode", "run_coordinated"]
