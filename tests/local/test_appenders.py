"""A bound appender: its judgement holds until the epoch changes; and the recipients of an append."""

from __future__ import annotations

import asyncio
from functools import partial

from stories.service import node_story, story
from worlds.service import Code, Listener, Node, World, name_in

from polynya.base.futures import settle
from polynya.local.api import AppendTo
from polynya.stream.command import Command
from polynya.stream.features.appends.commands import AppendAll
from polynya.stream.replies import Reply

A = "test/a"
THERE = name_in(1)  # of core 1


async def append(world: World, to: AppendTo, name: str, payload: bytes) -> Code:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    to(world.append_of(name, payload), partial(settle, future))
    return Code((await future).code)


@story
async def test_a_kept_appender_sees_a_delete_and_another_create(world: World) -> None:
    to = world.service.open(A).append
    assert await append(world, to, A, b"0") == Code.NOT_FOUND
    await world.create(A)
    assert [await append(world, to, A, b"1") for _ in range(3)] == [Code.OK] * 3
    await world.delete(A)
    assert await append(world, to, A, b"2") == Code.NOT_FOUND
    await world.create(A, ttl_seconds=60)
    assert [await append(world, to, A, b"3") for _ in range(2)] == [Code.OK] * 2
    world.clock.ms += 61_000
    assert await append(world, to, A, b"4") == Code.NOT_FOUND, "a TTL is judged each time"


@story
async def test_a_kept_appender_sees_the_limits_of_memory_and_a_fault(world: World) -> None:
    await world.create(A)
    to = world.service.open(A).append
    assert [await append(world, to, A, b"12345") for _ in range(2)] == [Code.OK] * 2
    world.local.memory.group_bytes_max = 12
    assert await append(world, to, A, b"123") == Code.MEMORY_PRESSURE
    assert await append(world, to, A, b"12") == Code.OK
    world.local.memory.group_bytes_max = 1 << 20
    group = world.service.group_of(A)
    stream = world.local.machines[group].directory.streams[A]
    world.local.faulted.set_aside(group, stream.uid, stream.next_byte, "damaged")
    assert await append(world, to, A, b"6") == Code.STREAM_FAULTED


@story
async def test_appends_to_several_streams_change_no_judgement(world: World) -> None:
    await world.create(A)
    to = world.service.open(A).append
    assert await append(world, to, A, b"1") == Code.OK
    epoch = world.local.appends.epoch
    reply = await world.send(AppendAll([world.append_of(A, b"2", close=True)]), A)
    assert (reply.code, world.local.appends.epoch) == (Code.OK, epoch)
    assert await append(world, to, A, b"3") == Code.CLOSED


@story
async def test_a_kept_appender_refuses_when_its_group_has_left(world: World) -> None:
    await world.create(A)
    to = world.service.open(A).append
    assert await append(world, to, A, b"1") == Code.OK
    world.local.remove(world.service.group_of(A))
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    to(world.append_of(A, b"2"), partial(settle, future))
    assert type(future.exception()).__name__ == "NotLeader"


@node_story
async def test_an_appender_reaches_another_core(node: Node) -> None:
    here = node.worlds[0]
    await here.create(THERE)
    assert await append(here, here.service.open(THERE).append, THERE, b"1") == Code.OK
    assert await here.read(THERE) == b"1"


@story
async def test_an_append_is_told_only_where_somebody_watches(world: World) -> None:
    await world.create(A)
    heard: list[str] = []
    applied = world.engine.core.on_applied

    def note(group: int, command: Command, reply: Reply) -> None:
        heard.append(type(command).__name__)
        applied(group, command, reply)

    world.engine.core.on_applied = note
    await world.append(A, b"1")
    listener = Listener()
    info = await world.service.open(A).attach(listener)
    await world.append(A, b"23")
    world.service.detach(info.uid, listener)
    await world.append(A, b"4")
    assert heard == ["Append"]
    assert [
        (event.begin_record, event.begin_byte, event.record, event.byte)
        for event in listener.events
    ] == [(1, 1, 2, 3)]
    assert bytes(listener.events[0].payload) == b"23"
    assert not any(machine.tails.effects for machine in world.local.machines.values())
