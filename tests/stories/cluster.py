"""Tests that are stories of a simulated cluster: each begins with one, and ends when it was
healed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sim.cluster import Node, World
from sim.loop import run_simulated

A = "test/a"  # the stream that stories are about


def stories(
    begin: Callable[[], Awaitable[tuple[Any, ...]]],
    end: Callable[[World], Awaitable[None]] | None = None,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[[], None]]:
    """Make a decorator of stories. `begin` makes a story's arguments, the world first; `end` checks
    them after healing."""

    def story(tell: Callable[..., Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            about = await begin()
            world: World = about[0]
            await tell(*about)
            world.heal()
            if end is not None:
                await end(world)
            await world.stop()

        def test() -> None:
            run_simulated(run())

        test.__name__ = tell.__name__
        return test

    return story


async def led(world: World | None = None) -> tuple[World, Node]:
    """A cluster, and who leads the group of A and has made it."""
    world = await (world or World()).start()
    leader = world.leader(world.group_of(A))
    assert leader is not None
    await leader.create(A)
    return world, leader


async def outrun(world: World, leader: Node) -> None:
    """More is written than the logs keep."""
    for number in range(40):
        await leader.append(A, b"%03d" % number + b"x" * 1000)
    for _ in range(4):
        for node in world.alive():
            await node.snapshot()
        await leader.append(A, b"y" * 9000)
