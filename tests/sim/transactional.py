"""Transactional clients of replicated and diskless streams in a simulated cluster. The coordinator
is a script: it forgets nothing, and sends its markers until they are acknowledged, sometimes again.
What clients were told is checked by `chaos.transaction_history`."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

from msgspec import structs
from sim.chaos import FULL, Episode
from sim.clock import WALL_MS
from sim.cluster import Node, World
from sim.knobs import Knobs
from sim.store import GOOD, SimStore, Weather
from sim.transactions import Produce, Recorder, Transaction
from worlds.stream import kafka_producer
from worlds.transactions import data_batch, stored

from chaos.history import FAIL, INFO, OK
from chaos.transaction_history import (
    ABORT,
    COMMIT,
    COMMITTED,
    FENCED,
    ROWS,
    Final,
    check_transactions,
)
from polynya.base import levels
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, Position, ReadQuery
from polynya.stream.features.appends.commands import TxnProduce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.markers.commands import TxnMarkers
from polynya.stream.features.markers.control_batch import control_batch
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL, Encoding
from polynya.stream.replies import Code, Reply
from polynya.wire.kafka.records import decoded_records, placed_batches

NAMES = tuple(f"kafka/t/{number}" for number in range(4))
CLIENTS = 4
PRODUCER = 1 << 47
WRONG = (Code.NOT_YET, Code.WRONG_PROFILE, Code.EVICTED, *FULL)  # sent again
ENDED = (Code.TXN_ENDED, Code.PRODUCER_STALE)


class Coordinator:
    """The coordinator of one transactional id, whose state is never lost."""

    def __init__(self, episode: TransactionEpisode, number: int, version: int) -> None:
        self.episode, self.version = episode, version
        self.random = Random(f"coordinator {episode.seed} {number}")
        self.producer, self.epoch, self.number = PRODUCER + number, 0, 0
        self.open = False
        self.names: set[str] = set()
        self.sending = 0  # groups whose markers are not acknowledged

    async def add(self, name: str) -> int:
        """Return the number of the transaction, which begins with its first stream; 0: the episode
        is over before."""
        if not self.open:
            while self.sending:
                self.episode.check()
                if self.episode.over:
                    return 0
                await asyncio.sleep(0.02)
            self.open, self.number, self.names = True, self.number + 1, set()
        self.names.add(name)
        return self.number

    def end(self, *, commit: bool, bump: bool = False) -> None:
        """Decide, and send the markers. A later epoch fences what the client still has under
        way."""
        self.open = False
        if self.version == 2 or bump:
            self.epoch += 1
        decided_ms = self.episode.now_ms()
        marker = control_batch(self.producer, self.epoch, commit=commit, decided_ms=decided_ms)
        groups: dict[int, list[tuple[int, str]]] = {}
        for name in sorted(self.names):
            group = self.episode.world.group_of(name)
            groups.setdefault(group, []).append((self.episode.uids[name], name))
        for group, uids in groups.items():
            command = TxnMarkers(
                self.producer, self.epoch, self.number, commit, marker, uids, [], decided_ms
            )
            self.sending += 1
            self.episode.spawn(self._send(group, command))

    async def _send(self, group: int, command: TxnMarkers) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.3, 2.0)))
        while not await self.episode.send_markers(group, command):
            await asyncio.sleep(0.1)
        self.sending -= 1
        if self.random.random() < 0.4:  # it comes to the log again
            await asyncio.sleep(self.random.uniform(0.0, 4.0))
            await self.episode.send_markers(group, command)


class TransactionClient:
    """A client with one transactional id: it begins, writes to some streams, and ends."""

    def __init__(self, episode: TransactionEpisode, number: int) -> None:
        self.episode, self.id = episode, f"id-{number}"
        self.random = Random(f"transactions {episode.seed} {number}")
        self.coordinator = Coordinator(episode, number, 1 + number % 2)
        self.number, self.count, self.sent = number, 0, 0
        self.epoch = 0
        self.sequences: dict[str, int] = {}

    async def run(self) -> None:
        while not self.episode.over:
            await self.transaction()
            await asyncio.sleep(self.random.expovariate(1 / 0.1))

    async def transaction(self) -> None:
        recorder = self.episode.recorder
        self.count += 1
        if self.epoch != self.coordinator.epoch:
            self.epoch, self.sequences = self.coordinator.epoch, {}
        transaction = recorder.begin(f"{self.id}.{self.count}", self.id, self.id, timeout=1e9)
        names = self.random.sample(NAMES, self.random.randint(1, 3))
        whole = True
        for name in [*names, *names[: self.random.randint(0, 2)]]:
            number = await self.coordinator.add(name)
            if not number:
                return
            if self.random.random() < 0.1:
                continue  # it is told, and nothing is written
            whole = await self.write(transaction, name, number)
            if not whole:
                break
        expired = self.random.random() < 0.1
        commit = self.random.random() < (0.3 if not whole else 0.8) and not expired
        if expired:
            recorder.force(self.id)
        end = recorder.end(transaction, COMMIT if commit else ABORT)
        # after a batch without an answer a client begins again with a higher epoch
        self.coordinator.end(commit=commit, bump=expired or not whole)
        recorder.ended(end)

    async def write(self, transaction: Transaction, name: str, number: int) -> bool:
        """Write a batch until its outcome is known, or give it up: it may still come."""
        values = [f"{self.number}-{self.sent + each}" for each in range(self.random.randint(1, 3))]
        self.sent += len(values)
        first = self.sequences.get(name, 0)
        self.sequences[name] = first + len(values)
        payload, keys = self.batch(first, values)
        command = TxnProduce(
            name,
            self.episode.now_ms(),
            stored(payload, len(values), TRANSACTIONAL),
            kafka_producer(self.coordinator.producer, self.epoch, first, len(values)),
            self.episode.uids[name],
            number,
        )
        made = self.episode.recorder.produce(transaction, name, values, keys)
        task = self.episode.spawn(self._write(command, made))
        patience = self.random.choice((0.5, 20.0, 20.0))
        done, _ = await asyncio.wait([task], timeout=patience)
        if not done:
            self.episode.recorder.ended(made, INFO)
        return made.outcome == OK

    def batch(self, first: int, values: list[str]) -> tuple[bytes, list[str]]:
        """Return a batch of these values, and their keys."""
        payload = data_batch(
            self.coordinator.producer, first, *(each.encode() for each in values), epoch=self.epoch
        )
        return payload, []

    async def _write(self, command: TxnProduce, made: Produce) -> None:
        """Send a batch. Its client may have given up meanwhile, and the transaction may be over."""
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.0, 1.0)))
        reply, tries = None, 0
        while reply is None or reply.code in WRONG:
            if tries > 40 or self.episode.late:
                return
            tries += 1
            reply = await self.episode.ask(command.name, command)
            if reply is None or reply.code in WRONG:
                await asyncio.sleep(self.random.uniform(0.05, 0.3))
        assert reply.code in (Code.OK, Code.DUPLICATE, *ENDED), f"{command} is answered {reply}"
        if made.ended == float("inf"):
            is_known = reply.code not in ENDED
            error = "" if is_known else FENCED
            self.episode.recorder.ended(made, OK if is_known else FAIL, error)


class TransactionEpisode(Episode):
    """The plain world with an object store; half of the partitions begin as diskless ones, and
    profiles change."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        super().__init__(seed, mishaps, knobs)
        for constant in ("BUNDLE_BYTES_MAX", "BYTES_MAX"):  # batches of Kafka are larger than these
            self.knobs.constants.pop(constant, None)
        self.world = World(seed, store=SimStore(seed, _wall_ms))
        self.world.release = levels.LEVEL
        self.world.evict_after_ms = 1500
        self.world.decides = True
        self.recorder = Recorder(lambda: asyncio.get_running_loop().time())
        self.uids: dict[str, int] = {}
        self.late = False  # all is well for so long that nothing is under way
        self.transactional = [TransactionClient(self, number) for number in range(CLIENTS)]
        self._more: list[asyncio.Task[None]] = []

    def now_ms(self) -> int:
        return _wall_ms()

    def spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._more.append(task)
        return task

    def check(self) -> None:
        """Raise what a request or a sender of markers has found."""
        for task in self._more:
            if task.done():
                task.result()

    def acknowledged_count(self) -> int:
        ended = [each.end for each in self.recorder.history.transactions]
        return super().acknowledged_count() + sum(each is not None for each in ended)

    def summary(self) -> str:
        every = self.recorder.history.transactions
        committed = sum(each.end is not None and each.end.kind == COMMIT for each in every)
        return f"{super().summary()}, {len(every)} transactions, {committed} committed"

    def clients(self) -> list[asyncio.Future[None]]:
        work: list[Any] = [self._append(0), self._switch_some(), self._begin()]
        return [asyncio.ensure_future(each) for each in work]

    async def _begin(self) -> None:
        for number, name in enumerate(NAMES):
            await self._made(name, Profile.DISKLESS if number % 2 else 0)
            if self.over:
                return
        clients = [each.run() for each in self.transactional]
        await asyncio.gather(*clients, self._poll(ROWS), self._poll(COMMITTED))

    async def _made(self, name: str, profile: int) -> None:
        create = Create(name, self.now_ms(), "", Encoding.KAFKA, profile=profile)
        while name not in self.uids and not self.over:
            reply = await self.ask(name, create)
            if reply is not None and reply.code in (Code.CREATED, Code.EXISTS):
                self.uids[name] = reply.uid
            else:
                await asyncio.sleep(0.1)

    async def ask(self, name: str, command: Any) -> Reply | None:
        """Ask any node; None: the answer is unknown, or did not come."""
        alive = self.world.alive()
        if not alive:
            return None
        node = self.random.choice(alive)
        life = node.life
        try:
            reply = await node.propose(name, command)
        except (Unavailable, OutcomeUnknown):
            return None
        self.note(f"{name} {type(command).__name__} {Code(reply.code).name} by {node.number}")
        return reply if node.life == life and node.alive else None

    async def send_markers(self, group: int, command: TxnMarkers) -> bool:
        """Send markers to a group; return whether it has acknowledged them."""
        alive = self.world.alive()
        if not alive:
            return False
        node = self.random.choice(alive)
        life = node.life
        stamped = structs.replace(command, now_ms=node.engine.service.now_ms())
        try:
            async with asyncio.timeout(6):
                reply = await node.process.drive(node.engine.service.call(group, stamped))
        except (Unavailable, OutcomeUnknown, TimeoutError):
            return False
        self.note(
            f"markers {command.producer} {command.number} in {group}: {Code(reply.code).name}"
        )
        assert reply.code in (Code.OK, Code.EVICTED, *FULL), reply
        return reply.code == Code.OK and node.life == life and node.alive

    async def _switch_some(self) -> None:
        random = Random(f"switch {self.seed}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 3))
            name, profile, alive = random.choice(NAMES), random.randrange(2), self.world.alive()
            if alive:
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    reply = await random.choice(alive).switch(name, profile)
                    self.note(f"{name} has profile {reply.detail}: {Code(reply.code).name}")

    # --- readers

    async def _poll(self, kind: str) -> None:
        positions = dict.fromkeys(NAMES, 0)
        random = Random(f"polls {self.seed} {kind}")
        while not self.over:
            await asyncio.sleep(random.expovariate(1 / 0.2))
            alive, name = self.world.alive(), random.choice(NAMES)
            if not alive:
                continue
            node = random.choice(alive)
            begin = 0 if random.random() < 0.2 else positions[name]
            found = await self._read_page(node, name, kind, begin, random.choice((1, 300, 1 << 16)))
            if found is not None:
                positions[name], records = found
                self.recorder.poll(kind, kind, name, begin, positions[name], records)

    async def _read_page(
        self, node: Node, name: str, kind: str, begin: int, bytes_max: int
    ) -> tuple[int, list[tuple[int, str]]] | None:
        """Return the end of a page, and the records of it that a client of this kind gets."""
        query = ReadQuery(
            name, begin or Position.START, 0, bytes_max, whole_records=True, raw=kind != ROWS
        )
        life = node.life
        try:
            async with asyncio.timeout(3):
                page = await node.process.drive(node.engine.service.read(query))
        except (Unavailable, OutcomeUnknown, TimeoutError):
            return None
        if not isinstance(page, Page) or node.life != life or not node.alive:
            return None
        return page.record, records_of(page)

    async def _ends(self) -> None:
        """Record both ends of each stream as its leader has them."""
        for name in NAMES:
            await self.world.wait_leaders()
            group = self.world.group_of(name)
            leader = self.world.leader(group)
            assert leader is not None
            machine = leader.engine.local.machines[group]
            stream = machine.directory.streams.get(name)
            if stream is not None:
                opened = list(stream.kafka.open.values()) if stream.kafka is not None else []
                stable = opened[0].record if opened else stream.next_record
                self.recorder.ends(name, stable, stream.next_record)
                self.recorder.hold(name, len(opened))

    async def _mishaps(self) -> None:
        random, store = Random(f"weather {self.seed}"), self.world.store
        assert store is not None
        store.weather = Weather(
            away=random.choice((0.0, 0.02, 0.1)),
            untold=random.choice((0.0, 0.02, 0.1)),
            delay=random.choice(((0.001, 0.01), (0.02, 0.3))),
        )
        await super()._mishaps()

    async def _heal(self) -> None:
        assert self.world.store is not None
        self.world.store.weather = GOOD
        await super()._heal()

    async def settle(self) -> None:
        """Wait until no transaction is open and no marker under way, read all, and check the
        history."""
        self.recorder.history.healed = asyncio.get_running_loop().time()
        for _ in range(300):
            self.check()
            if not any(each.coordinator.sending for each in self.transactional):
                break
            await asyncio.sleep(0.2)
        assert not any(each.coordinator.open for each in self.transactional)
        assert not any(each.coordinator.sending for each in self.transactional), (
            "markers are not taken though all is well"
        )
        self.late = True
        if self._more:
            await asyncio.wait(self._more)
        self.check()
        await self._ends()
        final = Final({name: await self._whole(name) for name in self.uids})
        found = check_transactions(self.recorder.history, final)
        assert not found, "\n".join(found[:5])
        for each in self.recorder.history.held:
            assert not each.count, f"{each.where} has {each.count} open transactions"

    async def _whole(self, name: str) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        at, tries = 0, 0
        while tries < 200:
            node = self.world.alive()[0]
            page = await self._read_page(node, name, COMMITTED, at, 1 << 16)
            tries += 1
            if page is None:
                await asyncio.sleep(0.1)
                continue
            end, records = page
            found += records
            if end == at:
                return found
            at = end
        raise AssertionError(f"{name} cannot be read though all is well")


def records_of(page: Page) -> list[tuple[int, str]]:
    """Return the records that a client takes, who leaves out markers and aborted batches. A record
    without a value has its text in a header."""
    return [
        (each.offset, (each.value or (each.headers[0][1] if each.headers else b"") or b"").decode())
        for span in page.spans
        if not span.flags & (CONTROL | ABORTED)
        for batch, _, first in placed_batches(bytes(span.payload), span.record)
        for each in decoded_records(batch, first)
        if each.offset >= page.info.first_record
    ]


def _wall_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000) + WALL_MS - 1_000_000


def run_transactions(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return TransactionEpisode(seed, mishaps, knobs).play()
