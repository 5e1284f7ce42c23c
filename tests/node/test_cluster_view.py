"""What keeps a cluster from being well is found, and said for people."""

from __future__ import annotations

from polynya.node.cluster_settings import ClusterConfig, parse_nodes
from polynya.node.cluster_view import LAG_ENTRIES, Replica, Told, described, problems

NODES = "1=h:1=http://h:2,2=h:3=http://h:4,3=h:5=http://h:6"
CLUSTER = ClusterConfig(id="0" * 32, node=1, nodes=parse_nodes(NODES))


def replica(group: int, role: str, *, term: int = 1, leader: int = 0, applied: int = 10, commit: int = 10) -> Replica:
    return Replica(group, role, term, leader, commit, applied, applied)


def told(*replicas: Replica) -> Told:
    return Told("9.9", list(replicas))


def test_a_cluster_that_is_well_has_no_problems():
    said = {(node, 0): told(*(replica(group, "leader" if group + 1 == node else "follower") for group in range(3))) for node in (1, 2, 3)}
    nodes, groups = described(CLUSTER, 2, said)
    assert [group["leader"] for group in groups] == [1, 2, 3]
    assert nodes[2] == {"there": True, "release": "9.9", "cores": 1, "leads": 1}
    assert list(problems(CLUSTER, nodes, groups)) == []


def test_what_is_wrong_is_named():
    said = {
        (1, 0): told(replica(0, "leader", commit=LAG_ENTRIES + 11, applied=LAG_ENTRIES + 11), replica(1, "candidate")),
        (3, 0): told(replica(0, "follower"), replica(1, "follower")),
    }
    nodes, groups = described(CLUSTER, 1, said)
    assert groups[0]["behind"] == {"1": 0, "3": LAG_ENTRIES + 1}
    assert list(problems(CLUSTER, nodes, groups)) == [
        "node 2 does not answer",
        "no leader: group 1",
        f"node 3 is more than {LAG_ENTRIES} entries behind: group 0",
    ]


def test_of_two_that_think_they_lead_the_later_term_counts():
    said = {
        (1, 0): told(replica(0, "leader", term=4)),
        (2, 0): told(replica(0, "leader", term=5)),
        (3, 0): told(replica(0, "follower", term=5)),
    }
    _, groups = described(CLUSTER, 0, said)
    assert (groups[0]["leader"], groups[0]["term"]) == (2, 5)


def test_many_groups_are_not_all_named():
    said = {(node, 0): told(*(replica(group, "follower") for group in range(20))) for node in (1, 2, 3)}
    nodes, groups = described(CLUSTER, 19, said)
    assert list(problems(CLUSTER, nodes, groups)) == ["no leader: groups 0, 1, 2, 3, 4, 5, 6, 7 …"]
