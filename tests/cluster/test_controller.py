"""The controller carries out the planner's steps. Any of them may fail, and its successor
continues."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from worlds.toy_groups import ROUNDS_MAX, Toy, node

from polynya.base.errors import Unavailable
from polynya.cluster.controller import IDLE_SECONDS, WAIT_SECONDS, Controller
from polynya.cluster.map_cache import ClusterMapCache
from polynya.cluster.status import ByCore, CoreStatus, Replica
from polynya.config.cluster_settings import ClusterConfig, ClusterNode
from polynya.config.node_identity import NodeIdentity
from polynya.raft import Configuration, ProposalRefused
from polynya.replica.placement_steps import ChangeVoters, TransferLeadership
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import META_GROUP
from polynya.stream.features.placement.commands import NodeAdd, NodeSet, NodeState, SetBalancing
from polynya.stream.machine import Machine
from polynya.stream.replies import Reply

NODES = tuple(ClusterNode(number, f"n{number}:1", f"http://n{number}") for number in (1, 2, 3))
BIRTH = NodeIdentity(
    cluster_id="c",
    node=1,
    nodes=(1, 2, 3),
    zones=("", "", ""),
    replicas=3,
    groups=6,
    cores=1,
    created_ms=0,
)


class World:
    """A toy cluster behind the surface that a controller has. `trouble`: how many of a hundred asks
    fail, before or after they had effect."""

    def __init__(self, trouble: int = 0, readers: tuple[int, ...] = (), **settings: Any) -> None:
        self.toy = Toy([""] * 3, groups=6, seed=7)
        self.trouble = trouble
        self.identity = msgspec.structs.replace(BIRTH, readers=readers)
        nodes = (
            *NODES,
            *(
                ClusterNode(number, f"n{number}:1", f"http://n{number}", reader=True)
                for number in readers
            ),
        )
        self.level = 2
        self.cluster = ClusterConfig(id="0" * 32, node=1, nodes=nodes, **settings)
        self.maps = ClusterMapCache(BIRTH, self.cluster, None, core=0)
        self.leading = True
        self.gathered = 0
        self.controller = self.another()

    def another(self) -> Controller:
        """Return the next controller: the new leader of the meta group."""
        start: Any = SimpleNamespace(
            identity=self.identity, cores=1, core=0, config=SimpleNamespace(cluster=self.cluster)
        )
        return Controller(start, self.maps, self, self, self, lambda: self.leading)  # type: ignore[arg-type]

    def _fail(self) -> None:
        if self.toy.random.randrange(100) < self.trouble:
            raise Unavailable("lost on the way")

    def works_at(self) -> int:
        return self.level

    async def gather(self) -> ByCore:
        self.gathered += 1
        self._fail()
        statuses: ByCore = {(number, 0): CoreStatus("9", [], 1) for number in self.toy.up}
        for group, seen in self.toy.observe().groups.items():
            one = Replica(
                group,
                "leader",
                1,
                seen.leader,
                1,
                1,
                1,
                seen.configuration,
                seen.settled,
                sorted(seen.caught_up),
            )
            statuses[seen.leader, 0].replicas.append(one)
        return statuses

    async def call(self, group: int, command: Command) -> Reply:
        assert group == META_GROUP
        self._fail()
        reply = self.toy.machine.apply(command)
        self.maps.take(self.toy.machine.meta.map)
        self._fail()
        return reply

    async def change(self, group: int, configuration: Configuration) -> ProposalRefused | None:
        self._fail()
        if not self.toy.leaders[group]:
            return ProposalRefused.NOT_LEADER
        self.toy.carry_out(ChangeVoters(group, self.toy.leaders[group], configuration))
        self._fail()
        return None

    async def transfer(self, group: int, to: int) -> ProposalRefused | None:
        self._fail()
        self.toy.carry_out(TransferLeadership(group, self.toy.leaders[group], to))
        return None

    async def settle(self, *, changing: bool = False) -> None:
        """Run rounds until there is nothing to do. `changing`: another controller takes over after
        each."""
        self.maps.take(self.toy.machine.meta.map)
        quiet = 0
        for _ in range(ROUNDS_MAX):
            try:
                quiet = quiet + 1 if await self.controller._round() >= WAIT_SECONDS else 0
            except Unavailable:
                quiet = 0
            if quiet == 3:
                return
            self.toy.catch_up()
            if changing:
                self.controller = self.another()
        raise AssertionError("it does not end")


@pytest.mark.parametrize("trouble", [0, 30])
def test_a_node_comes_and_another_goes_whatever_is_lost_on_the_way(trouble):
    world = World(trouble)
    world.toy.apply(NodeAdd(node(4), balance=True))
    asyncio.run(world.settle(changing=bool(trouble)))
    assert world.toy.holds()[4] >= 4 and not world.toy.map.balancing
    world.toy.apply(NodeSet(2, NodeState.LEAVING))
    asyncio.run(world.settle(changing=bool(trouble)))
    assert world.toy.map.nodes[2].state == NodeState.REMOVED
    world.toy.down.add(2)
    asyncio.run(world.settle())
    world.toy.check_rest()


def test_a_node_that_is_to_stay_after_all_is_not_removed_by_a_plan_of_before():
    world = World()
    world.toy.apply(NodeAdd(node(4)))
    asyncio.run(world.settle())
    world.toy.apply(NodeSet(4, NodeState.LEAVING))
    world.maps.take(world.toy.machine.meta.map)
    look = world.gather

    async def gather() -> ByCore:
        """Look only as fast as a slow node answers; operators continue meanwhile."""
        statuses = await look()
        world.toy.apply(NodeSet(4, NodeState.ACTIVE))
        world.maps.take(world.toy.machine.meta.map)
        return statuses

    world.gather = gather
    asyncio.run(world.controller._round())
    assert world.toy.map.nodes[4].state == NodeState.ACTIVE


def test_read_replicas_of_the_birth_are_let_in_once_all_nodes_know_what_they_are():
    world = World(readers=(4, 5))
    world.level = 1
    world.maps.take(world.toy.machine.meta.map)
    assert asyncio.run(world.controller._round()) == WAIT_SECONDS and world.toy.map.members == (
        1,
        2,
        3,
    )
    world.level = 2
    asyncio.run(world.settle())
    assert world.toy.map.readers == {4, 5} and all(
        each.readers == (4, 5) for each in world.toy.configurations.values()
    )
    world.toy.check_rest()
    world.toy.apply(NodeSet(5, NodeState.LEAVING))
    asyncio.run(world.settle())
    world.toy.down.add(5)
    asyncio.run(world.settle())
    assert world.toy.map.members == (1, 2, 3, 4), "one that was removed does not come back"
    before = world.gathered
    assert asyncio.run(world.controller._round()) == IDLE_SECONDS and world.gathered == before


def test_while_nothing_is_to_do_nobody_is_asked():
    world = World()
    asyncio.run(world.settle())
    before = world.gathered
    for _ in range(5):
        assert asyncio.run(world.controller._round()) == IDLE_SECONDS
    assert world.gathered == before


@pytest.mark.parametrize("on_its_way", [True, False])
def test_a_group_that_has_other_voters_than_the_map_names_is_looked_at_until_it_has_those(
    on_its_way,
):
    """Watch a group whose voters differ from the map until they match.

    A change that was requested under an earlier goal may arrive late: the map is at rest, the
    group is not. It is between two majorities or has reached another one, and a node that must
    return is down."""
    world = World()
    world.toy.apply(NodeAdd(node(4), balance=False))
    asyncio.run(world.settle())
    group, three = 1, world.toy.map.groups[1].goal
    gone = max(three)
    other = tuple(sorted({*three, 4} - {gone}))
    world.toy.caught_up[group].add(4)
    world.toy.down.add(gone)
    world.toy.configurations[group] = (
        Configuration(other, three, ()) if on_its_way else Configuration(other, (), (gone,))
    )
    world.controller = world.another()
    assert [asyncio.run(world.controller._round()) for _ in range(3)] == [WAIT_SECONDS] * 3
    if on_its_way:
        world.toy.configurations[group] = Configuration(other, (), ())
    world.toy.down.clear()
    asyncio.run(world.settle())
    assert world.toy.configurations[group].voters == three == world.toy.map.groups[group].voters
    assert asyncio.run(world.controller._round()) == IDLE_SECONDS


def test_who_leads_no_more_takes_no_more_steps():
    world = World()
    world.toy.apply(SetBalancing(True))
    world.toy.apply(NodeAdd(node(4)))
    world.maps.take(world.toy.machine.meta.map)
    world.leading = False
    steps = world.controller.steps
    asyncio.run(world.controller._round())
    assert world.controller.steps == steps


def test_a_node_that_is_away_is_given_up_only_when_that_is_asked_for(monkeypatch):
    for give_up, gone in ((0.0, False), (60.0, True)):
        world = World(replace_after=give_up)
        world.toy.apply(NodeAdd(node(4)))
        asyncio.run(world.settle())
        world.toy.down.add(3)

        async def later(world: World = world) -> None:
            clock = asyncio.get_running_loop().time
            await world.controller._round()
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 61)
            await world.settle()

        asyncio.run(later())
        assert (
            all(
                3 not in placement.voters
                for group, placement in world.toy.map.groups.items()
                if group
            )
            == gone
        )


def test_an_absence_under_an_earlier_lead_does_not_count(monkeypatch):
    """The lead went elsewhere, the node came back, and an hour later both changed once more."""
    world = World(replace_after=60.0)
    world.toy.apply(NodeAdd(node(4)))
    asyncio.run(world.settle())

    async def story() -> None:
        clock = asyncio.get_running_loop().time
        world.toy.down.add(3)
        await world.controller._round()
        world.leading = False
        world.controller.led(META_GROUP)
        world.toy.down.clear()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 3600)
        world.toy.down.add(3)
        world.leading = True
        world.controller.led(META_GROUP)
        await world.settle()

    asyncio.run(story())
    assert any(3 in placement.voters for group, placement in world.toy.map.groups.items() if group)


def test_the_first_map_waits_for_all_nodes_and_for_releases_that_know_maps():
    world = World()
    world.toy.machine = Machine(META_GROUP, 6)
    said: ByCore = {(1, 0): CoreStatus("9", [], 1), (2, 0): CoreStatus("9", [], 1)}

    async def gather() -> ByCore:
        return said

    world.gather = gather  # type: ignore[method-assign]
    asyncio.run(world.controller._round())
    assert world.maps.now.epoch == 0, "node 3 is not there"
    said[3, 0] = CoreStatus("0.1", [])
    asyncio.run(world.controller._round())
    assert world.maps.now.epoch == 0, "an older release could not read it"
    said[3, 0] = CoreStatus("9", [], 1)
    asyncio.run(world.controller._round())
    assert world.maps.now.epoch == 1 and world.maps.now.members == (1, 2, 3)


def test_a_node_says_where_it_is_when_the_map_has_it_elsewhere():
    world = World()
    world.cluster = ClusterConfig(
        id="0" * 32, node=1, nodes=(ClusterNode(1, "other:9", "http://other", "east"), *NODES[1:])
    )
    world.controller = world.another()
    world.leading = False
    world.maps.take(world.toy.machine.meta.map)
    asyncio.run(world.controller._announce())
    record = world.toy.map.nodes[1]
    assert (record.peer, record.http, record.zone, record.cores) == (
        "other:9",
        "http://other",
        "east",
        1,
    )
    epoch = world.toy.map.epoch
    asyncio.run(world.controller._announce())
    assert world.toy.map.epoch == epoch
