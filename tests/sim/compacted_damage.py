"""A compacted stream some of whose batches cannot be decoded (sim/compacted.py): a producer sent them so,
with a right checksum. A pass leaves their slices as they are, names them, and goes on."""

from __future__ import annotations

import asyncio
from struct import pack_into
from typing import TYPE_CHECKING, Any

import google_crc32c
from sim.chaos import FULL
from sim.compacted_batches import PRODUCER, Kept, keyed_batch, missing_of
from sim.compacted_clients import ALL_BYTES, Client
from worlds.stream import kafka_producer
from worlds.transactions import stored

from polynya.cold.compaction.planner import CompactionPolicy
from polynya.local.api import Page, Position
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.stream.state import index
from polynya.wire.kafka.batches import HEADER_BYTES
from polynya.wire.kafka.records import UnreadableBatch, decoded_records, placed_batches

if TYPE_CHECKING:
    from sim.compacted import CompactedEpisode

DAMAGED = "kafka/t/damaged"
DAMAGED_POLICY = CompactionPolicy(delete_retention_ms=1000, dirty_ratio=0.1)
KEYS = ("a", "b", "c")
SPOILT = (0, 1, 2, 3, 4, 7)  # codecs of batches that cannot be decoded; the last is none
SHARE = 0.1  # of the batches
SENT = 600  # times at most until enough is written
FORCED = 40  # passes at most until all is compacted
MY_PRODUCER = PRODUCER + 500


def spoilt(batch: bytes, codec: int) -> bytes:
    """Return a batch with a right checksum, whose records this codec does not read."""
    made = bytearray(batch)
    pack_into(">h", made, 21, codec)
    made[HEADER_BYTES:] = b"\xff" * (len(made) - HEADER_BYTES)
    pack_into(">I", made, 17, google_crc32c.value(bytes(made[21:])))
    return bytes(made)


class Damager(Client):
    """The only producer of a stream, which reads it too."""

    def __init__(self, episode: CompactedEpisode) -> None:
        super().__init__(episode, "damaged batches", DAMAGED_POLICY.delete_retention_ms)
        self.written: Kept = {}
        self.damaged: dict[int, int] = {}  # offset -> records of a batch that cannot be decoded
        self.end = 0
        self._limit = 0  # the records before this one are to be compacted in the end
        self._pending: list[tuple[str, str]] = []
        self._payload, self._is_spoilt, self._is_made = b"", False, False

    async def run(self) -> None:
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.5))
            if not await self._send(SHARE):
                continue
            if self.random.random() < 0.3:
                await self._check()

    # --- writes

    async def _send(self, share: float) -> bool:
        """Send a batch once, the same until it is taken; return whether nothing is pending."""
        if not self._is_made:
            create = Create(DAMAGED, self.episode.now_ms(), "", Encoding.KAFKA)
            reply = await self.episode.ask(DAMAGED, create)
            self._is_made = reply is not None and reply.code in (Code.CREATED, Code.EXISTS)
            return False
        if not self._pending:
            self._next(share)
        count = len(self._pending)
        producer = kafka_producer(MY_PRODUCER, 0, self.end, count)
        command = Produce(DAMAGED, self.episode.now_ms(), stored(self._payload, count), producer)
        reply = await self.episode.ask(DAMAGED, command)
        if reply is None or reply.code not in (Code.OK, Code.DUPLICATE):
            assert reply is None or reply.code in (*FULL, Code.NOT_YET, Code.EVICTED), reply
            return False
        if self._is_spoilt:
            self.damaged[self.end] = count
        else:
            self.written |= dict(enumerate(self._pending, self.end))
        self.end += count
        self._pending = []
        return True

    def _next(self, share: float) -> None:
        count, deleted = self.random.randint(1, 3), self.episode.deleted
        self._is_spoilt = self.random.random() < share
        texts = [f"d-{self.end + each}" for each in range(count)]
        self._pending = [(self.random.choice(KEYS), text) for text in texts]
        if not self._is_spoilt:
            deleted |= {text for text in texts if self.random.random() < 0.3}
        codec, producer = self.random.choice((0, 2, 4)), (MY_PRODUCER, 0, self.end)
        batch = keyed_batch(self._pending, deleted, producer, codec=codec)
        self._payload = spoilt(batch, self.random.choice(SPOILT)) if self._is_spoilt else batch

    # --- reads

    async def _check(self) -> Kept | None:
        """Read all, and compare it with what was written; None: that did not succeed in time."""
        began = asyncio.get_running_loop().time()
        page: Page | None = None
        found: Kept = {}
        damaged: dict[int, int] = {}
        end = self.end
        at: tuple[int, int] = Position.START, 0
        while page is None or not page.up_to_date:
            page = await self.page(DAMAGED, "raw", *at, ALL_BYTES)
            if page is None:
                return None
            self._take(page, found, damaged)
            at = page.record, page.byte
        if not self.is_in_time(began):
            return None
        if self._pending or end != self.end:
            found = {offset: pair for offset, pair in found.items() if offset < end}
        lost = self.damaged.items() - damaged.items()
        assert not lost, f"{DAMAGED}: batches that cannot be decoded are gone: {sorted(lost)[:3]}"
        if not self._pending:
            wrong = missing_of(self.written.items(), found, self.episode.deleted)
            assert not wrong, f"I: a reader of {DAMAGED} does not find {wrong}"
        return found

    def _take(self, page: Page, found: Kept, damaged: dict[int, int]) -> None:
        for span in page.spans:
            for batch, header, first in placed_batches(bytes(span.payload), span.record):
                try:
                    records = list(decoded_records(batch, first))
                except UnreadableBatch:
                    damaged[first] = header.records
                    continue
                for each in records:
                    text = each.value or each.headers[0][1] or b""
                    found[each.offset] = (each.key or b"").decode(), text.decode()

    # --- the end

    async def finish(self) -> None:
        """Send more until a batch is damaged, let passes go on, and check what they leave."""
        for _ in range(SENT):
            if self.damaged and not self._pending and len(self.written) >= 12:
                break
            await self._send(0.0 if self.damaged else 0.5)
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(f"{DAMAGED} takes no batches though all is well")
        await asyncio.sleep(3.0)
        self._limit = self.end
        for _ in range(FORCED):
            found = await self._check()
            if found is not None and self._is_compacted(found):
                return
            _, stream = self.episode.stream_of(DAMAGED)
            if stream is None or self._pending:
                await self._send(0.0)  # it was evicted
            await asyncio.sleep(0.5)
        raise AssertionError(f"{DAMAGED}: no pass goes on behind damage and names it")

    def _is_compacted(self, found: Kept) -> bool:
        """Report whether the last pass named damage, and left older values beside it alone; force a
        pass if not."""
        leader, stream = self.episode.stream_of(DAMAGED)
        if stream is None or not stream.cold:
            return False
        last = leader.tier.compactor.last.get(stream.uid)
        pages = index.pages(stream.cold)
        is_named = last is not None and (last.damage or pages)  # slices of pages stay unread
        if is_named and not self._older_passes(leader, stream, found):
            return True
        leader.tier.compactor.force(DAMAGED)
        return False

    def _older_passes(self, leader: Any, stream: Any, found: Kept) -> list[int]:
        """Return the records before newer ones of their keys, in slices that can be compacted."""
        machine = leader.engine.local.machines[self.episode.world.group_of(DAMAGED)]
        pages = index.pages(stream.cold)
        begin = pages[-1][1] if pages else 0
        entries = list(machine.packs.index_of(stream)) if not pages else []
        sound = [
            each
            for each in entries[begin:-1]
            if not any(each.record <= at < each.record + each.records for at in self.damaged)
        ]
        packed = entries[-1].record + entries[-1].records if entries else 0
        packed = min(packed, self._limit)  # what was sent since wakes the stream, and may stay
        newest = {key: at for at, (key, _) in sorted(found.items()) if at < packed}
        return [
            at
            for at, (key, _) in found.items()
            if at < min(newest.get(key, 0), self._limit)
            and any(each.record <= at < each.record + each.records for each in sound)
        ]
