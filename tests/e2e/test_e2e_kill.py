"""Kill -9 at any moment, of a core, of the supervisor, of all: nothing acknowledged is lost,
nothing comes twice, nothing seen goes away."""

from __future__ import annotations

import os
import random

import pytest
from e2e_crashes import (
    Flushes,
    Lives,
    LongPollTail,
    PlainWriter,
    Producer,
    SseTail,
    Worker,
    at_work,
)
from e2e_world import World
from long_tests import long
from polling import wait_until

pytestmark = pytest.mark.process
ROUNDS = int(os.environ.get("E2E_KILL_ROUNDS", "2"))  # more of them is a campaign


def people(world: World) -> list[Worker]:
    return [
        PlainWriter(world, "crash/plain-a"),
        PlainWriter(world, "crash/plain-b"),
        PlainWriter(world, "crash/large", pad="x" * 100_000),
        Producer(world, "crash/once-a"),
        Producer(world, "crash/once-b"),
        Lives(world, "crash/lives"),
        SseTail(world, "crash/plain-a"),
        SseTail(world, "crash/once-b"),
        LongPollTail(world, "crash/once-a"),
        LongPollTail(world, "crash/plain-b"),
        Flushes(world),
    ]


def kill(world: World, target: str, chance: random.Random, flags: tuple[str, ...]) -> None:
    if target == "core":
        node = world.node
        chance.choice(world.cores()).kill()
        assert node is not None and node.process.poll() is None
        return
    if target == "supervisor":
        world.kill_supervisor()
    else:
        world.kill_all()
    world.wait_gone()
    world.start(*flags)


def check(world: World, workers: list[Worker]) -> None:
    """Check the streams of a killed core once it is back; until then they answer 503."""
    wait_until(lambda: world.ask("GET", "/readyz").status == 200, what="the node to be ready again")
    for worker in workers:
        if hasattr(worker, "check"):
            worker.check()


@pytest.mark.parametrize(
    ("target", "cores"),
    [
        ("core", 2),
        ("all", 2),
        *long([("core", 1), ("supervisor", 1), ("supervisor", 2), ("all", 1)]),
    ],
)
def test_nothing_acknowledged_is_lost_by_kill_9(world: World, target: str, cores: int) -> None:
    chance = random.Random(f"{target} {cores}")
    flags = ("--cores", str(cores), "--long-poll-timeout", "0.5")
    world.start(*flags)
    workers = people(world)
    with at_work(workers) as progress:
        for _ in range(ROUNDS):
            progress(chance.randrange(30, 200))
            kill(world, target, chance, flags)
        progress(100)
        progress.of_each()
    check(world, workers)
    assert world.stop() == 0, world.log
    world.wait_gone()
    world.start(*flags)
    check(world, workers)
