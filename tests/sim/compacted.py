"""Keyed records in a simulated cluster whose streams are compacted. Idempotent producers and
transactions write to replicated and diskless streams. A table holds one of them; another is forked,
one is trimmed, one is idle for most of the time, one has pages before it gets the policy, and one
has batches that cannot be decoded. Nodes die between the steps of a pass.
`chaos.transaction_history` checks what clients were told (rules H and I among others)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from unittest import mock

from msgspec import structs
from sim.chaos import FULL
from sim.cluster import Node
from sim.compacted_batches import PRODUCER, keyed_batch
from sim.compacted_clients import (
    ALL_BYTES,
    FORKED,
    HELD,
    IDLE,
    LATE,
    TOMBSTONES_MS,
    TRIMMED,
    TableReader,
    Trimmer,
    WholeReader,
)
from sim.compacted_damage import DAMAGED, DAMAGED_POLICY, Damager
from sim.compacted_forks import Forker
from sim.faults import FAULTS
from sim.knobs import Knobs
from sim.process import NOBODY
from sim.transactional import NAMES, TransactionClient, TransactionEpisode
from worlds.stream import kafka_producer
from worlds.transactions import stored

from chaos.history import INFO, OK
from chaos.transaction_history import COMMITTED, ROWS, Final, check_transactions
from polynya.cold.compaction import compactor, key_map, reading
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.local.api import Position
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.compaction.commands import NoteCompaction
from polynya.stream.features.compaction.progress import compaction_of
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.replies import Code
from polynya.stream.state import index

Result = TypeVar("Result")
KEYS = ("a", "b", "c", "d" * 30, "e", "f")
POLICY = CompactionPolicy(delete_retention_ms=TOMBSTONES_MS, dirty_ratio=0.3)
POLICIES = {
    HELD: POLICY,
    LATE: POLICY,
    FORKED: structs.replace(POLICY, min_lag_ms=700),
    TRIMMED: structs.replace(POLICY, dirty_ratio=0.1, max_lag_ms=3000),
    IDLE: POLICY,
    DAMAGED: DAMAGED_POLICY,
}
LATE_SECONDS = 9.0  # from the start until one stream gets its policy
STRIKES = 0.04  # share of the steps of merges and passes at which the leader dies
IDLE_SHARE = 0.03  # of the batches
COMPACTED_SECONDS = 120.0


@contextmanager
def compaction_chance(seed: int) -> Iterator[None]:
    """Seed the chance of compactors, and let them work in the seconds of an episode. Some have so
    little memory that a pass ends early."""
    random = Random(f"compaction {seed}")

    def now() -> float:
        return asyncio.get_running_loop().time()

    slots = random.choice((1 << 20, 1 << 20, 4))
    least = mock.patch.object(key_map, "SLOTS_MIN", 4)
    paced = mock.patch.object(reading, "monotonic", now)
    with (
        least,
        paced,
        mock.patch.multiple(
            compactor,
            token_bytes=random.randbytes,
            monotonic=now,
            INTERVAL_SECONDS=random.choice((0.3, 0.8)),
            REFUSED_REST_MS=500,
            MAP_BYTES=slots * compactor.SLOT_BYTES,
        ),
    ):
        yield


class Keyed:
    """The keys of a client's records: each may be deleted."""

    def __init__(self, episode: CompactedEpisode, name: str) -> None:
        self._random, self._deleted = Random(f"keys {episode.seed} {name}"), episode.deleted

    def batch(
        self, values: list[str], producer: tuple[int, int, int], attributes: int = 0
    ) -> tuple[bytes, list[str]]:
        """Return a batch of these values, and their keys."""
        random = self._random
        keys = ["" if random.random() < 0.03 else random.choice(KEYS) for _ in values]
        self._deleted |= {
            value for key, value in zip(keys, values, strict=True) if key and random.random() < 0.25
        }
        codec = random.choice((0, 0, 2, 4))
        pairs = list(zip(keys, values, strict=True))
        made = keyed_batch(pairs, self._deleted, producer, codec=codec, attributes=attributes)
        return made, keys


class KeyedTransactions(TransactionClient):
    """A client with one transactional id, whose records have keys."""

    def __init__(self, episode: CompactedEpisode, number: int) -> None:
        super().__init__(episode, number)
        self.keyed = Keyed(episode, f"transactions {number}")

    def batch(self, first: int, values: list[str]) -> tuple[bytes, list[str]]:
        producer = (self.coordinator.producer, self.epoch, first)
        return self.keyed.batch(values, producer, 0x10)


class KeyedProducer:
    """An idempotent producer: it sends a batch until it is taken, then the next one."""

    def __init__(self, episode: CompactedEpisode, number: int) -> None:
        self.episode, self.number = episode, number
        self.random = Random(f"keyed {episode.seed} {number}")
        self.keyed = Keyed(episode, f"producer {number}")
        self.sequences: dict[str, int] = {}
        self.sent = 0

    async def run(self) -> None:
        while not self.episode.over:
            idle = self.random.random() < IDLE_SHARE
            task = self.episode.spawn(self.write(IDLE if idle else self.random.choice(NAMES)))
            while not task.done() and not self.episode.over:
                await asyncio.wait([task], timeout=0.5)
            await asyncio.sleep(self.random.expovariate(1 / 0.08))

    async def write(self, name: str) -> None:
        """Send one batch until it is taken, also when the other clients have ended."""
        values = [f"p{self.number}-{self.sent + each}" for each in range(self.random.randint(1, 4))]
        self.sent += len(values)
        first = self.sequences.get(name, 0)
        self.sequences[name] = first + len(values)
        producer = PRODUCER + self.number
        payload, keys = self.keyed.batch(values, (producer, 0, first))
        command = Produce(
            name,
            self.episode.now_ms(),
            stored(payload, len(values)),
            kafka_producer(producer, 0, first, len(values)),
        )
        made = self.episode.recorder.produce(None, name, values, keys)
        while not self.episode.late:
            reply = await self.episode.ask(name, command)
            if reply is not None and reply.code in (Code.OK, Code.DUPLICATE):
                self.episode.recorder.ended(made, OK)
                return
            assert reply is None or reply.code in (*FULL, Code.NOT_YET, Code.EVICTED), reply
            await asyncio.sleep(self.random.uniform(0.05, 0.3))
        self.episode.recorder.ended(made, INFO)


class CompactedEpisode(TransactionEpisode):
    """The world of transactions, whose streams have policies of compaction."""

    def __init__(self, seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> None:
        self.deleted: set[str] = set()
        super().__init__(seed, mishaps, knobs)
        self.knobs.constants.pop("RECALL_BYTES_MAX", None)  # keyed batches are larger than some
        paged = {"MergeSettings.page_entries": 3, **self.knobs.settings}
        self.knobs = structs.replace(self.knobs, settings=paged)
        self.world.compaction = {name: POLICIES[name] for name in POLICIES if name != LATE}
        self.world.heard = self._hear
        self.choices = (*self.choices, *[FAULTS["crash at a call"]] * 2)
        self.transactional = [KeyedTransactions(self, number) for number in range(2)]
        self.producers = [KeyedProducer(self, number) for number in range(3)]
        self.recorder.history.compacted = {*POLICIES} - {DAMAGED}
        self.recorder.history.tombstones = self.deleted
        self.table, self.forker, self.trimmer = TableReader(self), Forker(self), Trimmer(self)
        self.damager = Damager(self)
        self._strikes, self.struck = Random(f"strikes {seed}"), 0
        self.passes = self.rewrites = 0

    def play(self) -> str:
        with compaction_chance(self.seed):
            return super().play()

    def summary(self) -> str:
        return (
            f"{super().summary()}, {self.rewrites} slices replaced, {self.passes} passes, "
            f"{self.struck} leaders died of them, {self.forker.count} forks with {self.forker.written} records, "
            f"{self.trimmer.count} trims, {len(self.table.rows)} rows, "
            f"{len(self.damager.damaged)} batches that cannot be decoded"
        )

    def acknowledged_count(self) -> int:
        taken = sum(each.outcome == OK for each in self.recorder.history.plain)
        return super().acknowledged_count() + taken

    def keys_of(self, name: str) -> dict[str, str]:
        """Return the key of each text that was written to a stream."""
        history = self.recorder.history
        some = [history.plain, *(each.produces for each in history.transactions)]
        return {
            text: key
            for produces in some
            for produce in produces
            if produce.stream == name
            for text, key in zip(produce.values, produce.keys, strict=True)
        }

    # --- passes

    def _hear(self, group: int, command: Command) -> None:
        """Let the leader die at some steps of merges and passes."""
        if not isinstance(command, ReplaceSlices | NoteCompaction):
            return
        self.passes += isinstance(command, NoteCompaction)
        self.rewrites += isinstance(command, ReplaceSlices)
        if not self.over and self._strikes.random() < STRIKES:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._strike, group, context=NOBODY)

    def _strike(self, group: int) -> None:
        leader = self.world.leader(group)
        if leader is None or len(self.world.alive()) < 2:
            return
        self.note(f"node {leader.number} dies of a pass")
        self.struck += 1
        leader.kill(power=self._strikes.choice((None, 0.0, 1.0)))
        asyncio.get_running_loop().call_later(1.5, self._rise, leader, context=NOBODY)

    def _rise(self, node: Node) -> None:
        if not node.alive and not self.over:
            node.disk.capacity = 1 << 40
            node.start()

    # --- clients

    async def _begin(self) -> None:
        for number, name in enumerate((*NAMES, IDLE)):
            await self._made(name, Profile.DISKLESS if number % 2 else 0)
            if self.over:
                return
        clients = [
            *self.transactional,
            *self.producers,
            self.table,
            self.forker,
            self.trimmer,
            self.damager,
            *(WholeReader(self, kind) for kind in (ROWS, COMMITTED)),
        ]
        work = [each.run() for each in clients]
        await asyncio.gather(*work, self._poll(ROWS), self._poll(COMMITTED), self._start_late())

    async def _start_late(self) -> None:
        """Give one stream its policy, which has pages by then, and take it away again and again."""
        assert self.world.compaction is not None
        while not self.over:
            await asyncio.sleep(LATE_SECONDS)
            self.world.compaction[LATE] = POLICIES[LATE]
            await asyncio.sleep(LATE_SECONDS)
            if not self.over:
                self.world.compaction.pop(LATE)
        self.world.compaction[LATE] = POLICIES[LATE]

    # --- the end

    async def settle(self) -> None:
        """Check the history; then let passes go on, and check what they leave."""
        await self.forker.end()
        await super().settle()
        await self.table.finish()
        await self._compacted()
        await self.damager.finish()
        final = Final({name: await self._whole(name) for name in self.uids})
        found = check_transactions(self.recorder.history, final)
        assert not found, "\n".join(found[:5])
        for name in self.uids:
            await self._reaches_the_end(name)

    async def _reaches_the_end(self, name: str) -> None:
        """Check that readers of all kinds reach the end from anywhere."""
        random, node = Random(f"from anywhere {self.seed} {name}"), self.world.alive()[0]
        whole = await self._surely(
            lambda: self.table.page(name, ROWS, Position.START, 0, ALL_BYTES)
        )
        first, end = whole.info.first_record, whole.record
        for _ in range(8):
            at = random.randint(first, end)
            kind, most = random.choice((ROWS, COMMITTED)), random.choice((1, 100, 1000))
            while at < end:
                page = await self._surely(lambda: self._read_page(node, name, kind, at, most))  # noqa: B023 (called here)
                assert page[0] > at, f"{name}: a reader stays at {at} of {end}"
                at = page[0]

    @staticmethod
    async def _surely(ask: Callable[[], Awaitable[Result | None]]) -> Result:
        """Ask until there is an answer."""
        for _ in range(50):
            found = await ask()
            if found is not None:
                return found
            await asyncio.sleep(0.2)
        raise AssertionError("a stream cannot be read though all is well")

    async def _compacted(self) -> None:
        """Wait until a pass of each stream in memory has compared all that is in packs now."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + COMPACTED_SECONDS
        await self.world.wait_leaders()
        wanted = {name: self._packed(name) for name in self.uids}
        while True:
            await self.table.take()  # else it holds what it has read
            await self.world.wait_leaders()
            late = [name for name, end in wanted.items() if self._cleaned(name) < end]
            if not late:
                return
            assert loop.time() < deadline, f"no pass completes though all is well: {late}"
            for name in late:
                leader, _ = self.stream_of(name)
                assert leader.tier.compactor is not None
                leader.tier.compactor.force(name)
            await asyncio.sleep(0.5)

    def _packed(self, name: str) -> int:
        """Return the end of a stream's packs; 0: there are none, or the stream has pages, which
        stay."""
        _, stream = self.stream_of(name)
        if stream is None or not stream.cold or index.pages(stream.cold):
            return 0
        return index.end_of(stream.cold, -1)[0]

    def _cleaned(self, name: str) -> int:
        """Return the end of what was compared; of an evicted stream nothing is due."""
        _, stream = self.stream_of(name)
        return 1 << 62 if stream is None else compaction_of(stream).cleaned

    def stream_of(self, name: str) -> tuple[Any, Any]:
        """Return the leader of a stream, and its state; None while it is evicted."""
        group = self.world.group_of(name)
        leader = self.world.leader(group)
        assert leader is not None
        return leader, leader.engine.local.machines[group].directory.streams.get(name)


def run_compacted(seed: int, mishaps: int = 25, knobs: Knobs | None = None) -> str:
    """Play an episode. Raises AssertionError with the violated invariant."""
    return CompactedEpisode(seed, mishaps, knobs).play()
