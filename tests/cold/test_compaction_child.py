"""The subprocess of key compaction: it answers as the computation in this process, and its end is a
failure of one pass."""

from __future__ import annotations

import asyncio

import pytest
from google_crc32c import value as crc32c
from worlds.in_process import HereWorker

from polynya.cold.compaction.child import ChildWorker, CompactionFailed, Worker
from polynya.cold.compaction.work import (
    Answer,
    MapBegin,
    MapPiece,
    Piece,
    RewriteBegin,
    RewritePiece,
)
from polynya.stream.parts import ColdSlice, Encoding
from polynya.stream.state.model import HotBatch
from polynya.wire.kafka.batches import Record, build_batch
from polynya.wire.slice_building import build_slice

pytestmark = pytest.mark.process


def piece() -> Piece:
    """Build a slice of two batches with the same keys."""
    payloads = [build_batch([Record(b"a", value), Record(b"b", value)]) for value in (b"1", b"2")]
    byte, batches = 0, []
    for at, payload in enumerate(payloads):
        batches.append(
            HotBatch(2 * at, byte, 2, payload, b"", crc32c(payload), 1, 1, Encoding.KAFKA, 0)
        )
        byte += len(payload)
    meta, parts = build_slice(Encoding.KAFKA, 0, 0, batches)
    data = b"".join(parts)
    return Piece(
        ColdSlice(0, 0, 4, byte, "p", 0, len(data), meta.crc, 1, Encoding.KAFKA, batches=2), data
    )


async def steps(worker: Worker) -> list[Answer]:
    return [
        await worker.run(request)
        for request in (
            MapBegin(100, b"seed"),
            MapPiece(piece()),
            RewriteBegin(0, 0, 4, 1 << 20, 3),
            RewritePiece(piece()),
            RewritePiece(None),
        )
    ]


def test_a_subprocess_answers_as_the_computation_here() -> None:
    async def story() -> None:
        child = ChildWorker()
        try:
            answers = await steps(child)
            assert answers == await steps(HereWorker())
            (made,) = answers[-1].rewritten
            assert made.dropped_records == 2
        finally:
            await child.close()

    asyncio.run(story())


def test_a_subprocess_that_ends_fails_one_pass() -> None:
    async def story() -> None:
        child = ChildWorker()
        try:
            await child.run(MapBegin(100, b"seed"))
            assert child._process is not None
            child._process.kill()
            with pytest.raises(CompactionFailed, match="the compaction process failed"):
                await child.run(MapPiece(piece()))
            assert (await steps(child))[-1].rewritten
        finally:
            await child.close()
        assert child._process is None

    asyncio.run(story())
