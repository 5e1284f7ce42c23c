"""Members that lag beyond the logs: their snapshots go through the disk in small pieces, under all
failures."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any
from unittest.mock import patch

from msgspec import structs
from sim.cluster import GROUPS, Node, World
from sim.parts import settings_of
from stories.cluster import A, led, outrun, stories

from polynya.engine.snapshots import catch_up
from polynya.engine.snapshots import receive as arriving
from polynya.raft import ChunkWanted, Configuration, Snapshot, SnapshotChunk, decode_message
from polynya.wal.scratch import Scratch

CHUNK = 1000
WINDOW = 4000


async def one_behind() -> tuple[World, Node, Node]:
    """A leader, and a node that is far behind and dead."""
    world = World()
    world.settings = lambda *about: structs.replace(
        settings_of(*about), chunk_bytes=CHUNK, chunk_window_bytes=WINDOW
    )
    _, leader = await led(world)
    behind = next(node for node in world.alive() if node is not leader)
    behind.kill()
    await outrun(world, leader)
    return world, leader, behind


async def none_left(world: World) -> None:
    await world.wait_equal()
    for node in world.alive():
        assert node.engine.exchange is not None and not node.engine.exchange.arriving._arrivals
        assert not [path for path in node.disk.files if path.suffix == ".tmp"]


story = stories(one_behind, none_left)


def chunks(world: World, to: Node) -> list[int]:
    """Offsets of the chunks that are carried to a node, as they come."""
    seen: list[int] = []
    carry = world.carry

    def look(sender: Node, node: int, messages: list[bytes]) -> None:
        if node == to.number:
            seen.extend(
                message.offset
                for message in map(decode_message, messages)
                if isinstance(message, SnapshotChunk)
            )
        carry(sender, node, messages)

    world.carry = look  # type: ignore[method-assign]
    return seen


@story
async def test_a_member_that_only_reads_leaves_room_for_one_that_votes(
    world: World, leader: Node, behind: Node
) -> None:
    there, now = leader.engine.exchange, asyncio.get_running_loop().time()
    assert there is not None and not there._packed
    far = there._packed[1, 9, 9] = catch_up._Packed(
        deque([ChunkWanted(9, Snapshot(9, 1, Configuration((1,))), 0, 1)]), now, reads=True
    )
    assert not there._make_room(now, True) and there._make_room(now, False)
    far.asked.clear()
    assert there._make_room(now + catch_up.IDLE_SECONDS, True) and not there._packed, (
        "one that is not asked for goes"
    )
    behind.start()


@story
async def test_a_break_is_gone_on_from(world: World, leader: Node, behind: Node) -> None:
    seen = chunks(world, behind)
    behind.start()
    await world.wait(lambda: len(seen) > 5)
    world.isolate(behind.number)
    await asyncio.sleep(0.3)
    at = len(seen)
    world.heal()
    await world.wait_equal()
    assert seen[:at].count(0) == 1 and min(seen[at:]) > 0, "it did not begin anew"


@story
async def test_a_sender_whose_disk_is_slow_reads_nothing_twice(
    world: World, leader: Node, behind: Node
) -> None:
    """Replace a chunk request on retry: kept beside the first one, the queue would grow ahead of
    the receiver's next chunk."""
    seen, in_thread = chunks(world, behind), asyncio.to_thread

    async def slowly(work: Any, /, *about: Any) -> Any:
        if isinstance(getattr(work, "__self__", None), Scratch) and work.__name__ == "read_checked":
            await asyncio.sleep(1.0)
        return await in_thread(work, *about)

    with patch.object(asyncio, "to_thread", slowly):
        behind.start()
        await world.wait(
            lambda: (
                behind.core.members[1].raft.commit >= leader.core.members[1].raft.snapshot.index
            ),
            120.0,
        )
    assert len(set(seen)) > 5 and len(seen) <= len(set(seen)) + 1


@story
async def test_a_file_that_was_damaged_where_it_waits_is_made_anew(
    world: World, leader: Node, behind: Node
) -> None:
    """Rebuild the file: the receiver would refuse the damaged one each time."""
    seen, pack, packed = chunks(world, behind), catch_up.pack_transfer, 0

    def packing(*about: Any) -> None:
        nonlocal packed
        pack(*about)
        file, packed = about[-1], packed + 1
        if packed == 1:
            damaged = bytes(byte ^ 1 for byte in file.read(file.size - 1, 1))
            file._files.write(file._fd, [damaged], file.size - 1)

    with patch.object(catch_up, "pack_transfer", packing):
        behind.start()
        await world.wait(
            lambda: (
                behind.core.members[1].raft.commit >= leader.core.members[1].raft.snapshot.index
            ),
            20.0,
        )
    assert packed == 2 and len(seen) <= 2 * len(set(seen))


@story
async def test_a_receiver_that_dies_leaves_nothing_and_gets_it_again(
    world: World, leader: Node, behind: Node
) -> None:
    seen = chunks(world, behind)
    behind.start()
    await world.wait(lambda: len(seen) > 5)
    behind.kill()
    assert not [path for path in behind.disk.files if path.suffix == ".tmp"]
    behind.start()
    await world.wait_equal()
    assert seen.count(0) >= 2


@story
async def test_a_sender_that_dies_is_followed_by_another(
    world: World, leader: Node, behind: Node
) -> None:
    seen = chunks(world, behind)
    behind.start()
    await world.wait(lambda: len(seen) > 5)
    leader.kill(power=0.5)
    await asyncio.sleep(1)
    leader.start()
    await world.wait_equal()


@story
async def test_a_slow_receiver_holds_up_nobody(world: World, leader: Node, behind: Node) -> None:
    """Send to a disk that takes half a second for a chunk. Appends continue at full speed, and the
    queue is bounded on both sides."""
    held: list[int] = []
    behind.start()
    there = behind.engine.exchange.arriving  # type: ignore[union-attr]
    store = there._store_kept

    async def slowly(*about: object) -> None:
        await asyncio.sleep(0.5)
        held.append(sum(arrival.queued for arrival in there._arrivals.values()))
        await store(*about)  # type: ignore[arg-type]

    there._store_kept = slowly  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    slowest = 0.0
    for number in range(40):
        begin = loop.time()
        await leader.append(A, b"z%d" % number)
        slowest = max(slowest, loop.time() - begin)
        await asyncio.sleep(0.05)
        assert len(leader.engine.exchange._packed) <= catch_up.PACKED_MAX  # type: ignore[union-attr]
    assert held and max(held) <= WINDOW + CHUNK
    assert slowest < 0.1
    there._store_kept = store  # type: ignore[method-assign]


@story
async def test_a_receiver_without_room_begins_anew_when_there_is(
    world: World, leader: Node, behind: Node
) -> None:
    seen = chunks(world, behind)
    behind.start()
    await world.wait(lambda: len(seen) > 5)
    behind.disk.capacity = behind.disk.used()
    await asyncio.sleep(3)
    behind.disk.capacity = 1 << 40
    await world.wait_equal()
    assert seen.count(0) > 1


@story
async def test_many_groups_at_once_take_turns(world: World, leader: Node, behind: Node) -> None:
    """Take turns between many groups: no node holds more than its share."""
    names = [
        next(name for n in range(999) if world.group_of(name := f"test/n{n}") == group)
        for group in range(1, GROUPS + 1)
    ]
    for name in names:
        group = world.group_of(name)
        await world.wait(lambda group=group: world.leader(group))
        first = world.leader(group)
        assert first is not None
        if name != A:
            await first.create(name)
        for _ in range(30):
            await first.append(name, b"x" * 1000)
    for _ in range(4):
        for node in world.alive():
            await node.snapshot()
        for name in names:
            first = world.leader(world.group_of(name))
            assert first is not None
            await first.append(name, b"y" * 9000)
    most_out = most_in = 0

    def look() -> None:
        nonlocal most_out, most_in
        for node in world.alive():
            assert node.engine.exchange is not None
            most_out = max(most_out, len(node.engine.exchange._packed))
            most_in = max(most_in, len(node.engine.exchange.arriving._arrivals))
        asyncio.get_running_loop().call_later(0.01, look)

    catch_up.PACKED_MAX, arriving.ARRIVING_MAX = 2, 1
    try:
        look()
        behind.start()
        await world.wait_equal()
    finally:
        catch_up.PACKED_MAX, arriving.ARRIVING_MAX = 2, 4
    assert (most_out, most_in) == (2, 1)


@story
async def test_a_dead_member_takes_no_place_among_snapshots(
    world: World, leader: Node, behind: Node
) -> None:
    there = leader.engine.exchange
    await asyncio.sleep(catch_up.PACKED_SECONDS + 10)
    assert there is not None and not there._packed
    behind.start()
    await world.wait(lambda: there._packed)


async def two_behind() -> tuple[World, Node, Node, Node]:
    """A leader, a member that takes no chunk of an older snapshot, and a dead one that needs a
    newer one."""
    world = World(count=5)
    world.settings = lambda *about: structs.replace(
        settings_of(*about), chunk_bytes=CHUNK, chunk_window_bytes=WINDOW
    )
    _, leader = await led(world)
    deaf, behind = [node for node in world.alive() if node is not leader][:2]
    deaf.kill()
    await outrun(world, leader)
    deaf.start()
    deaf.core.on_chunk = lambda member, message: None
    await world.wait(lambda: leader.engine.exchange._packed)  # type: ignore[union-attr]
    behind.kill()
    await outrun(world, leader)
    return world, leader, behind, deaf


@stories(two_behind, none_left)
async def test_a_member_that_takes_no_chunk_keeps_no_other_from_its_snapshot(
    world: World, leader: Node, behind: Node, deaf: Node
) -> None:
    """Evict a snapshot whose first chunk is requested again and again."""
    index = leader.core.members[1].raft.snapshot.index
    with patch.object(catch_up, "PACKED_MAX", 1):
        behind.start()
        await world.wait(lambda: behind.core.members[1].raft.commit >= index)
        deaf.kill()
        deaf.start()
        await world.wait_equal()


@story
async def test_a_snapshot_that_is_written_anew_at_its_index_is_not_sent_under_its_old_name(
    world: World, leader: Node, behind: Node
) -> None:
    """Copy the hot payload forward: the rewritten snapshot has other positions in it, at the same
    size."""
    seen, there, group = chunks(world, behind), leader.engine.exchange, world.group_of(A)
    assert there is not None
    leader.engine.snapshotter._keep_bytes = -1
    for _ in range(2):
        await leader.snapshot()
    before = leader.core.members[group].raft.snapshot
    behind.start()
    await world.wait(lambda: len(seen) > 3)
    world.isolate(behind.number)
    await asyncio.sleep(0.3)
    for key in list(there._packed):
        there._forget(key)  # as after a pause without requests
    await leader.snapshot()
    now = leader.core.members[group].raft.snapshot
    assert (now.index, now.size) == (before.index, before.size) and now.identity != before.identity
    world.heal()


@story
async def test_one_that_has_come_to_rest_makes_room_for_another(
    world: World, leader: Node, behind: Node
) -> None:
    """Free the slot of an idle transfer. Otherwise two groups could wait for each other, one at
    the receiver, one at the sender."""
    arriving.ARRIVING_MAX = 1
    try:
        behind.start()
        there, other = behind.engine.exchange.arriving, behind.core.members[0]  # type: ignore[union-attr]
        there._arrivals[0] = resting = arriving._Arrival(
            other, [], asyncio.get_running_loop().time()
        )
        resting.idle.set()
        await asyncio.sleep(arriving.IDLE_SECONDS - 0.5)
        assert there._arrivals == {0: resting}
        await world.wait(lambda: 0 not in there._arrivals, 2.0)
        await world.wait_equal()
    finally:
        arriving.ARRIVING_MAX = 4


@story
async def test_a_damaged_snapshot_is_written_anew_and_sent(
    world: World, leader: Node, behind: Node
) -> None:
    """Rewrite the snapshot from memory: the damaged file could neither be sent nor be read at a
    start."""
    snapshotter, group = leader.engine.snapshotter, world.group_of(A)
    snapshotter._small_streams, snapshotter._every_bytes = -1, 1 << 30
    for name in [name for n in range(99) if world.group_of(name := f"test/n{n}") == group][:9]:
        await leader.create(name)
    await leader.snapshot()
    await leader.append(A, b"z")
    await leader.snapshot()
    files = sorted(path for path in leader.disk.files if path.name.startswith(f"g{group:05d}"))
    assert len(files) == 2 and not snapshotter.due(), "what changed since the first"
    leader.disk.flip(files[0], -1)
    behind.start()
    await world.wait(snapshotter.due)
    await leader.snapshot()
    await world.wait_equal()
    leader.kill()
    leader.start()


@story
async def test_appends_that_the_journal_has_no_more_as_they_were_are_written_again_and_sent(
    world: World, leader: Node, behind: Node
) -> None:
    snapshotter, group = leader.engine.snapshotter, world.group_of(A)
    await leader.snapshot()
    snapshotter._every_bytes = 1 << 30
    hot = next(hot for _, hot in leader.engine.local.machines[group].directory.flush_candidates())
    position = hot[0].position
    leader.disk.flip(
        Path(f"/core-0/journal/{position >> 32:010d}.journal"), (position & 0xFFFFFFFF) + 500
    )
    assert not snapshotter.due()
    behind.start()
    await world.wait(snapshotter.due)
    assert hot[0].position > position
    await leader.snapshot()
    await world.wait_equal()
