"""Two releases side by side: a new feature starts once every node supports it, in every group at
one position of its log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from sim.cluster import GROUPS, Node, World
from sim.loop import run_simulated
from worlds.stream import kafka_batch

from polynya.base import levels
from polynya.base.errors import ConfigError, Unavailable
from polynya.cluster.feature_level import FeatureLevels
from polynya.engine.storage import open_storage
from polynya.local.api import Trimmed, TrimQuery
from polynya.stream.command import level_of, tag_of
from polynya.stream.features.appends.commands import Produce
from polynya.stream.features.lifetimes.commands import Create, Delete, Touch
from polynya.stream.features.retention.commands import TrimTo
from polynya.stream.machine import Machine
from polynya.stream.parts import Encoding
from polynya.stream.replies import Code
from polynya.stream.snapshots.encode import machine_from, snapshot_of

A = "test/a"


def story(
    tell: Callable[[World, dict[int, int]], Awaitable[None]],
) -> Callable[[pytest.MonkeyPatch], None]:
    """Run a story in a release of level 2, which introduces the deletion of streams. Every node
    has announced the previous release."""

    async def run() -> None:
        world = World()
        world.release = 1
        await world.start()
        await tell(world, dict.fromkeys(world.voters, 1))
        await world.wait_equal()
        await world.stop()

    def test(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(levels, "LEVEL", 2)
        monkeypatch.setitem(levels.LEVELS, tag_of(Delete), 2)
        run_simulated(run())

    test.__name__ = tell.__name__
    return test


def looked(
    world: World, announced: dict[int, int], known: Sequence[int] | None = None
) -> list[int]:
    """All nodes look once; the levels that they say they work at. `known`: the nodes of the
    cluster, as far as they have heard."""
    works_at: list[int] = []
    for node in world.alive():
        FeatureLevels(
            node.core,
            lambda: world.voters if known is None else known,
            announced.__getitem__,
            works_at.append,
        ).look()
    return works_at


async def raised(world: World, level: int) -> None:
    """Wait until all groups have the level that all nodes announced."""
    looked(world, dict.fromkeys(world.voters, level))
    await world.wait(lambda: all(levels_of(node) == {level} for node in world.alive()))


async def wait_said(world: World) -> None:
    """Wait until all nodes have applied everything proposed so far."""
    for group in range(GROUPS + 1):
        leader = world.leader(group)
        assert leader is not None
        await leader.core.call(group, Touch([], 0))
    await world.wait_equal()


def levels_of(node: Node) -> set[int]:
    return {group.machine.counters.level for group in node.core.core_replicas.groups.values()}


@story
async def test_what_is_new_waits_for_the_last_node(world: World, announced: dict[int, int]) -> None:
    leader = world.leader(world.group_of(A))
    assert leader is not None
    await leader.create(A)
    announced |= {1: 2, 2: 2}
    assert looked(world, announced) == [1, 1, 1]
    with pytest.raises(Unavailable, match="Finish the upgrade"):
        await leader.delete(A)
    announced[3] = 2
    looked(world, announced)
    await world.wait(lambda: all(levels_of(node) == {2} for node in world.alive()))
    assert looked(world, announced) == [2, 2, 2]
    assert (await leader.delete(A)).code == Code.OK


@story
async def test_a_node_that_has_not_said_is_waited_for(
    world: World, announced: dict[int, int]
) -> None:
    announced |= {1: 2, 2: 2, 3: 0}
    await world.wait_leaders()
    looked(world, announced)
    await wait_said(world)
    assert all(levels_of(node) == {1} for node in world.alive())


@story
async def test_a_core_that_has_not_heard_of_its_cluster_yet_raises_nothing(
    world: World, announced: dict[int, int]
) -> None:
    """One that begins to lead before it has the map, or has one from before the others came."""
    announced |= {1: 2, 2: 2, 3: 1}
    await world.wait_leaders()
    for known in ((), (1,), (1, 2)):
        looked(world, announced, known)
        await wait_said(world)
        assert all(levels_of(node) == {1} for node in world.alive())


@story
async def test_a_level_outlives_restarts_and_the_release_before_refuses_it(
    world: World, announced: dict[int, int]
) -> None:
    announced |= dict.fromkeys(world.voters, 2)
    looked(world, announced)
    await world.wait(lambda: all(levels_of(node) == {2} for node in world.alive()))
    for node in world.alive():
        await node.snapshot()
    node = world.nodes[3]
    node.kill(power=0.0)
    node.start()
    assert levels_of(node) == {2}
    node.kill()
    levels.LEVEL = 1
    with pytest.raises(
        ConfigError,
        match=(
            r"works at level 2; this release supports levels up to 1: start this node with the "
            r"release"
        ),
    ):
        open_storage(
            Path("/core-0"),
            core=0,
            cores=1,
            groups=2,
            files=node.disk,
            segment_bytes=world.segment_bytes,
        )
    levels.LEVEL = 2
    node.start()
    await world.wait_equal()


def test_the_level_is_in_the_log_and_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from polynya.stream.features.settings.commands import SetLevel

    monkeypatch.setattr(levels, "LEVEL", 3)
    machine = Machine(1, 4)
    assert [machine.apply(SetLevel(level)).detail for level in (2, 3, 2)] == [2, 3, 3]
    assert machine_from(snapshot_of(machine), lambda position, uid: b"").counters.level == 3
    with pytest.raises(ConfigError, match="group 1 works at level 4"):
        machine.apply(SetLevel(4))


def test_a_trim_inside_a_batch_waits_for_the_last_node() -> None:
    """A trim between batches is older, and does not wait."""

    async def run() -> None:
        world = World()
        world.release = 1
        await world.start()
        await raised(world, level_of(TrimTo) - 1)
        leader = world.leader(world.group_of(A))
        assert leader is not None
        service, now_ms = leader.engine.service, leader.engine.service.now_ms()
        await leader.propose(A, Create(A, now_ms, "", Encoding.KAFKA))
        for _ in range(2):
            await leader.propose(A, Produce(A, now_ms, kafka_batch(10, b"0123456789")))
        inside = TrimQuery(A, 14, inside=True)
        with pytest.raises(Unavailable, match="feature level"):
            await service.trim(inside)
        between = await service.trim(TrimQuery(A, 10, inside=True))
        assert isinstance(between, Trimmed)
        assert (between.record, between.records) == (10, 10)
        await raised(world, level_of(TrimTo))
        done = await service.trim(inside)
        assert isinstance(done, Trimmed)
        assert (done.record, done.byte, done.records, done.bytes) == (14, 10, 4, 0)
        await world.wait_equal()
        for node in world.alive():
            stream = node.core.core_replicas.groups[world.group_of(A)].machine.directory.streams[A]
            assert (stream.first_record, stream.first_byte) == (14, 10)
        await world.stop()

    run_simulated(run())
