"""Appends to several streams at once in a simulated cluster: all or none, at each node, while
leaders are killed, and found again after restarts."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from sim.cluster import Node, World
from stories.cluster import stories
from test_conditions_in_a_cluster import begun
from worlds.service import raw_batch

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.stream.features.appends.commands import Append, AppendAll, AppendIf
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.features.profiles.commands import Profile
from polynya.stream.parts import Encoding, Producer, SegmentLimits
from polynya.stream.replies import Code, Reply

NAMES = ("test/{o}a", "test/{o}b", "test/{o}c")
story = stories(begun)


async def create(world: World, name: str, **more: object) -> None:
    command = Create(name, 0, "text/plain", Encoding.BYTES, **more)  # type: ignore[arg-type]
    assert (await world.alive()[0].propose(name, command)).code == Code.CREATED


async def append_all(
    node: Node, payload: bytes, record: int, producer: Producer | None = None
) -> Reply:
    """Append to all streams if the first one ends at `record`."""
    first = AppendIf(NAMES[0], 0, "text/plain", raw_batch(payload), producer, record=record)
    rest = [Append(name, 0, "text/plain", raw_batch(payload), producer) for name in NAMES[1:]]
    return await node.propose(NAMES[0], AppendAll([first, *rest]))


async def contents(node: Node) -> list[bytes]:
    return [await node.read(name) for name in NAMES]


@story
async def test_one_writer_of_many_wins_and_all_is_found_again(world: World) -> None:
    for name in NAMES:
        await create(world, name)
    for round_ in range(5):
        replies = await asyncio.gather(
            *(
                append_all(node, b"%d.%d;" % (round_, node.number), round_)
                for node in world.alive()
                for _ in range(5)
            )
        )
        assert sorted(reply.code for reply in replies) == [Code.OK] + [Code.NONE_APPENDED] * 14
        number, refused = next(
            reply.detail for reply in replies if reply.code == Code.NONE_APPENDED
        )
        assert (number, refused[0]) == (0, Code.PRECONDITION)
    first, *others = await contents(world.nodes[2])
    assert others == [first, first] and first.count(b";") == 5
    await world.wait_equal()
    for node in world.alive():
        await node.snapshot()  # which refers to the payloads by their positions in the journal
    for node in list(world.nodes.values()):
        node.kill(power=1.0)
        node.start()
    await world.wait_leaders()
    assert await contents(world.nodes[1]) == [first] * 3
    lost = world.nodes[3]
    lost.kill()
    lost.lose_disk()
    lost.start()
    await world.wait_equal()
    assert await contents(lost) == [first] * 3


@story
async def test_killed_leaders_leave_all_or_none(world: World) -> None:
    for name in NAMES:
        await create(world, name)

    async def writer(number: int) -> None:
        sequence = 0
        while sequence < 12:
            node = world.alive()[number % len(world.alive())]
            payload, producer = b"%d.%d;" % (number, sequence), Producer(f"p{number}", 0, sequence)
            with suppress(Unavailable, OutcomeUnknown):
                first = Append(NAMES[0], 0, "text/plain", raw_batch(payload), producer)
                rest = [Append(name, 0, "text/plain", raw_batch(payload)) for name in NAMES[1:]]
                reply = await node.propose(NAMES[0], AppendAll([first, *rest]))
                assert reply.code in (Code.OK, Code.DUPLICATE), reply
                sequence += 1

    async def killer() -> None:
        for _ in range(3):
            await asyncio.sleep(0.4)
            leader = world.leader(world.group_of(NAMES[0]))
            if leader is not None:
                leader.kill(power=1.0)
                await asyncio.sleep(1.0)
                leader.start()

    await asyncio.gather(writer(0), writer(1), killer())
    await world.wait_equal()
    for node in world.alive():
        first, *others = await contents(node)
        assert others == [first, first], "they are in the same order in each stream"
        assert sorted(first.split(b";")[:-1]) == sorted(
            b"%d.%d" % (number, sequence) for number in range(2) for sequence in range(12)
        )


@story
async def test_diskless_and_leased_streams_are_refused(world: World) -> None:
    await create(world, NAMES[0])
    await create(world, NAMES[1], profile=Profile.DISKLESS)
    await create(world, NAMES[2], segments=SegmentLimits(2, 0))
    for node in world.alive():
        for name in NAMES[1:]:
            both = [Append(each, 0, "text/plain", raw_batch(b"x")) for each in (NAMES[0], name)]
            reply = await node.propose(NAMES[0], AppendAll(both))
            assert reply.code == Code.NONE_APPENDED
            assert (reply.detail[0], reply.detail[1][0]) == (1, Code.WRONG_PROFILE)
    assert await contents(world.alive()[0]) == [b"", b"", b""]
