"""Health report of a cluster node."""

from __future__ import annotations

import pytest

from polynya.cluster.join import leaderless
from polynya.routing.group_locations import GroupLocations
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import Placement
from polynya.stream.features.placement.rules import NodeRecord


@pytest.mark.parametrize(
    ("node", "leaders", "there", "said"),
    [
        (2, {0: 1, 1: 1}, {1, 3}, None),
        (2, {0: 1, 1: 0}, {1, 3}, "no known leader for 1 of 2 groups"),
        (2, {0: 1, 1: 1}, {3}, None),  # it elects another on its own
        (4, {0: 1, 1: 1}, {1, 3}, None),
        (
            4,
            {0: 1, 1: 3},
            {3},
            "no known leader for 1 of 2 groups",
        ),  # a read replica remembers the last leader permanently
    ],
)
def test_a_node_knows_whether_its_groups_are_led(
    node: int, leaders: dict[int, int], there: set[int], said: str | None
):
    nodes = {
        number: NodeRecord(number, f"h:{number}", "", "", reader=number == 4)
        for number in (1, 2, 3, 4)
    }
    placed = {group: Placement((1, 2, 3), (1, 2, 3), 1) for group in (0, 1)}
    now = ClusterMap(epoch=1, replicas=3, nodes=nodes, groups=placed)
    assert (
        leaderless((0, 1), leaders.__getitem__, GroupLocations(node, now, there.__contains__))
        == said
    )
