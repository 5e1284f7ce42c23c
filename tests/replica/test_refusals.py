"""Impossible requests of operators are refused before any change, with a reason and a remedy."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from polynya.cluster.operations import ClusterOperations
from polynya.front.http.api.cluster import ClusterRefused, NewNode
from polynya.raft.configuration import Configuration
from polynya.replica import refusals
from polynya.replica.placement_steps import ClusterObservation, GroupView
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import ClusterMap, born
from polynya.stream.features.placement.commands import (
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
)
from polynya.stream.machine import Machine


def node(number: int) -> NodeRecord:
    return NodeRecord(number, f"n{number}:1", f"http://n{number}")


class Town:
    """A map and the nodes that are up; every group with a majority up has a leader in it."""

    def __init__(self, nodes: int, replicas: int = 3, groups: int = 6) -> None:
        self.machine = Machine(0, groups)
        self.machine.apply(born([node(number) for number in range(1, nodes + 1)], groups, replicas))
        self.down: set[int] = set()

    def apply(self, *commands: Command) -> Town:
        for command in commands:
            assert self.machine.apply(command).code < 20
        return self

    @property
    def map(self) -> ClusterMap:
        assert self.machine.meta.map is not None
        return self.machine.meta.map

    @property
    def seen(self) -> ClusterObservation:
        up = frozenset(self.map.nodes) - self.down
        groups = {}
        for group, placement in self.map.groups.items():
            there = [each for each in placement.voters if each in up]
            if len(there) > len(placement.voters) // 2:
                groups[group] = GroupView(
                    there[0], Configuration(placement.voters), True, frozenset(there)
                )
        return ClusterObservation(up, groups)


def test_three_nodes_with_three_replicas_cannot_lose_one() -> None:
    town = Town(3)
    said = refusals.emptying(town.map, town.seen, 1)
    assert (
        "3 replicas of each group need 3 nodes, and without node 1 there are 2" in said
        and "--replicas 1" in said
    )
    town.apply(NodeAdd(node(4)))
    assert refusals.emptying(town.map, town.seen, 1) == ""


def test_the_node_that_would_take_over_has_to_be_there() -> None:
    town = Town(3).apply(NodeAdd(node(4)))
    town.down.add(4)
    assert (
        refusals.emptying(town.map, town.seen, 1)
        == "group 0 cannot move off node 1: node 4 does not answer"
    )
    town = Town(3).apply(NodeAdd(node(4)), NodeSet(4, NodeState.CORDONED))
    assert "cannot move off node 1: node 4 is cordoned" in refusals.emptying(town.map, town.seen, 1)


def test_a_removal_that_would_break_a_quorum_is_refused_and_that_of_a_lost_node_is_not() -> None:
    town = Town(5, groups=4)
    group = next(
        number for number, placement in town.map.groups.items() if number and 1 in placement.voters
    )
    others = [each for each in town.map.groups[group].voters if each != 1]
    town.down.update(others)
    assert "no leader" in refusals.emptying(town.map, town.seen, 1)
    lost = Town(5)
    lost.down.add(2)
    assert refusals.emptying(lost.map, lost.seen, 2) == ""
    shaky = Town(4)
    shaky.down.add(2)
    assert refusals.emptying(shaky.map, shaky.seen, 2) == "", (
        "node 4 takes over, and 1 and 3 are a majority meanwhile"
    )


@pytest.mark.parametrize("ask", [refusals.draining, refusals.emptying])
def test_nobody_knows_a_node_that_is_not_there(ask) -> None:
    town = Town(4)
    assert ask(town.map, town.seen, 9) == "there is no node 9; the nodes are 1, 2, 3, 4"


def test_a_drain_needs_somebody_else_to_lead() -> None:
    lone = Town(1)
    assert "no other node could lead groups 0, 1, 2, 3, 4, 5 …" in refusals.draining(
        lone.map, lone.seen, 1
    )
    town = Town(3)
    assert refusals.draining(town.map, town.seen, 1) == ""
    town.down.add(2)
    assert refusals.draining(town.map, town.seen, 1) == "", "node 3 can lead, with 1 for a majority"
    town.apply(NodeSet(3, NodeState.DRAINING))
    assert "no other node could lead" in refusals.draining(town.map, town.seen, 1)
    assert "is already draining" in refusals.cordoning(town.map, 3)


def test_a_move_is_from_a_node_that_has_it_to_one_that_may() -> None:
    town = Town(5)
    placement = town.map.groups[1]
    outside = [each for each in town.map.members if each not in placement.voters]
    inside = placement.voters[0]
    assert refusals.moving(town.map, town.seen, 1, inside, outside[0]) == ""
    assert "there is no group 99" in refusals.moving(town.map, town.seen, 99, 1, 2)
    assert "has no replica of group 1" in refusals.moving(
        town.map, town.seen, 1, outside[0], outside[1]
    )
    assert "has a replica of group 1 already" in refusals.moving(
        town.map, town.seen, 1, inside, placement.voters[1]
    )
    town.down.add(outside[0])
    assert (
        refusals.moving(town.map, town.seen, 1, inside, outside[0])
        == f"node {outside[0]} does not answer"
    )
    town.down = {placement.voters[1], placement.voters[2]}
    assert "has no leader now" in refusals.moving(town.map, town.seen, 1, inside, outside[0])
    town.down = set()
    town.apply(NodeSet(outside[0], NodeState.CORDONED))
    assert "is cordoned, and gets no new replicas" in refusals.moving(
        town.map, town.seen, 1, inside, outside[0]
    )
    goal = tuple(sorted({*placement.voters, outside[1]} - {inside}))
    town.apply(PlaceGroup(1, goal, goal[0]))
    assert refusals.moving(town.map, town.seen, 1, inside, outside[1]) == "", "it is just that"
    assert "is moving from nodes" in refusals.moving(
        town.map, town.seen, 1, placement.voters[1], outside[0]
    )


def test_a_move_that_would_be_taken_back_for_the_sake_of_zones_is_refused() -> None:
    town = Town(5)
    for number, zone in enumerate("abcac", 1):
        record = town.map.nodes[number]
        town.apply(NodeAnnounce(number, record.peer, record.http, zone, 1))
    town.apply(PlaceGroup(1, (1, 2, 3), 1), GroupPlaced(1, (1, 2, 3), town.map.epoch + 1))
    assert refusals.moving(town.map, town.seen, 1, 2, 4) == (
        "replicas are spread over zones: in group 1 zone a would hold nodes 1, 4, while zone b "
        "holds fewer; choose another target"
    )
    assert refusals.moving(town.map, town.seen, 1, 1, 4) == "", "within its zone"
    town.apply(NodeSet(2, NodeState.CORDONED))
    assert refusals.moving(town.map, town.seen, 1, 2, 4) == "", (
        "nobody else of zone b takes anything"
    )


def test_a_lead_goes_to_a_voter_that_is_there_and_has_all() -> None:
    town = Town(5)
    voters = town.map.groups[1].voters
    outside = next(each for each in town.map.members if each not in voters)
    assert refusals.transferring(town.map, town.seen, 1, voters[1]) == ""
    assert f"node {outside} has no vote in group 1" in refusals.transferring(
        town.map, town.seen, 1, outside
    )
    seen = town.seen
    behind = ClusterObservation(
        seen.up,
        {
            **seen.groups,
            1: msgspec.structs.replace(seen.groups[1], caught_up=frozenset([voters[0]])),
        },
    )
    assert "is behind in group 1" in refusals.transferring(town.map, behind, 1, voters[1])
    town.down.add(voters[1])
    assert "does not answer" in refusals.transferring(town.map, town.seen, 1, voters[1])


def test_a_disk_is_replaced_while_the_others_are_enough() -> None:
    town = Town(3)
    town.down.add(2)
    assert refusals.replacing(town.map, town.seen, 2, 4) == ""
    assert "node id 3 is taken" in refusals.replacing(town.map, town.seen, 2, 3)
    begun = Town(3).apply(NodeAdd(msgspec.structs.replace(node(4), replaces=2)))
    assert "node 4 already replaces node 2" in refusals.replacing(begun.map, begun.seen, 2, 0)
    assert refusals.replacing(begun.map, begun.seen, 2, 4) == "", "the same once more"
    town.down.add(3)
    assert "would have no majority without node 2" in refusals.replacing(town.map, town.seen, 2, 4)
    assert "needs a new id" in refusals.replacing(town.map, town.seen, 2, 1)
    lone = Town(1)
    assert "is the last voter" in refusals.replacing(lone.map, lone.seen, 1, 2)


def test_a_node_that_is_there_is_replaced_by_another_elsewhere_alone() -> None:
    """Refuse the replacement at its own address: it could not start, and the existing node would
    lose its role."""
    town = Town(3)
    for peer in ("", "n2:1"):
        assert (
            "node 2 is up, and no other node can use its address: stop it first"
            in refusals.replacing(town.map, town.seen, 2, 0, peer)
        )
    assert refusals.replacing(town.map, town.seen, 2, 0, "n9:1") == ""
    town.down.add(2)
    assert refusals.replacing(town.map, town.seen, 2, 0, "n2:1") == ""
    town.down.clear()
    town.apply(NodeAdd(NodeRecord(4, "n2:1", "http://n2", replaces=2)))
    assert refusals.replacing(town.map, town.seen, 2, 4) == "", (
        "asked again, it prints the settings of the successor again"
    )
    assert (
        refusals.draining(town.map, town.seen, 2)
        == "node 2 is already leaving, permanently: another node replaces it"
    )


def test_replicas_are_one_three_or_five_and_no_more_than_nodes() -> None:
    town = Town(4)
    assert (
        refusals.balancing(town.map, 0)
        == refusals.balancing(town.map, 1)
        == refusals.balancing(town.map, 3)
        == ""
    )
    assert refusals.balancing(town.map, 2) == "2 replicas are not supported; choose 1, 3 or 5"
    assert refusals.balancing(town.map, 5) == "5 replicas need 5 nodes; there are 4"


def test_a_read_replica_gets_no_vote_by_a_detour_and_nobody_counts_on_it() -> None:
    town = Town(3).apply(ReaderAdd(node(4)))
    now, seen = town.map, town.seen
    assert (
        "node 4 is a read replica: it has the group without a vote; 'polynya cluster promote 4'"
        in refusals.moving(now, seen, 1, 1, 4)
    )
    assert "node 4 is a read replica: its copies do not vote" in refusals.moving(now, seen, 1, 4, 1)
    assert (
        refusals.transferring(now, seen, 1, 4) == "node 4 is a read replica: it cannot lead a group"
    )
    assert "node 4 is a read replica: start it on an empty disk" in refusals.replacing(
        now, seen, 4, 5
    )
    assert "need 3 nodes, and without node 1 there are 2" in refusals.emptying(now, seen, 1), (
        "it takes over nothing"
    )
    assert refusals.balancing(now, 5) == "5 replicas need 5 nodes; there are 3"
    assert (
        refusals.cordoning(now, 4)
        == refusals.draining(now, seen, 4)
        == refusals.emptying(now, seen, 4)
        == ""
    )


def test_a_read_replica_is_promoted_when_it_is_there_and_stays() -> None:
    town = Town(3).apply(ReaderAdd(node(4)))
    assert (
        refusals.promoting(town.map, town.seen, 4)
        == ""
        == refusals.promoting(town.map, town.seen, 1)
    )
    assert (
        refusals.promoting(town.map, town.seen, 5) == "there is no node 5; the nodes are 1, 2, 3, 4"
    )
    town.down.add(4)
    assert refusals.promoting(town.map, town.seen, 4) == "node 4 does not answer"
    town.apply(NodeSet(4, NodeState.LEAVING))
    assert (
        "node 4 is already leaving; run 'polynya cluster uncordon 4' first"
        in refusals.promoting(town.map, town.seen, 4)
    )


class Office(ClusterOperations):
    """Operators' requests to a town."""

    def __init__(self, town: Town) -> None:
        self.town, self._cluster_id = town, "c"

    async def _see(self) -> tuple[ClusterMap, ClusterObservation]:
        return self.town.map, self.town.seen

    async def _write(self, command: Command) -> int:
        self.town.apply(command)
        return self.town.map.epoch


def test_a_disk_that_is_being_replaced_is_told_again() -> None:
    town = Town(3)
    town.down.add(2)
    office = Office(town)
    wanted = NewNode(replaces=2, rebalance=False)
    first = asyncio.run(office.add(wanted))
    again = asyncio.run(office.add(msgspec.structs.replace(wanted, id=4)))
    assert again["node"] == first["node"] and again["node"]["peer"] == "n2:1"
    assert (
        [each["id"] for each in again["peers"]] == [each["id"] for each in first["peers"]] == [1, 3]
    )
    with pytest.raises(ClusterRefused, match="replace-disk 2 --id 4' prints its settings again"):
        asyncio.run(office.add(wanted))


def test_a_node_that_is_drained_already_is_not_emptied_unseen() -> None:
    town = Town(3)
    office = Office(town)
    asyncio.run(office.set_node(2, "drain", replicas=False))
    with pytest.raises(ClusterRefused, match="without node 2 there are 2"):
        asyncio.run(office.set_node(2, "drain", replicas=True))
    assert town.map.nodes[2].state == NodeState.DRAINING
    town.apply(NodeAdd(node(4)))
    for _ in range(2):  # the same once more
        asyncio.run(office.set_node(2, "drain", replicas=True))
        assert town.map.nodes[2].state == NodeState.EMPTYING
