"""Tracking of the nodes that appends come from."""

from __future__ import annotations

from polynya.engine.append_origins import AppendOrigins
from polynya.transport import address


def test_the_node_of_nearly_all_appends_is_named_with_how_many_there_were() -> None:
    demand = AppendOrigins(1, 4)
    demand.came(2, address(3, 1), 70)
    demand.came(2, address(3, 0), 10)
    demand.here[2] += 20
    demand.here[4] += 5
    assert demand.look() == {2: (3, 100), 4: (1, 5)}


def test_other_cores_of_the_node_are_the_node() -> None:
    demand = AppendOrigins(2, 4)
    demand.came(1, 3, 10)
    demand.here[1] += 1
    assert demand.look() == {1: (2, 11)}


def test_a_group_with_writers_by_several_nodes_is_left_out() -> None:
    demand = AppendOrigins(1, 4)
    demand.came(2, address(2, 0), 30)
    demand.here[2] += 11
    assert demand.look() == {}


def test_group_0_has_no_writers() -> None:
    demand = AppendOrigins(1, 4)
    demand.came(0, address(2, 0), 100)
    assert demand.look() == {}


def test_two_looks_count_and_what_is_older_is_forgotten() -> None:
    demand = AppendOrigins(1, 4)
    demand.came(3, address(2, 0), 8)
    demand.look()
    demand.here[3] += 1
    assert demand.look() == {3: (2, 9)}
    assert demand.look() == {3: (1, 1)}
    assert demand.look() == {}
