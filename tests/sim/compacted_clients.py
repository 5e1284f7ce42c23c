"""Readers, trims and a table of compacted streams (sim/compacted.py)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import convert, structs
from sim.transactional import NAMES, records_of

from chaos.transaction_history import ROWS, TABLE, Final, check_transactions
from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, Position, ReadQuery, TrimQuery
from polynya.stream.features.tables.commands import ClaimRanges, WatchStreams
from polynya.stream.features.tables.rules import ClaimedRange
from polynya.stream.replies import Code, Reply

if TYPE_CHECKING:
    from sim.cluster import Node
    from sim.compacted import CompactedEpisode

HELD, LATE, FORKED, TRIMMED = NAMES
IDLE = "kafka/t/4"
TABLE_UID = 77
CLAIMED_BYTES = 1 << 30
ALL_BYTES = 1 << 22
TOMBSTONES_MS = 2000  # for which tombstones stay
READ_SHARE = 0.5  # of that time: a slower reader may have seen what one of them deletes
FUTILE = (Unavailable, OutcomeUnknown, TimeoutError)


class Client:
    """A client of an episode, with chance of its own."""

    def __init__(
        self, episode: CompactedEpisode, name: str, tombstones_ms: int = TOMBSTONES_MS
    ) -> None:
        self.episode, self.random = episode, Random(f"{name} {episode.seed}")
        self.count = 0
        self._patience = READ_SHARE * tombstones_ms / 1000

    def node(self) -> Node | None:
        alive = self.episode.world.alive()
        return self.random.choice(alive) if alive else None

    async def call(self, name: str, command: Any) -> Reply | None:
        """Send a command to the group of a stream; None: the outcome is unknown."""
        node = self.node()
        if node is None:
            return None
        group, life = self.episode.world.group_of(name), node.life
        try:
            async with asyncio.timeout(6):
                reply: Reply = await node.process.drive(node.engine.service.call(group, command))
        except FUTILE:
            return None
        return reply if node.alive and node.life == life else None

    async def page(
        self, name: str, kind: str, record: int, byte: int, bytes_max: int
    ) -> Page | None:
        """Read a page by any node; None: there is none."""
        node = self.node()
        if node is None:
            return None
        life = node.life
        query = ReadQuery(name, record, byte, bytes_max, whole_records=True, raw=kind != ROWS)
        try:
            async with asyncio.timeout(3):
                page = await node.process.drive(node.engine.service.read(query))
        except FUTILE:
            return None
        return page if isinstance(page, Page) and node.alive and node.life == life else None

    async def whole(self, name: str, kind: str) -> tuple[int, list[tuple[int, str]]] | None:
        """Read a stream from its first record to its end, in one page or several; None: that did not
        succeed, or not in the time in which tombstones stay."""
        began = asyncio.get_running_loop().time()
        most = self.random.choice((ALL_BYTES, ALL_BYTES, 400))
        page = await self.page(name, kind, Position.START, 0, most)
        records = [] if page is None else records_of(page)
        while page is not None and not page.up_to_date:
            await asyncio.sleep(self.random.choice((0.0, 0.1)))
            before = page.record, page.byte
            page = await self.page(name, kind, *before, most)
            if page is not None:
                assert (page.record, page.byte) > before or page.up_to_date, (
                    f"{name}: a reader stays at {before}"
                )
                records += records_of(page)
        return (page.record, records) if page is not None and self.is_in_time(began) else None

    def is_in_time(self, began: float) -> bool:
        """Report whether a read that began then cannot have missed a tombstone."""
        return asyncio.get_running_loop().time() - began < self._patience


class WholeReader(Client):
    """A reader that begins at the first record each time. It sees the last value of each key."""

    def __init__(self, episode: CompactedEpisode, kind: str) -> None:
        super().__init__(episode, f"whole {kind}")
        self.kind = kind

    async def run(self) -> None:
        names = (*NAMES, IDLE)
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 0.4))
            name = self.random.choice(names)
            found = await self.whole(name, self.kind)
            if found is not None:
                self.count += 1
                self.episode.recorder.whole_poll(self.kind, name, *found)


class Trimmer(Client):
    """A client that trims a stream."""

    def __init__(self, episode: CompactedEpisode) -> None:
        super().__init__(episode, "trims")

    async def run(self) -> None:
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 5))
            page, node = await self.page(TRIMMED, ROWS, Position.START, 0, 1), self.node()
            if page is None or node is None or page.record <= page.info.first_record + 2:
                continue
            record = self.random.randint(page.info.first_record, page.record)
            trimmed = self.episode.recorder.history.trimmed
            trimmed[TRIMMED] = max(record, trimmed.get(TRIMMED, 0))
            with suppress(*FUTILE):
                async with asyncio.timeout(6):
                    work = node.engine.service.trim(TrimQuery(TRIMMED, record))
                    await node.process.drive(work)
                self.count += 1


class TableReader(Client):
    """A table that holds a stream's records: it claims ranges, reads them, and commits, or claims
    again. Its rows are all committed records."""

    def __init__(self, episode: CompactedEpisode) -> None:
        super().__init__(episode, "table")
        self.rows: dict[int, str] = {}
        self.job, self.committed, self.end = 1, 0, 0
        self.is_known = self.is_last = False
        self.since = 0.0  # from then on nothing goes before the table has it

    async def run(self) -> None:
        while not self.episode.over:
            await asyncio.sleep(self.random.expovariate(1 / 1.5))
            await self.take()

    async def take(self) -> None:
        """Do one job."""
        if not self.is_known:
            watch = WatchStreams(TABLE_UID, [HELD], True, self.episode.now_ms())
            reply = await self.call(HELD, watch)
            self.is_known = reply is not None and reply.code == Code.OK
            self.since = asyncio.get_running_loop().time()
            return
        claim = ClaimRanges(
            TABLE_UID, self.job, self.committed, HELD, [], CLAIMED_BYTES, fresh=True
        )
        reply = await self.call(HELD, claim)
        if reply is None or reply.code != Code.OK:
            return
        rows: dict[int, str] = {}
        end = self.end
        for part in convert(reply.detail, list[ClaimedRange]):
            begin, end = part.slices[0].record, part.slices[-1].record + part.slices[-1].records
            assert begin <= self.end, f"a table misses records from {self.end} to {begin}"
            rows |= await self._read(self.end, end)
        if self.episode.over and not self.is_last:
            return  # it may not have read all
        await asyncio.sleep(self.random.choice((0.0, 0.5, 2.0)))
        if self.random.random() < 0.8:
            self.rows |= rows
            self.committed, self.end = self.job, end
        self.job += 1

    async def _read(self, begin: int, end: int) -> dict[int, str]:
        rows: dict[int, str] = {}
        at, byte = begin, 0
        while at < end and (self.is_last or not self.episode.over):
            page = await self.page(HELD, ROWS, at, byte, 400)
            if page is None:
                await asyncio.sleep(0.1)
                continue
            assert (page.record, page.byte) > (at, byte), f"a table stays at {at} of {end}"
            rows.update((offset, value) for offset, value in records_of(page) if offset < end)
            at, byte = page.record, page.byte
        return rows

    async def finish(self) -> None:
        """Take what is left, and compare the rows with all that was committed."""
        if HELD not in self.episode.uids:
            return  # it was never made
        self.is_last = True
        for _ in range(100):
            await self.take()
            await asyncio.sleep(0.3)
            page = await self.page(HELD, ROWS, Position.START, 0, ALL_BYTES)
            if page is not None and page.up_to_date and self.end >= page.record:
                break
        else:
            raise AssertionError(f"a table stays at {self.end} though all is well")
        rows = sorted(self.rows.items())
        known = self.episode.recorder.history
        history = structs.replace(
            known,
            compacted=set(),
            polls=[],
            plain=[each for each in known.plain if each.began > self.since],
            transactions=[each for each in known.transactions if each.began > self.since],
        )
        found = check_transactions(history, Final({HELD: rows}))
        assert not found, f"{TABLE}: {found[:5]}"
