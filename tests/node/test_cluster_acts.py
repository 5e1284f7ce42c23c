"""What operators ask of a cluster again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from polynya.base.errors import NotLeader
from polynya.front.http.cluster import ClusterRefused, NewNode
from polynya.node.cluster_acts import Acts
from polynya.node.cluster_view import Told
from polynya.stream.commands import Command, NodeRecord, Placement
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


@pytest.mark.parametrize(("up", "why"), [((1,), "of its nodes 1, 2, 3 too many do not answer: 2, 3"), ((1, 2), "it is electing one")])
def test_without_a_majority_the_reason_names_who_is_missing(up: tuple[int, ...], why: str) -> None:
    async def call(group: int, command: Command) -> Any:
        raise NotLeader(0)

    async def gather() -> Any:
        return {(node, 0): Told("9", []) for node in up}

    now = msgspec.structs.replace(nodes(), groups={0: Placement((1, 2, 3), (1, 2, 3), 1)})
    maps, view, service = SimpleNamespace(now=now), SimpleNamespace(gather=gather), SimpleNamespace(call=call)
    acts = Acts(cast(Any, view), cast(Any, maps), cast(Any, None), cast(Any, service), "c")
    with pytest.raises(ClusterRefused, match=rf"group 0, which keeps .* has no leader now: {why}; nothing was changed") as refused:
        asyncio.run(acts.set_node(3, "cordon", False))
    assert refused.value.code == "UNAVAILABLE", "a client may try again"
