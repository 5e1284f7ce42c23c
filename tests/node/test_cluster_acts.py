"""What operators ask of a cluster, and ask again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from polynya.front.http.cluster import NewNode
from polynya.node.cluster_acts import Acts, in_place
from polynya.stream.commands import Command, NodeRecord, NodeState
from polynya.stream.placement import Map


def nodes(*records: NodeRecord) -> Map:
    known = {number: NodeRecord(number, f"h{number}:1", f"http://h{number}", "a") for number in (1, 2, 3)}
    return Map(epoch=1, replicas=3, nodes=known | {record.id: record for record in records}, groups={1: cast(Any, None)})


HEIR = NodeRecord(4, "h2:1", "http://h2", "a", replaces=2)


def test_a_node_on_a_new_disk_is_where_the_old_one_was() -> None:
    assert in_place(nodes(), NewNode(replaces=2)) == NewNode(0, "h2:1", "http://h2", "a", 2)
    assert in_place(nodes(), NewNode(peer="h9:1", replaces=2)).peer == "h9:1"


@pytest.mark.parametrize("number", [0, 4])
def test_who_asks_again_for_a_node_on_a_new_disk_gets_the_same(number: int) -> None:
    moved = NodeRecord(2, "", "", "a", state=NodeState.LEAVING)
    assert in_place(nodes(moved, HEIR), NewNode(id=number, replaces=2)) == NewNode(4, "h2:1", "http://h2", "a", 2)


def test_the_settings_of_a_node_that_is_added_again_name_it_once() -> None:
    now = nodes(HEIR)

    async def told() -> dict[str, Any]:
        acts = Acts(cast(Any, None), cast(Any, None), cast(Any, None), cast(Any, None), "c")

        async def see() -> tuple[Map, Any]:
            return now, SimpleNamespace(up=[1, 3])

        async def write(command: Command) -> int:
            return 2

        acts._see, acts._write = cast(Any, see), cast(Any, write)
        return await acts.add(NewNode(4, "h2:1", "http://h2"))

    found = asyncio.run(told())
    assert found["node"]["id"] == 4 and [node["id"] for node in found["peers"]] == [1, 3, 2]
