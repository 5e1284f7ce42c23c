"""Two nodes: both have all acknowledged data, and either may lose its disk; the other restores it
without an operator."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from long_tests import every_nth
from sim.cluster import World
from sim.loop import run_simulated
from stories.cluster import A

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.stream.parts import Producer
from polynya.stream.replies import Code


@pytest.mark.parametrize("seed", every_nth(range(3), 3))
def test_disks_are_lost_in_turn_under_a_writer_and_nothing_is_lost(seed: int) -> None:
    async def run() -> None:
        world = await World(seed, count=2).start()
        draw, loop = Random(f"pair {seed}"), asyncio.get_running_loop()
        await world.alive()[0].create(A)
        acknowledged, over = 0, False

        async def write() -> None:
            nonlocal acknowledged
            while not over:
                await asyncio.sleep(draw.uniform(0.001, 0.02))
                node = draw.choice(world.alive() or [None])
                try:
                    reply = node and await node.append(
                        A, b"%d;" % acknowledged, Producer("p", 1, acknowledged)
                    )
                except (OutcomeUnknown, Unavailable):
                    continue
                if reply:
                    assert reply.code in (Code.OK, Code.DUPLICATE), (
                        f"{reply.code}: something acknowledged was forgotten"
                    )
                    acknowledged += 1

        writer = asyncio.ensure_future(write())
        for turn in range(5):
            await asyncio.sleep(draw.uniform(0.5, 3))
            node = world.nodes[draw.choice((1, 2))]
            node.kill(power=draw.choice((None, 0.5)))
            await asyncio.sleep(draw.uniform(0, 3))
            node.lose_disk()
            node.start()
            if draw.random() < 0.5:  # the other one, with its disk, and perhaps both again
                await asyncio.sleep(draw.uniform(0, 1))
                for each in (
                    world.nodes[3 - node.number],
                    *([node] if draw.random() < 0.5 else []),
                ):
                    each.kill(power=draw.choice((None, 0.5)))
                    each.start()
            began, before = loop.time(), acknowledged
            await world.wait(lambda: all(each.remembers for each in world.nodes.values()))  # noqa: B023
            await world.wait(lambda: acknowledged > before + 5 or writer.done())  # noqa: B023
            assert not writer.done(), writer.exception()
            assert loop.time() - began < 12, f"turn {turn}"
        over = True
        await writer
        await world.wait_equal()
        for node in world.alive():
            assert await node.read(A) == b"".join(b"%d;" % number for number in range(acknowledged))
        await world.stop()

    run_simulated(run())
