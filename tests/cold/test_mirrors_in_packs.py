"""Mirrored batches with gaps between them are flushed, merged and read at their offsets."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds.cold import GROUPS, Tier, opened, play
from worlds.stream import kafka_batch

from polynya.base.names import group_of
from polynya.stream.features.appends.commands import MirrorBatch, MirrorGap
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.read_plan import HotPiece, ReadPlan, cut
from polynya.stream.replies import Code
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.kafka.records import placed_batches

NAME = "kafka/t/0"
GROUP = group_of(NAME, GROUPS)


class Mirror:
    """A mirrored partition in a tier, and a plain list of its batches."""

    def __init__(self) -> None:
        self.tier = Tier()
        self.tier.world.apply(GROUP, Create(NAME, self.tier.world.now, "", Encoding.KAFKA))
        self.stream = self.tier.world.machines()[GROUP].directory.streams[NAME]
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0

    def append(self, missing: int, records: int) -> None:
        at = self.end + missing
        payload = build_batch([Record(None, b"%d" % at, 1000)] * records)
        batch = kafka_batch(records, payload)
        command = MirrorBatch(NAME, self.tier.world.now, batch, None, 0, self.end, at)
        assert self.tier.world.apply(GROUP, command).code == Code.OK
        self.batches.append((at, payload))
        self.end = at + records

    def skip(self, missing: int) -> None:
        command = MirrorGap(NAME, self.tier.world.now, 0, self.end, self.end + missing)
        assert self.tier.world.apply(GROUP, command).code == Code.OK
        self.end += missing

    async def read(self, record: int) -> list[tuple[int, bytes]]:
        """The batches from the one that holds a record, or is behind it."""
        machine, found, byte = self.tier.world.machines()[GROUP], list[tuple[int, bytes]](), 0
        while record < self.end:
            plan = machine.plan_read(self.stream, record, byte, bytes_max=500, whole_records=True)
            assert isinstance(plan, ReadPlan)
            before, (record, byte) = (record, byte), (plan.record, plan.byte)
            for piece in [
                each for planned in plan.pieces for each in await opened(planned, self.tier.reader)
            ]:
                if isinstance(piece, HotPiece):
                    found += _batches(piece)
                    continue
                part = cut(await self.tier.reader.batches(piece.slice), piece.want)
                found += [batch for each in part.pieces for batch in _batches(each)]
                if (part.record, part.byte) != piece.want.until:  # the page is full
                    record, byte = part.record, part.byte
                    break
            assert (record, byte) != before
        return found

    async def check(self) -> None:
        assert await self.read(0) == self.batches
        for record in range(0, self.end, 7):
            behind = [each for each in self.batches if each[0] > record]
            holding = [each for each in self.batches if each[0] <= record][-1:]
            assert await self.read(record) in (behind, holding + behind)


def _batches(piece: Any) -> list[tuple[int, bytes]]:
    """Divide a piece, which may be several batches that lie one after the other."""
    return [
        (record, bytes(each)) for each, _, record in placed_batches(piece.payload, piece.record)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_batches_are_where_they_were(seed: int) -> None:
    async def story() -> None:
        chance, mirror = random.Random(seed), Mirror()
        for _ in range(60):
            mirror.append(chance.choice((0, 0, 1, 5)), chance.choice((1, 1, 3)))
            if chance.random() < 0.3:
                mirror.skip(chance.choice((1, 2)))
            if chance.random() < 0.5:
                await mirror.tier.flusher.flush_now()
            if chance.random() < 0.1:
                await mirror.tier.merger.merge_due()
        await mirror.check()
        await mirror.tier.flusher.flush_now()
        await mirror.tier.merger.merge_due()
        await mirror.check()

    play(story)


def test_a_marker_behind_each_flush_keeps_no_slices_apart() -> None:
    """The slice of a transaction covers the number of its marker, which comes before the flush."""

    async def story() -> None:
        mirror = Mirror()
        for _ in range(20):
            mirror.append(0, 2)
            mirror.skip(1)
            await mirror.tier.flusher.flush_now()
        assert len(mirror.tier.indexes()[NAME]) == 20
        await mirror.tier.merger.merge_due()
        assert len(mirror.tier.indexes()[NAME]) == 1
        await mirror.check()

    play(story)


def test_a_gap_of_any_width_is_read_across() -> None:
    async def story() -> None:
        mirror = Mirror()
        for missing in (0, 2**31, 2**33, 2**39, 1):
            mirror.append(missing, 1)
        await mirror.tier.flusher.flush_now()
        await mirror.tier.merger.merge_due()
        assert await mirror.read(0) == mirror.batches

    play(story)
