"""Bodies of snapshots: damaged ones are never answered, a store that is away is waited for, and
those of old snapshots are removed."""

from __future__ import annotations

import asyncio

import pytest
from polling import wait_for
from test_eviction import (
    BODIES,
    NOTED,
    bodies,
    collected,
    facts,
    meet_eviction,
    noted,
    play,
    publish,
)
from worlds.cold import FaultyStore
from worlds.service import World

from polynya.base.errors import CorruptData
from polynya.base.limits import SNAPSHOT_GRACE_MS, SNAPSHOTS_KEPT_MIN
from polynya.service.snapshots import Staged, body_of, stage
from polynya.stream.features.attributes.commands import SetAttributes
from polynya.stream.features.retention.commands import SetRetention
from polynya.stream.features.tables.commands import TableCommit
from polynya.stream.parts import Retention, SnapshotRule
from polynya.stream.replies import Code

EVERY_MS = 10_000
PUBLISHES = 1000
FLUSHED = 10  # bodies in a pack


@pytest.mark.parametrize("position", range(8))
def test_a_damaged_body_is_an_error_and_never_other_bytes(position: int) -> None:
    async def story(world: World) -> None:
        await noted(world)
        store = world.store
        assert isinstance(store, FaultyStore)
        found = 0
        for key, (data, *others) in store.objects.items():
            at = data.find(b"at two")
            if "/packs/" in key and at >= 0:
                found += 1
                damaged = bytearray(data)
                damaged[at + position % 6] ^= 1 << position
                store.objects[key] = (bytes(damaged), *others)
        assert found == 1
        info = await facts(world)
        marks = {mark.record: mark for mark in info.marks or ()}
        with pytest.raises(CorruptData):
            await body_of(world.service, info, marks[2])

    play(story)


def test_a_publish_waits_for_a_store_that_is_away() -> None:
    async def story(world: World) -> None:
        await world.create(NOTED)
        await world.append(NOTED, b"one;")
        store = world.store
        assert isinstance(store, FaultyStore)
        store.down = True
        info = await facts(world)
        staging = asyncio.ensure_future(stage(world.service, info, b"at one", diskless=True))
        calls = store.calls
        await wait_for(lambda: store.calls > calls + 2, what="the body to be put again and again")
        assert (await world.append(NOTED, b"two;")).record == 2, "appends do not wait"
        assert not staging.done() and await bodies(world) == {}
        world.clock.ms += 20_000
        store.down = False
        staged = await staging
        assert isinstance(staged, Staged), staged
        assert await publish(world, 1, b"at one") == Code.CREATED
        assert await bodies(world) == {1: b"at one"}

    play(story)


def test_attributes_set_between_the_copy_and_the_eviction_keep_the_stream() -> None:
    async def story(world: World) -> None:
        await world.create(NOTED)
        await world.append(NOTED, b"one;")

        async def changed() -> None:
            info = await facts(world)
            command = SetAttributes(NOTED, b'{"a":1}', world.clock.ms, info.uid, 0)
            assert (await world.send(command)).code in (Code.OK, Code.CREATED)

        await meet_eviction(world, changed)
        info = await facts(world)
        assert info.attributes is not None and info.attributes.value == b'{"a":1}'

    play(story)


def test_a_thousand_publishes_leave_the_packs_of_the_grace() -> None:
    async def story(world: World) -> None:
        await world.create(NOTED)
        rule = Retention(record_time=SnapshotRule(trims=1))
        assert (await world.send(SetRetention(NOTED, rule, world.clock.ms))).code == Code.OK
        readable = SNAPSHOT_GRACE_MS // EVERY_MS + SNAPSHOTS_KEPT_MIN
        for number in range(1, PUBLISHES + 1):
            world.clock.ms += EVERY_MS
            await world.append(NOTED, b"%d;" % number)
            assert await publish(world, number, b"body %d" % number) == Code.CREATED
            if number % FLUSHED == 0:
                await world.flusher.flush_now()
        assert len(await bodies(world)) == readable
        own = await facts(world, BODIES)
        assert readable <= own.record - own.first_record < readable + FLUSHED
        store = world.store
        assert isinstance(store, FaultyStore)
        left = [store.objects[key][0] for key in await collected(world) if "/packs/" in key]
        assert sum(b"body " in data for data in left) <= readable // FLUSHED + 2
        assert max(await bodies(world)) == PUBLISHES

    play(story)


def test_trims_to_snapshots_wait_for_a_table_that_holds() -> None:
    async def story(world: World) -> None:
        await world.tables.create("t", "test/", hold=True)
        await world.create(NOTED)
        rule = Retention(record_time=SnapshotRule(trims=1))
        assert (await world.send(SetRetention(NOTED, rule, world.clock.ms))).code == Code.OK

        async def first_kept(records: range) -> int:
            for number in records:
                await world.append(NOTED, b"%d;" % number)
                world.clock.ms += SNAPSHOT_GRACE_MS
                assert await publish(world, number, b"body %d" % number) == Code.CREATED
            return (await facts(world)).first_record

        assert await first_kept(range(1, 6)) == 0, "no record is in the table yet"
        await world.flusher.flush_now()
        job = await world.jobs.plan("t")
        assert job is not None
        commit = TableCommit(job.table.uid, job.job, "a1", "", "", "m1", "d1", 5, 0, world.clock.ms)
        await world.jobs.commit(commit)
        assert await first_kept(range(6, 9)) == 0, "the group has not heard of the commit"
        await world.flusher.flush_now()
        assert await world.jobs.plan("t") is not None, "the next claim tells it"
        assert await first_kept(range(9, 13)) == 5, "what the table has goes, and nothing else"

    play(story)
