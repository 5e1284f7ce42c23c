"""Every kind of read sees earlier acknowledged data, on any node: a lagging replica, a deposed
leader, a node without a replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
from sim.cluster import Node, World
from stories.cluster import A, led, stories

from polynya.base.errors import Unavailable
from polynya.local.api import LiveEvent, Page, ReadQuery, Refusal, StreamInfo
from polynya.service.node_service import NodeService

story = stories(led)


class LiveReader:
    def live(self, event: LiveEvent) -> None:
        pass


async def _attach(service: NodeService, name: str) -> StreamInfo | Refusal:
    ear = LiveReader()
    info = await service.open(name).attach(ear)
    if isinstance(info, StreamInfo):
        service.detach(info.uid, ear)
    return info


async def _listed(service: NodeService, name: str) -> StreamInfo | None:
    return next(
        (info for info in await service.list_streams("", "", 99) if info.name == name), None
    )


WAYS: dict[str, Callable[[NodeService, str], Awaitable[Any]]] = {
    "HEAD": lambda service, name: service.info(name),
    "catch-up": lambda service, name: service.read(ReadQuery(name)),
    "the opening of a tail": _attach,
    "the list": _listed,
}


def tail_of(found: Any) -> int:
    """Return the tail in records. -1: there is no such stream."""
    return found.record if isinstance(found, Page | StreamInfo) else -1


def newer_name(world: World) -> str:
    """Another stream of the same group."""
    return next(
        name
        for number in range(99)
        if world.group_of(name := f"test/new{number}") == world.group_of(A)
    )


async def ask_all(node: Node, name: str, ways: Iterable[str] = WAYS) -> dict[str, int]:
    """All at once, so that no question waits behind another."""
    asked = list(ways)
    found = await asyncio.gather(*(WAYS[way](node.engine.service, name) for way in asked))
    return dict(zip(asked, map(tail_of, found), strict=True))


@story
async def test_a_replica_that_lags_answers_nothing_that_is_old(world: World, leader: Node) -> None:
    await leader.append(A, b"1")
    await world.wait_equal()
    behind = next(node for node in world.alive() if node is not leader)
    new, loop = newer_name(world), asyncio.get_running_loop()
    world.clogged[leader.number, behind.number] = loop.time() + 0.6  # still heard, for all it knows
    await leader.append(A, b"2")
    await leader.create(new)
    service = behind.engine.service
    assert (
        behind.core.core_replicas.groups[world.group_of(A)].machine.directory.streams[A].next_record
        == 1
    ), "the story is of one that lags"
    assert (service.open(A).info_nowait(), service.read_nowait(ReadQuery(A))) == (None, None)
    old, made = await asyncio.gather(ask_all(behind, A), ask_all(behind, new))
    assert old == dict.fromkeys(WAYS, 2)
    assert made == dict.fromkeys(WAYS, 0), (
        "a stream is nowhere missing once its creation was answered"
    )


@story
async def test_a_leader_that_is_none_any_more_answers_nothing(world: World, old: Node) -> None:
    group, new = world.group_of(A), newer_name(world)
    await old.append(A, b"1")
    world.isolate(old.number)
    others = [node for node in world.alive() if node is not old]
    await world.wait(lambda: any(node.core.replicas.is_leader(group) for node in others))
    leader = next(node for node in others if node.core.replicas.is_leader(group))
    await leader.append(A, b"2")
    await leader.create(new)
    service = old.engine.service
    assert (service.open(A).info_nowait(), service.read_nowait(ReadQuery(A))) == (None, None)
    for name in (A, new):
        for way in WAYS.values():
            with pytest.raises(Unavailable):
                await way(service, name)


async def four() -> tuple[World, Node]:
    return await led(World(count=4, replicas=3))


@stories(four)
async def test_a_node_without_a_replica_gets_no_old_answer_from_one_that_lags(
    world: World, leader: Node
) -> None:
    group, new, loop = world.group_of(A), newer_name(world), asyncio.get_running_loop()
    await leader.append(A, b"1")
    await world.wait_equal()
    outsider = next(node for node in world.alive() if not node.core.replicas.has(group))
    behind = next(node for node in world.alive() if node not in (outsider, leader))
    for node in world.alive():  # all that it reaches is the one that lags
        if node is not behind:
            world.cut |= {(outsider.number, node.number), (node.number, outsider.number)}
    world.clogged[leader.number, behind.number] = loop.time() + 0.6
    await leader.append(A, b"2")
    await leader.create(new)
    ways = [way for way in WAYS if way != "the list"]  # that needs somebody for each group
    assert await ask_all(outsider, A, ways) == dict.fromkeys(ways, 2)
    assert await ask_all(outsider, new, ways) == dict.fromkeys(ways, 0)
