"""Damage in memory costs the stream that has it: it is read again, or the stream is set aside. No
pack ever has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from google_crc32c import value as crc32c
from worlds.cold import GROUPS, Tier, play
from worlds.service import World

from polynya.base.errors import CorruptData, Unavailable
from polynya.base.names import group_of
from polynya.engine.repair import Repairer
from polynya.objectstore import MemoryStore
from polynya.replica import Group
from polynya.stream.features.appends.commands import Append
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.retention.commands import Trim
from polynya.stream.machine import Machine
from polynya.stream.parts import Batch, Encoding
from polynya.stream.replies import Code
from polynya.stream.state.model import HotBatch, Stream
from polynya.wal import Journal
from polynya.wire.pack import damaged_slices
from polynya.wire.slice_building import is_intact

A, B = "default/a", "default/b"


def stream_of(tier: Tier, name: str) -> Stream:
    return tier.world.machines()[group_of(name, GROUPS)].directory.streams[name]


def test_one_damaged_stream_leaves_all_others_to_the_flusher() -> None:
    async def story() -> None:
        tier = Tier()
        for name in (A, B):
            for payload in (b"good", b"bad!", b"last"):
                tier.append(name, payload)
        stream = stream_of(tier, A)
        assert stream.hot
        stream.hot[1].payload = b"baD!"
        with pytest.raises(Unavailable, match="damaged: a"):
            await tier.flusher.flush_now()
        assert stream.uid in tier.world.faulted and "a" in (tier.world.faulted.trouble() or "")
        assert tier.world.faulted.bytes == tier.world.faulted.bytes_of(group_of(A, GROUPS)) == 12
        assert (
            await tier.world.read(B, tier.reader) == b"goodbad!last"
            and stream_of(tier, B).hot is None
        )
        assert stream.hot and len(stream.hot) == 3, "they stay, and so does the journal"
        assert all(
            not damaged_slices(data)
            for data in [await tier.store.get(key) for key in tier.store.objects]
        )
        tier.append(B, b"more")
        await tier.flusher.flush_now(B)
        assert stream_of(tier, B).hot is None

    play(story)


def test_a_damaged_batch_is_read_again_and_packed_as_it_came() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append(A, b"good")
        stream = stream_of(tier, A)
        assert stream.hot
        tier.world.kept[stream.uid, 0] = b"good"
        stream.hot[0].payload = b"goof"
        await tier.flusher.flush_now()
        assert not len(tier.world.faulted) and stream.hot is None
        assert await tier.world.read(A, tier.reader) == b"good"

    play(story)


@pytest.mark.parametrize("lengths", [b"\x04", b"\x01\x00\x00\x00"])
def test_lengths_that_do_not_fit_are_a_fault_of_their_stream(lengths: bytes) -> None:
    async def story() -> None:
        tier = Tier()
        tier.append(A, b"good")
        tier.append(B, b"good")
        stream = stream_of(tier, A)
        assert stream.hot
        stream.hot[0].lengths, stream.hot[0].records = lengths, 2
        with pytest.raises(Unavailable):
            await tier.flusher.flush_now()
        assert stream.uid in tier.world.faulted and stream_of(tier, B).hot is None

    play(story)


def test_the_loop_goes_on_and_is_not_hurried_by_what_it_cannot_store() -> None:
    async def story() -> None:
        tier = Tier()
        tier.append(A, b"x" * 5000)
        stream = stream_of(tier, A)
        assert stream.hot
        stream.hot[0].crc ^= 1
        assert await tier.flusher.flush_due() == 0
        assert stream.uid in tier.world.faulted and tier.flusher._hot_bytes() == 0
        assert tier.flusher.trouble() is None, "the store is well"
        tier.append(B, b"x" * 5000)
        assert await tier.flusher.flush_due() == 1

    play(story)


def test_a_stream_that_is_trimmed_behind_the_damage_is_well_again() -> None:
    async def story() -> None:
        tier = Tier()
        for payload in (b"bad!", b"good"):
            tier.append(A, payload)
        stream = stream_of(tier, A)
        assert stream.hot
        stream.hot[0].crc ^= 1
        group = group_of(A, GROUPS)
        tier.world.faulted.set_aside(group, stream.uid, 4, "a test")
        tier.world.apply(group, Trim([(stream.uid, 1, 4)], tier.world.now))
        await tier.flusher.flush_due()
        await tier.flusher.flush_now()
        assert not len(tier.world.faulted) and tier.world.faulted.bytes == 0 and stream.hot is None

    play(story)


# --- a core with a journal


def hot_of(world: World, name: str) -> list[HotBatch]:
    stream = world.local.machines[world.service.group_of(name)].directory.streams[name]
    return stream.hot or []


async def append_damaged(world: World, name: str, payload: bytes) -> None:
    """Append a batch with the checksum of other bytes, as if damaged on its way to the journal."""
    batch = Batch(Encoding.BYTES, 1, payload, crc32c(payload[::-1]))
    assert (await world.send(Append(name, world.clock.ms, "text/plain", batch))).code == Code.OK


def test_the_journal_gives_back_what_was_damaged_in_memory() -> None:
    async def story() -> None:
        world = World().start()
        await world.create(A)
        # a bundle
        await asyncio.gather(*(world.append(A, b"record %d\n" % number) for number in range(4)))
        hot = hot_of(world, A)
        hot[2].payload = b"recorx 2\n"
        hot[3].crc ^= 1
        await world.flusher.flush_now()
        assert (
            world.engine.repairer.repaired == 2
            and not hot_of(world, A)
            and not len(world.local.faulted)
        )
        assert await world.read(A) == b"record 0\nrecord 1\nrecord 2\nrecord 3\n"
        assert isinstance(world.store, MemoryStore)
        assert all(
            not damaged_slices(data)
            for data in [await world.store.get(key) for key in world.store.objects]
        )
        assert (await world.append(A, b"more")).code == Code.OK
        await world.stop()

    play(story)


def test_a_copy_forward_never_replaces_the_journal_by_what_is_damaged_in_memory() -> None:
    async def story() -> None:
        world = World().start()
        await world.create(A)
        await world.create(B)
        await world.append(A, b"good")
        for _ in range(8):
            await world.append(B, b"x" * 20_000)
        hot_of(world, A)[0].payload = b"goof"
        world.engine.snapshotter._keep_bytes = 0
        await world.snapshot()
        world.kill()
        assert await world.read(A) == b"good"
        await world.stop()

    play(story)


def test_a_stream_that_cannot_be_stored_is_set_aside_after_each_start() -> None:
    async def story() -> None:
        world = World()
        world.hot_bytes_max = 40
        world.start()
        for name in (A, B):
            await world.create(name)
        await world.append(A, b"first")
        await append_damaged(world, A, b"second, and long enough")
        await world.append(A, b"third")
        for _ in range(2):
            await world.append(B, b"others go on")
            with pytest.raises(Unavailable, match="damaged: a"):
                await world.flusher.flush_now()
            assert (await world.append(A, b"no")).code == Code.STREAM_FAULTED
            assert not hot_of(world, B) and len(hot_of(world, A)) == 3
            assert world.local.memory.bytes == 0 and world.hot_bytes == 33
            page = await world.page(A)
            assert (
                b"".join(bytes(span.payload) for span in page.spans),
                page.record,
                page.up_to_date,
            ) == (b"first", 1, False)
            with pytest.raises(CorruptData, match="record 1 of a is damaged"):
                await world.page(A, 1, 5)
            assert bytes((await world.page(A, 2, 28)).spans[0].payload) == b"third"
            assert (await world.append(B, b"x" * 30)).code == Code.OK, (
                "its hot bytes are out of the bounds"
            )
            await world.flusher.flush_now(B)
            position = hot_of(world, A)[0].position
            await world.snapshot()
            assert hot_of(world, A)[0].position == position and position >> 32 in dict(
                world.engine.core.journal.segments.sizes()
            )
            world.kill()
            assert not world.faults and not len(world.local.faulted)
        with pytest.raises(Unavailable):
            await world.flusher.flush_now()
        await world.delete(A)
        await world.flusher.flush_due()
        assert world.local.faulted.trouble() is None and world.local.faulted.bytes == 0
        await world.stop()

    play(story)


class Wire:
    """The connection between two members."""

    def __init__(self) -> None:
        self.handlers: list[Callable[[bytes, Callable[[bytes], None], int], None]] = []

    def on(self, kind: int, handler: Callable[[bytes, Callable[[bytes], None], int], None]) -> None:
        self.handlers.append(handler)

    def call_nowait(
        self, core: int, kind: int, body: bytes, done: Callable[[bytes | BaseException], None]
    ) -> None:
        if core >= len(self.handlers):
            done(Unavailable("it is away"))
        else:
            self.handlers[core](body, done, 0)


class Broken:
    def __init__(self) -> None:
        self.segments = self

    def read_entry(self, position: int, *, within: int = 1) -> None:
        raise CorruptData("the segment is damaged")


@pytest.mark.parametrize(("peer", "gives"), [(b"good", True), (b"goof", False), (b"", False)])
def test_another_member_gives_what_the_journal_does_not(peer: bytes, gives: bool) -> None:
    async def story() -> None:
        wire, repairers, batches = Wire(), [], []
        for payload in (b"goof", peer):
            machine = Machine(1)
            machine.apply(Create(A, 1, "text/plain", Encoding.BYTES), 1)
            if payload:
                machine.apply(
                    Append(A, 1, "text/plain", Batch(Encoding.BYTES, 1, payload, crc32c(b"good"))),
                    2,
                )
            batches.append(machine.directory.streams[A].hot or [])
            repairers.append(Repairer(cast("Journal", Broken()), {1: Group(1, machine)}))
            repairers[-1].join(wire, lambda group: [7, 1])
        assert await repairers[0].repair(1, (1 << 48) + 1, batches[0]) is gives
        assert (
            batches[0][0].payload == (b"good" if gives else b"goof")
            and is_intact(batches[0][0]) is gives
        )

    play(story)
