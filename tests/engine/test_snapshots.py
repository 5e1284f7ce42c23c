"""Snapshots and the release of segments: released segments are never needed, and quiet streams pin
nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stories.service import story_of
from worlds.fake_disk import FakeDisk
from worlds.service import World, name_in

from polynya.engine.snapshots import snapshotter
from polynya.wal import DiskFull
from polynya.wal.snapshots import SnapshotLink

NAMES = [name_in(group) for group in (1, 2, 3, 4)]


def small_segments() -> World:
    world = World()
    world.segment_bytes = 4096
    return world


story = story_of(small_segments)


async def grow(world: World, name: str, bytes_count: int) -> bytes:
    """Appends of 500 bytes."""
    sent = []
    for number in range(bytes_count // 500):
        sent.append(b"%04d" % number * 125)
        await world.append(name, sent[-1])
    return b"".join(sent)


def segments(world: World) -> list[int]:
    return [number for number, _ in world.engine.core.journal.segments.sizes()]


@story
async def test_what_is_released_is_never_needed(world: World) -> None:
    expected = dict.fromkeys(NAMES, b"")
    for name in NAMES:
        await world.create(name)
    for turn in range(12):
        name = NAMES[turn % 3]
        expected[name] += await grow(world, name, 5000)
        if turn % 2:
            await world.service.flush(name)
        await world.snapshot()
        world.kill() if turn % 3 else world.power_cut()
        state = world.state()
        for other in NAMES:
            assert await world.read(other) == expected[other]
        world.kill()
        assert world.state() == state
    assert segments(world)[0] > 5


@story
async def test_a_snapshot_names_hot_batches_that_were_flushed_while_the_others_were_written(
    world: World,
) -> None:
    """The segments that the snapshot on the disk reads must stay, though today's machine needs them
    no more."""
    await world.create(NAMES[0])
    expected = await grow(world, NAMES[0], 20_000)
    write = world.engine.storage.snapshots.write_delta
    loop = asyncio.get_running_loop()

    def write_and_flush(group: int, term: int, index: int, *rest: Any) -> SnapshotLink:
        link = write(group, term, index, *rest)
        if group == 2:  # the snapshot of group 1 is on the disk
            asyncio.run_coroutine_threadsafe(world.service.flush(""), loop).result()
        return link

    world.engine.storage.snapshots.write_delta = write_and_flush  # type: ignore[method-assign]
    await world.snapshot()
    assert world.hot_bytes == 0
    world.kill()
    assert await world.read(NAMES[0]) == expected


@story
async def test_quiet_groups_do_not_hold_the_journal(world: World) -> None:
    for name in NAMES:
        await world.create(name)
    for _ in range(6):
        await grow(world, NAMES[0], 10_000)
        await world.service.flush("")
        await world.snapshot()
    assert len(segments(world)) <= 2
    count = world.engine.snapshotter.counters.count
    await world.snapshot()
    assert world.engine.snapshotter.counters.count == count, "nothing has changed"


@story
async def test_hot_batches_of_quiet_streams_are_copied_forward(world: World) -> None:
    """Run with the backend `none`: nothing is ever flushed, and old segments are still released."""
    world.engine.snapshotter._keep_bytes = 10_000
    await world.create(NAMES[0])
    await world.create(NAMES[1])
    expected = await grow(world, NAMES[0], 3000)
    for _ in range(12):
        await world.append(NAMES[1], b"y" * 3000)
        await world.send(world.create_of(NAMES[2]))
        await world.delete(NAMES[1])
        await world.create(NAMES[1])
        await world.snapshot()
    assert segments(world)[0] > 4 and len(segments(world)) < 8
    assert world.engine.core.counters.copied > 6
    world.power_cut()
    assert await world.read(NAMES[0]) == expected
    hot = next(iter(world.local.machines[1].directory.hot.values())).hot
    assert hot is not None and [bytes(batch.payload) for batch in hot] == [
        b"%04d" % number * 125 for number in range(6)
    ]


@story
async def test_copies_of_json_and_of_producers_restore_the_same_state(world: World) -> None:
    world.engine.snapshotter._keep_bytes = 1
    await world.create(NAMES[0], json=True)
    await world.append(NAMES[0], b'{"a":1}', b"[2]", json=True)
    await grow(world, NAMES[1], 0)
    await world.create(NAMES[1])
    await grow(world, NAMES[1], 20_000)
    await world.snapshot()
    assert world.engine.core.counters.copied
    state = world.state()
    world.kill()
    assert world.state() == state
    assert await world.read(NAMES[0]) == b'{"a":1},[2],'


@story
async def test_covered_time_is_what_the_snapshots_contain(world: World) -> None:
    await world.create(NAMES[0])
    stamped = world.clock.ms
    in_flight = world.send(world.append_of(NAMES[0], b"x"))
    world.clock.ms += 1
    await world.snapshot()
    assert in_flight.done() and world.engine.snapshotter.covered_ms == stamped + 1
    world.engine.snapshotter.want()
    assert world.engine.snapshotter.due()
    await world.snapshot()
    assert not world.engine.snapshotter.due()


@story
async def test_a_failed_round_is_tried_again_after_a_while(world: World) -> None:
    await world.create(NAMES[0])
    world.engine.snapshotter.want()
    disk: FakeDisk = world.disk
    disk.capacity = disk.used()
    with pytest.raises(DiskFull):
        await world.snapshot()
    assert world.engine.snapshotter.covered_ms == 0
    assert [
        world.engine.snapshotter.due() for _ in range(snapshotter.SKIPS_AFTER_FAILURE + 1)
    ].count(True) == 1
    disk.capacity = 1 << 40
    await world.snapshot()
    assert world.engine.snapshotter.covered_ms == world.clock.ms


@story
async def test_a_release_that_waited_in_an_outbox_counts_from_its_arrival(world: World) -> None:
    """The grace of an object begins when its owner group hears of the release, however old the
    delete is."""
    await world.create(NAMES[0])
    await world.append(NAMES[0], b"x")
    await world.service.flush("")
    world.engine.core.after_turn.clear()  # nothing is sent from the outbox
    await world.delete(NAMES[0])
    world.clock.ms += 3_600_000
    await world.snapshot()
    world.kill()
    await world.settle()
    await world.collector.collect()
    [(key, pack)] = [
        item for machine in world.local.machines.values() for item in machine.packs.owned.items()
    ]
    assert pack.condemned_ms == world.clock.ms and not pack.groups
    world.clock.ms += 61_000
    await world.collector.collect()
    assert any(machine.packs.owned for machine in world.local.machines.values()), (
        "the snapshot does not contain the release yet"
    )
    await world.snapshot()
    await world.collector.collect()
    assert not any(machine.packs.owned for machine in world.local.machines.values())
    assert [info.key async for info in world.store.list("")] == []
    assert key
