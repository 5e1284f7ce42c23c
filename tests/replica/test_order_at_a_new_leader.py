"""Batches that one connection pipelines to a node that forwards them, while the leadership of their
group goes from node to node: an earlier one is judged first, also at a leader that is not ready."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from sim.cluster import Node, World
from stories.cluster import led, stories
from worlds.stream import kafka_batch, kafka_producer

from polynya.base.futures import settle
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code, Reply
from polynya.stream.state.feature_level import level_of

NAME = "kafka/t/0"
IN_FLIGHT = 5
PACE_SECONDS = 0.008  # longer than most elections: some batches come while none waits
TRANSFERS = 30


async def partitioned() -> tuple[World, Node]:
    """Return a cluster whose links keep the order, and the node that clients are connected to."""
    world = World(seed=5)
    world.in_order = True
    world.disk_delay = (0.001, 0.006)
    await led(world)
    produce = level_of(Produce)
    group = world.group_of(NAME)
    await world.wait(
        lambda: all(
            node.core.core_replicas.groups[group].machine.counters.level >= produce
            for node in world.alive()
        )
    )
    leader = world.leader(group)
    assert leader is not None
    front = next(node for node in world.alive() if node is not leader)
    created = Create(NAME, front.engine.service.now_ms(), "", Encoding.KAFKA)
    assert (await front.propose(NAME, created)).code == Code.CREATED
    return world, front


class Producer:
    """An idempotent producer as librdkafka is one: up to five batches in flight, all again from the
    first that failed, once none is in flight."""

    def __init__(self, front: Node) -> None:
        self._front, self._random = front, Random("pace")
        self.sequence = 0  # the next one
        self.acknowledged = 0

    async def send(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self._window(until)

    async def _window(self, until: asyncio.Event) -> None:
        """Send until a batch fails. Of these batches the first to fail is not refused as a gap."""
        outcomes: list[asyncio.Future[Reply]] = []
        while not until.is_set() and not any(_has_failed(each) for each in outcomes):
            if sum(not each.done() for each in outcomes) < IN_FLIGHT:
                outcomes.append(self._propose(self.sequence + len(outcomes)))
            await asyncio.sleep(self._random.expovariate(1 / PACE_SECONDS))
        await asyncio.wait(outcomes)
        for outcome in outcomes:
            if _has_failed(outcome):
                assert outcome.exception() is not None, (
                    f"all before batch {self.sequence} were acknowledged, and it is answered "
                    f"{outcome.result()}"
                )
                break
            self.sequence += 1

    def _propose(self, sequence: int) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        service = self._front.engine.service
        command = Produce(NAME, service.now_ms(), kafka_batch(1), kafka_producer(7, 0, sequence, 1))
        future.add_done_callback(self._count)
        self._front.process.hand(lambda: service.propose(NAME, command, partial(settle, future)))
        return future

    def _count(self, outcome: asyncio.Future[Reply]) -> None:
        self.acknowledged += not _has_failed(outcome)


def _has_failed(outcome: asyncio.Future[Reply]) -> bool:
    return outcome.done() and (
        outcome.exception() is not None
        or outcome.result().code not in (Code.OK, Code.DUPLICATE, Code.DUPLICATE_SEQUENCE)
    )


story = stories(partitioned)


@story
async def test_no_batch_is_a_gap_behind_acknowledged_ones_while_leadership_moves(
    world: World, front: Node
) -> None:
    group, over = world.group_of(NAME), asyncio.Event()
    producer = Producer(front)
    sending = asyncio.ensure_future(producer.send(over))
    for number in range(TRANSFERS):
        await world.wait(lambda: sending.done() or world.leader(group) is not None)
        leader = world.leader(group)
        assert leader is not None
        others = [node for node in world.alive() if node is not leader]
        leader.core.transfer(group, others[number % 2].number)
        await world.wait(lambda before=leader: world.leader(group) not in (None, before))
        acknowledged = producer.acknowledged
        await world.wait(
            lambda before=acknowledged: sending.done() or producer.acknowledged > before + 5
        )
    over.set()
    await sending
    assert front.forwarding.targets.redirects, (
        "no leader refused a batch, so the story tells nothing"
    )
    assert producer.sequence > 5 * TRANSFERS
