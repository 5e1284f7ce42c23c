"""What operators ask of a cluster again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from polynya.front.http.cluster import NewNode
from polynya.node.cluster_acts import Acts
from polynya.stream.commands import Command, NodeRecord
from polynya.stream.placement import Map


def nodes(*records: NodeRecord) -> Map:
    known = {number: NodeRecord(number, f"h{number}:1", f"http://h{number}", "a") for number in (1, 2, 3)}
    return Map(epoch=1, replicas=3, nodes=known | {record.id: record for record in records}, groups={1: cast(Any, None)})


HEIR = NodeRecord(4, "h2:1", "http://h2", "a", replaces=2)


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
