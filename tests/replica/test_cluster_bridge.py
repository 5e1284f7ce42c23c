"""Two nodes that cannot reach each other, but both reach a third: each continues to answer
everything."""

from __future__ import annotations

import asyncio

import pytest
from long_tests import every_nth
from sim.cluster import Node, World
from sim.loop import run_simulated
from sim.moves import LiveReader
from stories.cluster import A, led

from polynya.base.errors import OutcomeUnknown, Unavailable
from polynya.local.api import StreamInfo
from polynya.service.stale_readers import StaleReaders
from polynya.stream.parts import Producer
from polynya.stream.replies import Code


def stale_readers(node: Node) -> StaleReaders:
    service = node.engine.service
    return StaleReaders(service.local, service.directory, node.forwarding.targets, service.rpc)


def bridged(world: World) -> tuple[Node, Node, Node]:
    """Return the leader of A's group, the node that it cannot reach from now on, and the one
    between them."""
    leader = world.leader(world.group_of(A))
    assert leader is not None
    far, between = (node for node in world.alive() if node is not leader)
    world.cut |= {(leader.number, far.number), (far.number, leader.number)}
    return leader, far, between


@pytest.mark.parametrize("seed", every_nth(range(4), 4))
def test_writes_and_reads_pass_through_the_third_in_their_order(seed: int) -> None:
    async def run() -> None:
        world, leader = await led(World(seed))
        await leader.append(A, b"before;")
        await asyncio.sleep(3)  # the preferred leader leads
        leader, far, between = bridged(world)
        await asyncio.sleep(3)
        assert world.leader(world.group_of(A)) is leader, "nobody is disturbed by it"
        began = asyncio.get_running_loop().time()
        for number in range(5):
            assert (await far.append(A, b"%d;" % number)).code == Code.OK
        assert asyncio.get_running_loop().time() - began < 1, (
            "there is no waiting for what does not come"
        )
        asked = [
            asyncio.ensure_future(far.append(A, b"%d;" % number, Producer("p", 1, number)))
            for number in range(40)
        ]
        assert [(await each).code for each in asked] == 40 * [Code.OK], (
            "their order holds on the longer way"
        )
        content = b"before;" + b"".join(b"%d;" % number for number in (*range(5), *range(40)))
        began = asyncio.get_running_loop().time()
        for node in (far, between, leader):
            assert await node.read(A) == content
        assert asyncio.get_running_loop().time() - began < 1
        world.heal()
        await world.wait_equal()
        assert (await far.append(A, b"after;")).code == Code.OK
        assert await leader.read(A) == content + b"after;"
        await world.stop()

    run_simulated(run())


def test_from_the_first_moment_on_each_write_is_answered_and_none_twice() -> None:
    """Write before, during and after the cut: a producer repeats writes of unknown outcome."""

    async def run() -> None:
        world, _ = await led(World(7))
        _, far, _ = bridged(world)
        loop = asyncio.get_running_loop()
        loop.call_later(4, world.heal)
        number, until = 0, loop.time() + 8
        while loop.time() < until:
            try:
                reply = await far.append(A, b"%d;" % number, Producer("p", 1, number))
            except (OutcomeUnknown, Unavailable):
                continue
            assert reply.code in (Code.OK, Code.DUPLICATE)
            number += 1
        assert number > 500
        assert await far.read(A) == b"".join(b"%d;" % each for each in range(number))
        await world.stop()

    run_simulated(run())


def test_a_live_reader_of_a_node_that_hears_no_leader_goes_on_by_the_third() -> None:
    async def run() -> None:
        world, leader = await led(World(1))
        await asyncio.sleep(3)
        ears = {node.number: await attached(node) for node in world.alive()}
        leader, far, between = bridged(world)
        strandeds = [stale_readers(node) for node in (leader, far, between)]
        await leader.append(A, b"unheard;")
        await asyncio.sleep(3)
        for stranded in strandeds:
            await stranded.look()
        assert [ears[node.number].over for node in (leader, far, between)] == [
            False,
            True,
            False,
        ], "who hears a leader has nothing to resume"
        again, deaf = await attached(far), await attached(far, local=True)
        for stranded in strandeds:
            await stranded.look()
        await leader.append(A, b"heard;")
        await asyncio.sleep(1)
        assert again.pieces == [(8, b"heard;")] and not again.over
        assert not deaf.over and not deaf.pieces, "who asked for what is here is told once"
        world.heal()
        await world.wait_equal()
        between.kill(power=1.0)
        leader.kill(power=1.0)
        alone = await attached(far, local=True)
        await asyncio.sleep(3)
        await strandeds[1].look()
        assert not alone.over, "nobody else hears a leader either"
        await world.stop()

    run_simulated(run())


def test_a_group_that_leaves_while_nodes_are_asked_about_its_readers_is_passed_over() -> None:
    async def run() -> None:
        world, _ = await led(World(1))
        await asyncio.sleep(3)
        ears = {node.number: await attached(node) for node in world.alive()}
        group, far = world.group_of(A), bridged(world)[1]
        ear = ears[far.number]
        await asyncio.sleep(3)
        assert not far.forwarding.directory.knows(group)
        stranded = stale_readers(far)
        looking = asyncio.ensure_future(stranded.look())
        await asyncio.sleep(0)
        machine = far.engine.local.machines.pop(group)
        await looking
        far.engine.local.machines[group] = machine
        assert not ear.over
        await stranded.look()
        assert ear.over
        await world.stop()

    run_simulated(run())


async def attached(node: Node, *, local: bool = False) -> LiveReader:
    ear = LiveReader()
    assert isinstance(await node.engine.service.open(A).attach(ear, local=local), StreamInfo)
    return ear


def test_what_the_third_does_not_reach_either_is_refused_and_not_applied() -> None:
    async def run() -> None:
        world, leader = await led(World(3))
        leader, far, between = bridged(world)
        await asyncio.sleep(2)
        assert (await far.append(A, b"one;")).code == Code.OK
        for node in (leader, between):
            node.kill(power=1.0)
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await far.append(A, b"lost;")
        await asyncio.sleep(2)
        with pytest.raises(Unavailable):
            await far.append(A, b"refused;")
        for node in (leader, between):
            node.start()
        world.heal()
        await world.wait_equal()
        assert b"refused" not in await far.read(A)
        await world.stop()

    run_simulated(run())
