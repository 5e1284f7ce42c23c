"""Workers that share lanes: who keeps which, who takes over, and what is refused."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_retries import PULL, begun, code, story
from worlds.subscriptions import Shell

from polynya.base.errors import UpgradePending
from polynya.local.local import LocalGroups
from polynya.stream.features.subscriptions.workers import shared

LANES = 8


async def reported(node: Shell, worker: str, **more: Any) -> tuple[int, Any]:
    body = {"worker": worker, "lanes": LANES, **more}
    return await node.ask("POST", "subscriptions/s/workers", body)


async def lanes(node: Shell, worker: str, **more: Any) -> list[int]:
    status, answer = await reported(node, worker, **more)
    assert status == 200, answer
    return answer["lanes"]  # type: ignore[no-any-return]


@story
async def test_a_lane_stays_at_its_worker_and_moves_only_when_that_one_reports(node: Shell) -> None:
    await begun(node, PULL)
    assert await lanes(node, "a") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert await lanes(node, "b") == [], "a may be at work on any of them"
    assert await lanes(node, "a", busy=[7]) == [0, 1, 2, 7]
    assert await lanes(node, "b") == [3, 4, 5, 6]
    assert await lanes(node, "c") == []
    assert await lanes(node, "a") == [0, 1, 2]
    assert await lanes(node, "c") == [7]
    assert await lanes(node, "b") == [3, 4, 5]
    for worker, kept in (("a", [0, 1, 2]), ("b", [3, 4, 5]), ("c", [6, 7])):
        assert await lanes(node, worker) == kept, "nothing moves any more"
    shown = (await node.ask("GET", "subscriptions/s"))[1]["workers"]
    assert [(each["worker"], each["lanes"]) for each in shown] == [
        ("a", [0, 1, 2]),
        ("b", [3, 4, 5]),
        ("c", [6, 7]),
    ]


@story
async def test_lanes_of_a_worker_that_is_gone_go_to_the_others(node: Shell) -> None:
    await begun(node, PULL)
    await lanes(node, "a")
    await lanes(node, "b")
    await lanes(node, "a")
    node.world.clock.ms += 29_999
    assert await lanes(node, "b") == [4, 5, 6, 7], "its time is not over"
    node.world.clock.ms += 1
    status, answer = await reported(node, "b")
    assert (status, answer) == (
        200,
        {"lanes": [0, 1, 2, 3, 4, 5, 6, 7], "workers": 1, "session_ms": 30_000},
    )
    assert await lanes(node, "a") == [], "it comes back as a new worker"
    assert await lanes(node, "b", leave=True) == []
    assert await lanes(node, "a") == [0, 1, 2, 3, 4, 5, 6, 7]
    await lanes(node, "a", leave=True)
    assert (await node.ask("GET", "subscriptions/s"))[1]["workers"] == []
    assert (await reported(node, "c", lanes=2))[1]["lanes"] == [0, 1], "a new number of lanes"


@story
async def test_waiting_workers_hear_of_lanes_that_move(node: Shell) -> None:
    await begun(node, PULL)
    await node.world.create("wake/pool", json=True)
    await lanes(node, "a")
    await lanes(node, "a")
    assert (await node.world.read("wake/pool")).count(b'"type":"workers"') == 1


@story
async def test_a_wrong_report_is_refused(node: Shell) -> None:
    await begun(node, PULL)
    for body, text in (
        ({"worker": ""}, "non-empty"),
        ({"worker": "x" * 257}, "at most 256 bytes"),
        ({"worker": "a", "lanes": 0}, "lanes is 0; expected an integer from 1 to 64"),
        ({"worker": "a", "lanes": 65}, "lanes is 65"),
        ({"worker": "a", "lanes": 2, "busy": [2]}, "busy has 2; expected lanes from 0 to 1"),
        ({"worker": "a", "lane": 2}, "lane"),
        ({}, "worker"),
    ):
        refused = await node.ask("POST", "subscriptions/s/workers", body)
        assert code(refused) == (400, "INVALID_REQUEST"), body
        assert text in refused[1]["error"]["message"]
    await lanes(node, "a")
    refused = await reported(node, "b", lanes=4)
    assert code(refused) == (409, "LANES_DIFFER") and refused[1]["error"]["lanes"] == LANES
    missing = await node.ask("POST", "subscriptions/none/workers", {"worker": "a"})
    assert code(missing) == (404, "SUBSCRIPTION_NOT_FOUND")
    hook = {"type": "webhook", "pattern": "x/*", "webhook": {"url": "http://127.0.0.1:1/"}}
    assert (await node.put("hook", **hook))[0] == 201
    refused = await node.ask("POST", "subscriptions/hook/workers", {"worker": "a"})
    assert code(refused) == (400, "INVALID_REQUEST")
    with patch("polynya.stream.features.subscriptions.workers.SUBSCRIPTION_WORKERS_MAX", 1):
        assert code(await reported(node, "b")) == (429, "TOO_MANY_WORKERS")
    with patch.object(LocalGroups, "level", 3), pytest.raises(UpgradePending):
        await reported(node, "a")


@given(
    st.integers(1, 64),
    st.lists(
        st.tuples(st.sampled_from("abcdefg"), st.booleans(), st.sets(st.integers(0, 63))),
        max_size=40,
    ),
)
def test_lanes_are_shared_fairly_and_move_only_for_a_reason(
    count: int, reports: list[tuple[str, bool, set[int]]]
) -> None:
    keepers, alive = [""] * count, list[str]()
    for worker, leaves, busy in reports:
        if leaves:
            alive = [each for each in alive if each != worker]
        elif worker not in alive:
            alive.append(worker)
        before, keepers = keepers, shared(keepers, alive, worker, busy)
        for lane, (old, new) in enumerate(zip(before, keepers, strict=True)):
            assert new in alive or not alive
            if old in alive and old != new:
                assert old == worker and lane not in busy, "taken from a worker without its report"
    for worker in alive * 2:
        keepers = shared(keepers, alive, worker, ())
    if alive:
        counts = [keepers.count(worker) for worker in alive]
        assert max(counts) - min(counts) <= 1
