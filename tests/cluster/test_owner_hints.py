"""The node that HTTP clients are told to use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from polynya.cluster.owner_hints import OwnerHints
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, NodeState


def hints(down: set[int], leader: int = 2) -> OwnerHints:
    """Return the hints of node 1 in zone a, where names with "d" are diskless."""
    directory: Any = SimpleNamespace(
        elsewhere=lambda group: leader, seems_up=lambda node: node not in down
    )
    found = OwnerHints(
        1,
        directory,
        {2: "http://old"},
        group_of=lambda name: 7,
        expects_diskless=lambda name: name.startswith("d"),
    )
    records = (
        NodeRecord(1, "", "http://1", "a"),
        NodeRecord(2, "", "http://2", "a"),
        NodeRecord(3, "", "http://3", "b"),
        NodeRecord(4, "", "http://4", "b", state=NodeState.DRAINING),
        NodeRecord(5, "", "", "b"),
    )
    found.learn(ClusterMap(1, 3, {each.id: each for each in records}, {}))
    return found


def test_a_replicated_stream_is_at_its_leader_whatever_the_zone() -> None:
    found = hints(set())
    assert [found.url("s", zone) for zone in ("", "a", "b")] == ["http://2"] * 3
    assert hints(set(), leader=0).url("s", "") == ""


def test_a_diskless_stream_is_at_the_owner_in_the_zone_of_the_client() -> None:
    found = hints(set())
    names = [f"d{number}" for number in range(40)]
    assert {found.url(name, "b") for name in names} == {"http://3"}, "active, with a URL"
    assert {found.url(name, "a") for name in names} == {"", "http://2"}, "this node, or the other"
    assert [found.url(name, "") for name in names] == [found.url(name, "a") for name in names]
    assert {found.url(name, "west") for name in names} == {"", "http://2", "http://3"}


def test_a_node_that_is_down_owns_nothing() -> None:
    names = [f"d{number}" for number in range(40)]
    found = hints({2, 3})
    assert {found.url(name, zone) for name in names for zone in ("a", "b")} == {""}
