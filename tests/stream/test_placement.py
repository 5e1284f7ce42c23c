"""The map of the cluster: the effects and refusals of its commands, and its snapshot."""

from __future__ import annotations

import msgspec
import pytest
from worlds.toy_groups import leader_count

from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import ClusterMap, born, voters_wanted
from polynya.stream.features.placement.commands import (
    GroupPlaced,
    NodeAdd,
    NodeAnnounce,
    NodePromote,
    NodeRecord,
    NodeSet,
    NodeState,
    PlaceGroup,
    ReaderAdd,
    SetBalancing,
)
from polynya.stream.machine import Machine
from polynya.stream.replies import Code, Reply
from polynya.stream.snapshots.encode import machine_from, snapshot_of


def node(number: int, zone: str = "") -> NodeRecord:
    return NodeRecord(number, f"10.0.0.{number}:4439", f"http://10.0.0.{number}:4437", zone)


class Meta:
    """Group 0, with a map of that many nodes."""

    def __init__(self, nodes: int = 3, groups: int = 6, replicas: int = 3) -> None:
        self.machine = Machine(0, groups)
        assert (
            self.apply(
                born([node(number) for number in range(1, nodes + 1)], groups, replicas)
            ).code
            == Code.CREATED
        )

    def apply(self, command: Command) -> Reply:
        return self.machine.apply(command)

    @property
    def map(self) -> ClusterMap:
        assert self.machine.meta.map is not None
        return self.machine.meta.map

    def refusal(self, command: Command) -> str:
        before = self.map
        reply = self.apply(command)
        assert reply.code == Code.REFUSED and self.map is before
        return str(reply.detail)


def test_a_birth_of_three_gives_every_node_everything_and_each_its_share_of_leads() -> None:
    cluster = Meta(3).map
    assert all(cluster.replicas_of(group) == (1, 2, 3) for group in range(7))
    assert [cluster.first_of(group) for group in range(7)] == [1, 2, 3, 1, 2, 3, 1]
    assert cluster.epoch == 1 and cluster.readers_of(0) == ()


@pytest.mark.parametrize(("nodes", "replicas"), [(4, 3), (5, 3), (7, 3), (6, 5), (2, 3), (1, 3)])
def test_a_birth_is_even(nodes: int, replicas: int) -> None:
    cluster = Meta(nodes, 60, replicas).map
    counts = [
        sum(number in cluster.replicas_of(group) for group in range(1, 61))
        for number in range(1, nodes + 1)
    ]
    leads = [leader_count(cluster, number) for number in range(1, nodes + 1)]
    assert max(counts) - min(counts) <= 2 and max(leads) - min(leads) <= 1
    assert {len(cluster.replicas_of(group)) for group in range(1, 61)} == {
        voters_wanted(replicas, nodes)
    }
    assert len(cluster.groups[0].voters) == voters_wanted(5, nodes)
    assert cluster.replicas_of(0) == tuple(range(1, nodes + 1))
    assert set(cluster.readers_of(0)) == set(range(1, nodes + 1)) - set(cluster.groups[0].voters)


def test_a_birth_in_three_zones_gives_each_zone_a_replica() -> None:
    records = [node(number, zone) for number, zone in enumerate("aabbbc", 1)]
    command = born(records, 40, 3)
    zones = {record.id: record.zone for record in records}
    assert all(
        {zones[number] for number in placement.voters} == {"a", "b", "c"}
        for placement in command.placements[1:]
    )


def test_clusters_of_the_first_release_have_everything_everywhere() -> None:
    command = born([node(number) for number in range(1, 8)], 10, 7, everywhere=True)
    assert all(placement.voters == tuple(range(1, 8)) for placement in command.placements)
    assert command.replicas == 5


def test_only_the_first_birth_counts() -> None:
    meta = Meta(3)
    assert meta.apply(born([node(9)], 6, 3)).code == Code.EXISTS
    assert meta.map.members == (1, 2, 3)


def test_a_node_is_added_and_has_only_the_map() -> None:
    meta = Meta(3)
    assert meta.apply(NodeAdd(node(4), balance=True)).code == Code.CREATED
    assert meta.apply(NodeAdd(node(4), balance=True)).code == Code.EXISTS
    assert meta.map.readers_of(0) == (4,) and meta.map.groups_of(4) == [0] and meta.map.balancing
    assert meta.map.epoch == 2


def test_what_cannot_be_added_is_refused_with_the_reason() -> None:
    meta = Meta(3)
    assert "already uses 10.0.0.3:4439" in meta.refusal(
        NodeAdd(msgspec.structs.replace(node(3), id=4))
    )
    assert "at another address" in meta.refusal(NodeAdd(msgspec.structs.replace(node(9), id=3)))
    assert "ids are 1 to 250" in meta.refusal(NodeAdd(msgspec.structs.replace(node(9), id=251)))
    assert "node 8, which is to be replaced, is not a member" in meta.refusal(
        NodeAdd(msgspec.structs.replace(node(9), replaces=8))
    )


def test_an_heir_may_stand_where_the_old_node_stood() -> None:
    meta = Meta(3)
    successor = msgspec.structs.replace(node(2), id=4, replaces=2)
    assert meta.apply(NodeAdd(successor)).code == Code.CREATED
    assert meta.map.nodes[2].state == NodeState.LEAVING and meta.map.nodes[2].peer == ""
    assert meta.map.nodes[4].peer == node(2).peer
    assert "it can only leave" in meta.refusal(NodeSet(2, NodeState.ACTIVE))


def test_a_move_is_carried_out_in_two_steps_and_a_node_that_is_empty_may_go_for_good() -> None:
    meta = Meta(3, groups=1)
    meta.apply(NodeAdd(node(4)))
    assert meta.apply(PlaceGroup(1, (2, 3, 4), 2, epoch=1)).code == Code.OK
    assert meta.map.replicas_of(1) == (1, 2, 3, 4) and meta.map.learners_of(1) == (4,)
    epoch = meta.map.groups[1].epoch
    assert meta.apply(GroupPlaced(1, (2, 3, 4), epoch - 1)).code == Code.NOT_YET
    assert meta.apply(GroupPlaced(1, (2, 3, 4), epoch)).code == Code.OK
    assert meta.map.replicas_of(1) == (2, 3, 4) and meta.map.learners_of(1) == ()
    assert "still has replicas" in meta.refusal(NodeSet(1, NodeState.REMOVED))  # of the meta group
    meta.apply(PlaceGroup(0, (2, 3, 4), 2))
    meta.apply(GroupPlaced(0, (2, 3, 4), meta.map.groups[0].epoch))
    assert meta.apply(NodeSet(1, NodeState.REMOVED)).code == Code.OK
    assert meta.map.members == (2, 3, 4) and 1 not in meta.map.replicas_of(0)
    assert "node ids are never reused" in meta.refusal(NodeAdd(node(1)))
    assert meta.apply(NodeSet(1, NodeState.ACTIVE)).code == Code.NOT_FOUND


def test_a_placement_is_refused_that_could_not_be() -> None:
    meta = Meta(3)
    assert "no node 9" in meta.refusal(PlaceGroup(1, (1, 2, 9), 1))
    assert "cannot lead" in meta.refusal(PlaceGroup(1, (1, 2), 3))
    assert "needs at least one voter" in meta.refusal(PlaceGroup(1, (), 3))
    assert meta.apply(PlaceGroup(9, (1, 2, 3), 1)).code == Code.NOT_FOUND
    assert meta.apply(PlaceGroup(1, (1, 2, 3), 1)).code == Code.OK
    # planned on what is not any more
    assert meta.apply(PlaceGroup(1, (1, 2, 3), 2, epoch=1)).code == Code.NOT_YET


def test_a_node_says_where_it_is() -> None:
    meta = Meta(3)
    assert meta.apply(NodeAnnounce(2, "10.0.1.2:1", "http://b", "b", 4)).code == Code.OK
    assert meta.map.nodes[2] == NodeRecord(2, "10.0.1.2:1", "http://b", "b", 4)
    epoch = meta.map.epoch
    assert meta.apply(NodeAnnounce(2, "10.0.1.2:1", "http://b", "b", 4)).code == Code.OK
    assert meta.map.epoch == epoch
    assert "another node" in meta.refusal(NodeAnnounce(3, "10.0.1.2:1", "http://c", "", 4))
    assert meta.apply(NodeAnnounce(9, "x:1", "http://c", "", 4)).code == Code.NOT_FOUND


def test_without_a_map_everything_has_to_wait() -> None:
    commands: list[Command] = [
        NodeAdd(node(4)),
        NodeSet(1, 1),
        PlaceGroup(1, (1,), 1),
        GroupPlaced(1, (1,), 1),
        SetBalancing(True),
    ]
    machine = Machine(0, 3)
    assert {machine.apply(command).code for command in commands} == {Code.NOT_YET}
    assert machine.meta.map is None


def test_a_snapshot_keeps_the_map_and_one_without_it_opens() -> None:
    meta = Meta(3)
    meta.apply(NodeAdd(node(4)))
    meta.apply(SetBalancing(True, 5))
    again = machine_from(snapshot_of(meta.machine), lambda position, uid: b"")
    assert again.meta.map == meta.map and snapshot_of(again) == snapshot_of(meta.machine)
    older = msgspec.msgpack.decode(snapshot_of(meta.machine))[:18]
    assert machine_from(msgspec.msgpack.encode(older), lambda position, uid: b"").meta.map is None


def test_a_read_replica_follows_every_group_and_is_counted_for_none() -> None:
    meta = Meta(3)
    assert (
        meta.apply(ReaderAdd(node(4, "far"))).code == Code.CREATED
        and meta.apply(ReaderAdd(node(4))).code == Code.EXISTS
    )
    cluster = meta.map
    assert (
        cluster.nodes[4].reader
        and cluster.readers == {4}
        and cluster.voting == (1, 2, 3)
        and cluster.members == (1, 2, 3, 4)
    )
    assert all(
        cluster.replicas_of(group) == (1, 2, 3, 4) and cluster.readers_of(group) == (4,)
        for group in range(7)
    )
    assert all(
        cluster.placed_on(group) == (1, 2, 3) and cluster.wanted(group) == 3 for group in range(7)
    )
    assert machine_from(snapshot_of(meta.machine), lambda position, uid: b"").meta.map == cluster
    assert (
        meta.refusal(PlaceGroup(1, (1, 2, 4), 1))
        == "node 4 is a read replica, and votes in no group"
    )
    assert meta.refusal(NodeAdd(node(4))) == "node 4 is already a member, as a read replica"
    assert meta.refusal(ReaderAdd(node(3))) == "node 3 is already a member, as a voting node"
    assert "start it on an empty disk" in meta.refusal(
        NodeAdd(msgspec.structs.replace(node(5), replaces=4))
    )
    meta.apply(NodeAnnounce(4, "10.9.9.4:4439", "http://10.9.9.4:4437", "far", 2))
    assert meta.map.nodes[4].reader and meta.map.nodes[4].peer == "10.9.9.4:4439"


def test_a_read_replica_that_is_to_go_reads_nothing_and_is_removed() -> None:
    meta = Meta(3)
    meta.apply(ReaderAdd(node(4)))
    for state, readers in (
        (NodeState.DRAINING, (4,)),
        (NodeState.EMPTYING, ()),
        (NodeState.ACTIVE, (4,)),
        (NodeState.LEAVING, ()),
    ):
        assert meta.apply(NodeSet(4, state)).code == Code.OK
        assert meta.map.readers_of(1) == readers and meta.map.readers_of(0) == (4,)
    assert "node 4 is leaving" in meta.refusal(NodePromote(4))
    assert (
        meta.apply(NodeSet(4, NodeState.REMOVED)).code == Code.OK and meta.map.readers_of(0) == ()
    )
    assert meta.apply(NodePromote(4)).code == Code.NOT_FOUND == meta.apply(NodePromote(9)).code


def test_a_promoted_read_replica_is_a_node_like_the_others() -> None:
    meta = Meta(3)
    meta.apply(ReaderAdd(node(4)))
    assert meta.apply(NodePromote(4, balance=True)).code == Code.OK and meta.map.balancing
    assert (
        not meta.map.readers
        and meta.map.voting == (1, 2, 3, 4)
        and meta.map.replicas_of(1) == (1, 2, 3)
    )
    before = meta.map
    assert meta.apply(NodePromote(4)).code == Code.OK and meta.map is before
    assert meta.apply(PlaceGroup(1, (1, 2, 4), 1)).code == Code.OK
