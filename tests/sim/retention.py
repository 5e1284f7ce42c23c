"""Streams with retention by age or by bytes, their own or their bucket's. Data within the limits
stays unchanged. Once all is healthy nothing beyond them is left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from sim.workers import Shop

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import Page, ReadQuery, StreamInfo
from polynya.stream.features.pages.eviction import evicted_view
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.features.retention.rules import cut_of
from polynya.stream.parts import Retention
from polynya.stream.replies import Code

if TYPE_CHECKING:
    from sim.chaos import Episode
    from sim.cluster import Node

SHARE = 0.3  # of the worlds
WIDTH = 8  # bytes of each record
AGES, BYTES = (1, 3), (16, 80)
BUCKET = "kept"  # whose streams have what it says, and may be evicted meanwhile
OWN_BY_AGE, OWN_BY_BYTES = "keep/age", "keep/bytes"
NAMES = (OWN_BY_AGE, OWN_BY_BYTES, f"{BUCKET}/a", f"{BUCKET}/b")
FOLDERS = ("keep/", f"{BUCKET}/")


class Kept:
    """One stream, as its client knows it. `records`: number → payload, and a log time that it is
    not older than."""

    def __init__(self, name: str, retention: Retention) -> None:
        self.name, self.retention = name, retention
        self.records: dict[int, tuple[bytes, int]] = {}
        self.first = self.next = 0  # a read that begins now finds no less

    def begins(self, first: int, end: int, newest_ms: int) -> None:
        """Check the first record, and the end behind the last one; log time is `newest_ms` at
        most."""
        lost = [
            number
            for number, (_, since_ms) in self.records.items()
            if number < first and not self._is_over(number, since_ms, end, newest_ms)
        ]
        assert not lost, (
            f"{self.name}: {first} is the first of {end} by {newest_ms}; {lost} were to be kept: "
            f"{self.retention}"
        )

    def _is_over(self, number: int, since_ms: int, end: int, newest_ms: int) -> bool:
        age, keeps = self.retention.age_seconds, self.retention.bytes
        return (age is not None and since_ms + age * 1000 < newest_ms) or (
            keeps is not None and (end - number - 1) * WIDTH >= keeps
        )

    def saw(self, begin: int, content: bytes) -> None:
        """Check the records from that number on."""
        for at in range(0, len(content), WIDTH):
            number = begin + at // WIDTH
            payload, _ = self.records.get(number, (content[at : at + WIDTH], 0))
            assert payload == content[at : at + WIDTH], (
                f"{self.name}: record {number} is {content[at : at + WIDTH]!r}, and was {payload!r}"
            )


class RetentionClients:
    """Retention clients of one episode, one per name."""

    def __init__(self, episode: Episode, shop: Shop) -> None:
        self._episode, self._world, self._shop = episode, episode.world, shop
        random = Random(f"of bounded length {episode.seed}")
        self.strikes = random.random() < SHARE
        age, size = random.choice(AGES), random.choice(BYTES)
        self._of_bucket = random.choice(
            (Retention(age, None), Retention(None, size), Retention(age, size))
        )
        own = {OWN_BY_AGE: Retention(age, None), OWN_BY_BYTES: Retention(None, size)}
        self.kept = {name: Kept(name, own.get(name, self._of_bucket)) for name in NAMES}
        self.counts: Counter[str] = Counter()
        self._count = 0

    def clients(self) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self._client(name)) for name in NAMES] if self.strikes else []

    def saw(self, name: str, begin: int, content: bytes) -> None:
        """Record a read elsewhere: in a backup, or in a recovery."""
        if name in self.kept:
            self.kept[name].saw(begin, content)

    async def finish(self) -> None:
        """Wait on a healthy cluster until all expired data is gone without requests."""
        if not self.strikes:
            return
        random, left = Random("keeps"), [""]
        for name in NAMES:
            await self._surely(name, random, self._append)
        for _ in range(400):
            left = [text for name in NAMES if (text := self._left(name))]
            if not left:
                break
            await asyncio.sleep(0.2)
        assert not left, f"what is over stays, though all is well: {left}"
        for name in NAMES:
            await self._surely(name, random, self._read)

    async def _surely(
        self, name: str, random: Random, act: Callable[[str, Node], Awaitable[None]]
    ) -> None:
        """Run an action that must succeed on a healthy cluster."""
        for _ in range(50):
            with suppress(Unavailable, OutcomeUnknown):
                if await self._set(name, random):
                    return await act(name, random.choice(self._world.alive()))
            await asyncio.sleep(0.2)
        raise AssertionError(f"{name} cannot be used though all is well")

    def _left(self, name: str) -> str:
        """Describe the expired data that a stream still holds."""
        leader, retention = (
            self._world.leader(self._world.group_of(name)),
            self.kept[name].retention,
        )
        if leader is None:
            return f"nobody leads the group of {name}"
        machine = leader.engine.local.machines[self._world.group_of(name)]
        stream, now_ms = (
            machine.directory.streams.get(name) or evicted_view(machine, name),
            leader.engine.service.now_ms(),
        )
        assert stream is not None, f"{name} is not there on node {leader.number}"
        over = retention.age_seconds is not None and stream.first_record < stream.next_record
        if name in machine.directory.streams:
            over |= cut_of(stream, retention, now_ms).boundary is not None
        return f"{name}: {stream} with {retention}" if over else ""

    async def _client(self, name: str) -> None:
        random, is_set = Random(f"{name} {self._episode.seed}"), False
        while not self._episode.over:
            await asyncio.sleep(random.choice((0.05, 0.05, 0.3, 1.5, 4.0)))
            alive = self._world.alive()
            if alive:
                with suppress(Unavailable, OutcomeUnknown):
                    if not is_set:
                        is_set = await self._set(name, random)
                    elif random.random() < 0.6:
                        await self._append(name, random.choice(alive))
                    else:
                        await self._read(name, random.choice(alive))

    async def _set(self, name: str, random: Random) -> bool:
        """Create the stream and set its retention."""
        node = random.choice(self._world.alive() or [self._world.nodes[1]])
        try:
            created = await node.background.ask(node.create(name))
            if name.startswith(BUCKET):
                await node.background.ask(node.engine.service.set_bucket(BUCKET, self._of_bucket))
                return created.code in (Code.CREATED, Code.EXISTS)
            command = SetRetention(name, self.kept[name].retention, node.engine.service.now_ms(), 0)
            return bool((await node.background.ask(node.propose(name, command))).code == Code.OK)
        except (Unavailable, OutcomeUnknown):
            return False

    async def _append(self, name: str, node: Node) -> None:
        self._count += 1
        kept, payload = self.kept[name], b"k%06d;" % self._count
        since_ms = self._shop.stamps[self._world.group_of(name)]
        reply = await node.background.ask(node.append(name, payload))
        self.counts[f"append {Code(reply.code).name}"] += 1
        if reply.code == Code.OK:
            kept.saw(reply.first_record, payload)
            kept.records[reply.first_record] = (payload, since_ms)
            kept.next = max(kept.next, reply.record)

    async def _read(self, name: str, node: Node) -> None:
        """Read all that is there."""
        kept, at = self.kept[name], (-1, 0)
        while True:
            first, end = kept.first, kept.next
            page = await node.background.ask(
                node.engine.service.read(
                    ReadQuery(name, *at, bytes_max=self._world.page_bytes, whole_records=True)
                )
            )
            if not isinstance(page, Page):
                assert at[0] >= 0 and page.code == Code.TRIMMED, (
                    f"{name}: {page} from {at}, though it was created"
                )
                return  # what was next is over by now
            if page.up_to_date or not page.info.segment:  # a closed segment needs no leader
                self._saw(kept, page.info, (first, end))
            if at[0] < 0:
                assert page.begin_record == page.info.first_record, (
                    f"{name}: a page from the beginning begins at {page.begin_record}"
                )
            kept.saw(page.begin_record, b"".join(bytes(span.payload) for span in page.spans))
            self.counts["page"] += 1
            if page.up_to_date:
                return
            at = (page.record, page.byte)

    def _saw(self, kept: Kept, info: StreamInfo, least: tuple[int, int]) -> None:
        """Check that no record came back or is missing. `least`: where it began and ended when this
        was asked."""
        assert info.first_record >= least[0], (
            f"{kept.name}: what was trimmed is there again: {info} behind {least}"
        )
        assert info.record >= least[1], (
            f"{kept.name}: what was acknowledged is not there: {info} behind {least}"
        )
        kept.begins(info.first_record, info.record, self._shop.newest_ms())
        kept.first, kept.next = max(kept.first, info.first_record), max(kept.next, info.record)


def is_kept(name: str) -> bool:
    """Report whether a stream's data may have expired by now."""
    return name.startswith(FOLDERS)


__all__ = ["Kept", "RetentionClients", "is_kept"]
