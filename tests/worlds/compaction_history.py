"""Random histories of a compacted stream: producers, transactions, flushes, merges, passes, trims,
forks, changes of the leader and failures, checked after each step against all that was ever
written."""

from __future__ import annotations

import random
from struct import pack_into

import google_crc32c
from cold.test_evictor import bring_all, evictor_of
from msgspec import structs
from worlds.cold import GROUPS
from worlds.compaction import NAME, KeyedTier, Pair
from worlds.stream import kafka_batch
from worlds.transactions import marker_batch

from polynya.base.names import group_of
from polynya.cold.compaction.planner import CompactionPolicy
from polynya.cold.settings import MergeSettings
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.packs.commands import ReplaceSlices
from polynya.stream.features.retention.commands import Trim
from polynya.stream.parts import ABORTED, CONTROL, TRANSACTIONAL, ColdSlice
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of
from polynya.stream.state.model import Pin
from polynya.wire.kafka.batches import Record, build_batch

GROUP = group_of(NAME, GROUPS)
KEYS = (b"a", b"b", b"c", b"d" * 40, b"")
SMALL = MergeSettings(slice_bytes_max=300, pack_bytes_max=600)  # several slices and packs a pass
POLICY = CompactionPolicy(delete_retention_ms=2000, dirty_ratio=0.2)


class History:
    """One random history. `play` raises AssertionError at the first step after which a rule is
    broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tier = KeyedTier(policy=POLICY, settings=SMALL)
        self.written: dict[int, Pair] = {}  # all committed records
        self.aborted: set[int] = set()
        self.pinned: dict[int, Pair] = {}  # what the fork inherits
        self.seen: dict[int, Pair] = {}
        self.tier.produce((b"first", b"0"))
        self.written.update(self.tier.records[NAME])

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            await self._step()
            await self.check()

    async def _step(self) -> None:
        chance = self.random.random()
        self.tier.world.now += self.random.randrange(400)
        if chance < 0.35:
            self._produce()
        elif chance < 0.47:
            self._transaction()
        elif chance < 0.62:
            await self.tier.flush()
        elif chance < 0.69:
            await self.tier.merger.merge_due()
        elif chance < 0.86:
            await self._compact()
        elif chance < 0.9:
            self._fork()
        elif chance < 0.93:
            self._trim()
        elif chance < 0.95:
            self._lead_anew()
        elif chance < 0.97:
            await self._evict()
        else:
            self.tier.world.now += 60_000

    def _pairs(self) -> list[Pair]:
        return [
            (
                None if self.random.random() < 0.05 else self.random.choice(KEYS),
                None if self.random.random() < 0.25 else self.random.randbytes(12),
            )
            for _ in range(self.random.randrange(1, 6))
        ]

    def _produce(self) -> None:
        first, pairs = self.tier.stream().next_record, self._pairs()
        self.tier.produce(*pairs, codec=self.random.choice((0, 0, 2, 4)))
        self.written.update(enumerate(pairs, first))

    def _transaction(self) -> None:
        """Append a decided transaction, and its marker."""
        pairs, commit = self._pairs(), self.random.random() < 0.4
        first = self.tier.stream().next_record
        made = bytearray(build_batch([Record(*pair, self.tier.world.now) for pair in pairs]))
        pack_into(">h", made, 21, 0x10)
        pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
        self._append(bytes(made), len(pairs), TRANSACTIONAL | (0 if commit else ABORTED))
        if commit:
            self.written.update(enumerate(pairs, first))
        else:
            self.aborted.update(range(first, first + len(pairs)))
        self._append(marker_batch(1, commit=commit), 1, TRANSACTIONAL | CONTROL)

    def _append(self, payload: bytes, records: int, flags: int) -> None:
        batch = structs.replace(kafka_batch(records, payload), flags=flags)
        command = Produce(NAME, self.tier.world.now, batch)
        assert self.tier.world.apply(GROUP, command).code == Code.OK

    async def _compact(self) -> None:
        """Look for due streams; sometimes the log or the store fails on the way."""
        at, how = len(self.tier.world.proposed) + self.random.randrange(1, 7), ""
        if self.random.random() < 0.4:
            how = self.random.choice(("before", "after", "lost", "pin"))

        first = True

        def fail(number: int, command: Command) -> str:
            nonlocal first
            if how == "pin" and isinstance(command, ReplaceSlices):
                if first:  # what a fork inherits is known before the first slice is replaced
                    self._fork()
                first = False
            return how if number == at and how != "pin" else ""

        if self.random.random() < 0.1:
            self.tier.store.fail_at = self.tier.store.calls + self.random.randrange(1, 4)
        self.tier.world.fail = fail
        await self.tier.compactor.compact_due()
        self.tier.world.fail, self.tier.store.fail_at = (lambda number, command: ""), 0

    def _fork(self) -> None:
        """Fork the stream where it is now, or end the fork."""
        stream = self.tier.stream()
        if stream.pins:
            stream.pins, self.pinned = None, {}
            return
        ends = [cold.record + cold.records for cold in self._entries()]
        end = self.random.choice(ends) if ends else 0
        stream.pins = {"1": Pin("kafka/f/0", end, 0, self.tier.world.now, confirmed=True)}
        self.pinned = {at: pair for at, pair in self.seen.items() if at < end}

    def _trim(self) -> None:
        entries = self._entries()
        stream = self.tier.stream()
        if len(entries) < 3 or stream.pins:
            return
        cold = entries[self.random.randrange(2)]
        cut = (stream.uid, cold.record + cold.records, cold.byte + cold.length)
        self.tier.world.apply(GROUP, Trim([cut], self.tier.world.now))

    def _lead_anew(self) -> None:
        """Go on with a core that knows the state alone."""
        machine = self.tier.machine()
        payloads = {batch.record: batch.payload for batch in self.tier.stream().hot or ()}
        hot = iter([payloads[record] for record in sorted(payloads, reverse=True)])
        twin = machine_from(snapshot_of(machine), lambda position, uid: next(hot))
        assert snapshot_of(twin) == snapshot_of(machine)
        self.tier.world.machines()[GROUP] = twin
        self.tier.compactor = self.tier.new_compactor()

    async def _evict(self) -> None:
        """Evict the stream, and bring it back."""
        await self.tier.flush()
        self.tier.world.now += 1000
        await evictor_of(self.tier).evict_due()
        await bring_all(self.tier)

    def _entries(self) -> list[ColdSlice]:
        return list(self.tier.machine().packs.index_of(self.tier.stream()))

    async def check(self) -> None:
        """Check the rules: committed readers see what was committed (H), and of each key the last
        value, or nothing of a deleted one (I); a fork sees all that it inherits."""
        first = self.tier.stream().first_record
        self.seen = found = await self.tier.read_pairs(record=first)
        assert not self.aborted & found.keys(), "an aborted record is read"
        assert found.items() <= self.written.items(), "a record is read that was not written"
        last = {key: at for at, (key, _) in found.items()}
        newest = {key: at for at, (key, _) in self.written.items()}
        for key, at in newest.items():
            if key is None or at < first:
                continue
            if self.written[at][1] is None and key not in last:
                continue
            assert last.get(key) == at, f"key {key!r} ends at {last.get(key)}; expected {at}"
        keyless = {at for at, (key, _) in self.written.items() if key is None and at >= first}
        assert keyless <= found.keys(), "a record without a key is gone"
        assert self.pinned.items() <= found.items(), "a fork misses a record"
