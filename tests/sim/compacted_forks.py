"""Forks of a compacted stream (sim/compacted.py): a client makes them, writes to them, reads and deletes
them. Forks are compacted too, but what they inherit stays as it was when they were made."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from sim.chaos import FULL
from sim.compacted_batches import PRODUCER, Kept, keyed_batch, missing_of
from sim.compacted_clients import FORKED, FUTILE, Client
from worlds.stream import kafka_producer
from worlds.transactions import stored

from chaos.transaction_history import FORK, ROWS
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.local.forks import create_fork
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code

if TYPE_CHECKING:
    from sim.compacted import CompactedEpisode

FORKS = 3  # of a stream at once
KEYS = ("a", "b", "c", "e")  # the source has them too
ROUNDS = 8  # of writes to each fork when all is well
FORK_POLICY = CompactionPolicy(delete_retention_ms=500, dirty_ratio=0.1)


class Made(msgspec.Struct):
    """A fork, as its only client knows it."""

    name: str
    number: int
    end: int = -1  # of what it inherits; -1: it was not read yet
    inherited: dict[str, list[tuple[int, str]]] = {}  # kind of reader -> offsets and texts
    written: Kept = {}
    sequence: int = 0
    pending: list[tuple[str, str]] = []  # a batch whose outcome is not known
    payload: bytes = b""
    is_going: bool = False  # its deletion was asked for


class Forker(Client):
    """A client that forks a stream, writes to the forks, reads and deletes them."""

    def __init__(self, episode: CompactedEpisode) -> None:
        super().__init__(episode, "forks of compacted streams", FORK_POLICY.delete_retention_ms)
        self.forks: list[Made] = []
        self.written = 0

    async def run(self) -> None:
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.5))
            chance = self.random.random()
            if self.forks and chance < 0.1:
                await self._delete(self.forks[0])
            elif chance < 0.3 and len(self.forks) < FORKS:
                await self._fork()
            elif self.forks and chance < 0.7:
                await self._write(self.random.choice(self.forks))
            elif self.forks:
                await self._read(self.random.choice(self.forks))

    async def _fork(self) -> None:
        node = self.node()
        if node is None:
            return
        self.count += 1
        made = Made(f"kafka/f/{self.count}", self.count)
        create = Create(made.name, self.episode.now_ms(), "", Encoding.KAFKA)
        self.forks.append(made)
        assert self.episode.world.compaction is not None
        self.episode.world.compaction[made.name] = FORK_POLICY
        with suppress(*FUTILE):
            async with asyncio.timeout(6):
                work = create_fork(node.engine.service, create, FORKED, (-1, 0, 0))
                reply = await node.process.drive(work)
            self.episode.note(f"{made.name} is {Code(reply.code).name}")

    # --- writes

    async def _write(self, made: Made) -> None:
        """Send the next batch, or again the one whose outcome is not known."""
        if made.end < 0 or made.is_going:
            await self._read(made)
        elif await self._sent(made):
            self._next(made)
            await self._sent(made)

    def _next(self, made: Made) -> None:
        deleted, count = self.episode.deleted, self.random.randint(1, 3)
        texts = [f"f{made.number}-{made.sequence + each}" for each in range(count)]
        keys = [
            "" if self.random.random() < 0.03 else self.random.choice(KEYS) for _ in range(count)
        ]
        made.pending = list(zip(keys, texts, strict=True))
        deleted |= {text for key, text in made.pending if key and self.random.random() < 0.4}
        producer = (PRODUCER + 1000 + made.number, 0, made.sequence)
        codec = self.random.choice((0, 0, 2, 4))
        made.payload = keyed_batch(made.pending, deleted, producer, codec=codec)

    async def _sent(self, made: Made) -> bool:
        """Send what is pending once; return whether nothing is any more."""
        if not made.pending or made.is_going:
            return not made.pending
        count = len(made.pending)
        command = Produce(
            made.name,
            self.episode.now_ms(),
            stored(made.payload, count),
            kafka_producer(PRODUCER + 1000 + made.number, 0, made.sequence, count),
        )
        reply = await self.episode.ask(made.name, command)
        if reply is None or reply.code not in (Code.OK, Code.DUPLICATE):
            assert reply is None or reply.code in (*FULL, Code.NOT_YET, Code.EVICTED), reply
            return False
        first = self._end_of(made)
        made.written = made.written | dict(enumerate(made.pending, first))
        made.sequence += count
        made.pending = []
        self.written += count
        return True

    def _end_of(self, made: Made) -> int:
        """Return the offset of the next record: no other client writes."""
        return max(made.written, default=made.end - 1) + 1

    # --- reads

    async def _read(self, made: Made) -> bool:
        """Compare all of a fork with what its source had: the same offsets, and the last value of each
        key. Return whether it could be read."""
        if not await self._sent(made):
            return False
        kind = self.random.choice((ROWS, FORK))
        found = await self.whole(made.name, kind)
        if found is None:
            return False
        end, records = found
        if made.end < 0:
            made.end = end
        inherited = [each for each in records if each[0] < made.end]
        self.episode.recorder.whole_poll(FORK, FORKED, made.end, inherited)
        before = made.inherited.setdefault(kind, inherited)
        lost = sorted({*before} - {*inherited})
        assert not lost, f"H: {made.name} had {lost[:3]} of {FORKED}, and has not any more"
        self._check_keys(made, before, records)
        return True

    def _check_keys(
        self, made: Made, before: list[tuple[int, str]], records: list[tuple[int, str]]
    ) -> None:
        """Check rule I for what a fork inherits and what was written to it."""
        keys = self.episode.keys_of(FORKED) | {text: key for key, text in made.written.values()}
        model = [(offset, (keys[text], text)) for offset, text in before]
        model += made.written.items()
        got = {offset: (keys[text], text) for offset, text in records}
        wrong = missing_of(model, got, self.episode.deleted)
        assert not wrong, f"I: a reader of {made.name} does not find {wrong}"

    # --- the end

    async def _delete(self, made: Made) -> bool:
        node = self.node()
        if node is None:
            return False
        made.is_going = True
        try:
            reply = await node.delete(made.name)
        except FUTILE:
            return False
        if reply.code in (Code.OK, Code.NOT_FOUND, Code.GONE):
            self.forks.remove(made)
            assert self.episode.world.compaction is not None
            self.episode.world.compaction.pop(made.name)
            return True
        return False

    async def end(self) -> None:
        """Write to what is left while passes go on, read it, and delete it."""
        for _ in range(ROUNDS):
            for made in self.forks:
                await self._write(made)
                await self._read(made)
            await asyncio.sleep(0.7)
        for _ in range(200):
            if not self.forks:
                return
            await self._delete(self.forks[0])
            await asyncio.sleep(0.1)
        raise AssertionError(f"{self.forks} cannot be deleted though all is well")
