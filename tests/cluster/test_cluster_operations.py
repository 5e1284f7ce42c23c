"""Retries of operators' requests to a cluster."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from unittest.mock import AsyncMock

import msgspec
import pytest

from polynya.base.errors import NotLeader, OutcomeUnknown, PolynyaError, Unavailable
from polynya.cluster.operations import ClusterOperations
from polynya.cluster.status import CoreStatus
from polynya.front.http.api.cluster import ClusterRefused, NewNode
from polynya.raft import ProposalRefused
from polynya.stream.command import Command
from polynya.stream.features.placement.cluster_map import ClusterMap
from polynya.stream.features.placement.commands import NodeRecord, Placement


def nodes(*records: NodeRecord) -> ClusterMap:
    known = {
        number: NodeRecord(number, f"h{number}:1", f"http://h{number}", "a") for number in (1, 2, 3)
    }
    return ClusterMap(
        epoch=1,
        replicas=3,
        nodes=known | {record.id: record for record in records},
        groups={1: cast(Any, None)},
    )


HEIR = NodeRecord(4, "h2:1", "http://h2", "a", replaces=2)


def test_the_settings_of_a_node_that_is_added_again_name_it_once() -> None:
    now = nodes(HEIR)

    async def added() -> dict[str, Any]:
        acts = ClusterOperations(
            cast(Any, None), cast(Any, None), cast(Any, None), cast(Any, None), "c"
        )

        async def see() -> tuple[ClusterMap, Any]:
            return now, SimpleNamespace(up=[1, 3])

        async def write(command: Command) -> int:
            return 2

        acts._see, acts._write = cast(Any, see), cast(Any, write)
        return await acts.add(NewNode(4, "h2:1", "http://h2"))

    found = asyncio.run(added())
    assert found["node"]["id"] == 4 and [node["id"] for node in found["peers"]] == [1, 3, 2]


@pytest.mark.parametrize(
    ("up", "why"),
    [
        ((1,), "it has no quorum of its nodes 1, 2, 3; down: 2, 3"),
        ((1, 2), "an election is in progress"),
    ],
)
def test_without_a_majority_the_reason_names_who_is_missing(up: tuple[int, ...], why: str) -> None:
    async def call(group: int, command: Command) -> Any:
        raise NotLeader(0)

    async def gather() -> Any:
        return {(node, 0): CoreStatus("9", []) for node in up}

    now = msgspec.structs.replace(nodes(), groups={0: Placement((1, 2, 3), (1, 2, 3), 1)})
    maps, view, service = (
        SimpleNamespace(now=now),
        SimpleNamespace(gather=gather),
        SimpleNamespace(call=call),
    )
    acts = ClusterOperations(
        cast(Any, view), cast(Any, maps), cast(Any, None), cast(Any, service), "c"
    )
    with pytest.raises(
        ClusterRefused,
        match=rf"group 0, which holds the cluster map, has no leader: {why}; nothing was changed",
    ) as refused:
        asyncio.run(acts.set_node(3, "cordon", False))
    assert refused.value.code == "UNAVAILABLE", "a client may try again"


def handed_over(
    answer: ProposalRefused | PolynyaError | None, *, first: int
) -> tuple[dict[str, Any], list[Command]]:
    """Return the response and the written commands of a transfer of group 1 from node 1 to node 2,
    whose leader answers `answer`. Node `first` was the preferred leader."""
    written: list[Command] = []
    now = msgspec.structs.replace(nodes(), groups={1: Placement((1, 2, 3), (1, 2, 3), first, 5)})
    led = {1: SimpleNamespace(leader=1)}
    transfer = (
        AsyncMock(side_effect=answer)
        if isinstance(answer, BaseException)
        else AsyncMock(return_value=answer)
    )
    acts = ClusterOperations(
        cast(Any, None),
        cast(Any, None),
        cast(Any, SimpleNamespace(transfer=transfer)),
        cast(Any, None),
        "c",
    )

    async def write(command: Command) -> int:
        written.append(command)
        return 2

    acts._see, acts._write = (
        AsyncMock(return_value=(now, SimpleNamespace(groups=led))),
        cast(Any, write),
    )  # type: ignore[method-assign]
    with mock.patch("polynya.replica.refusals.transferring", return_value=""):
        return asyncio.run(acts.transfer(1, 2)), written


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ProposalRefused.CHANGE_IN_FLIGHT, "change in flight"),
        (Unavailable("no leader is known"), "no leader is known"),
        (OutcomeUnknown("the leader was lost"), "the leader was lost"),
    ],
)
def test_a_lead_that_is_to_go_and_does_not_go_yet_is_no_refusal(
    answer: ProposalRefused | PolynyaError, why: str
) -> None:
    """Write the preferred leader first; the leadership follows on its own."""
    result, written = handed_over(answer, first=1)
    assert len(written) == 1 and result == {
        "epoch": 2,
        "group": 1,
        "first": 2,
        "pending": f"the leadership of group 1 is not transferred yet: {why}",
    }


def test_a_lead_that_goes_waits_for_nothing() -> None:
    assert handed_over(None, first=1)[0] == {"epoch": 2, "group": 1, "first": 2, "pending": ""}


def test_a_lead_that_was_to_be_there_and_does_not_go_is_refused_as_nothing_was_done() -> None:
    with pytest.raises(ClusterRefused, match="group 1 cannot transfer its leadership: not ready"):
        handed_over(ProposalRefused.NOT_READY, first=2)
    with pytest.raises(Unavailable):
        handed_over(Unavailable("no leader is known"), first=2)
