"""The lanes of a worker group under one name: in lists, and in the figures of metrics."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from test_retries import PULL, claimed, code, given_back, story
from worlds.subscriptions import Shell

from polynya.admin.metric_sources import of_work
from polynya.local.local import LocalGroups
from polynya.stream.features.subscriptions.commands import SubscriptionConfig
from polynya.stream.features.subscriptions.state import Subscription
from polynya.subscriptions.lags import WorkLags
from polynya.subscriptions.lane_groups import lane_of, name_of

LANE = {**PULL, "wake_stream": "groups/crew", "max_attempts": 3, "dead_letter_stream": "dead/crew"}


def subscription(key: str, wakes: str) -> Subscription:
    config = SubscriptionConfig(1, "a/*", [], "", wakes, 30_000)
    return Subscription(key, 1, config, "", 0, {})


@pytest.mark.parametrize(
    ("key", "wakes", "lane"),
    [
        ("g.0", "groups/g", ("g", 0)),
        ("g.63", "groups/g", ("g", 63)),
        ("a.b.7", "groups/a.b", ("a.b", 7)),
        ("g.64", "groups/g", None),
        ("g.00", "groups/g", None),
        ("g.x", "groups/g", None),
        ("g.\u0663", "groups/g", None),
        (".1", "groups/", None),
        ("g.1", "groups/h", None),
        ("g.1", "default/g", None),
        ("g.1", "", None),
        ("g", "groups/g", None),
    ],
)
def test_lanes_are_recognised_by_their_names(key: str, wakes: str, lane: Any) -> None:
    assert lane_of(subscription(key, wakes)) == lane
    assert name_of(subscription(key, wakes)) == (lane[0] if lane else key)


async def listed(node: Shell, **query: str) -> tuple[list[dict[str, Any]], str | None]:
    status, answer = await node.ask("GET", "subscriptions", groups="true", **query)
    assert status == 200, answer
    return answer["subscriptions"], answer["next"]


async def crew(node: Shell) -> list[str]:
    """Make a group of three lanes, and two other subscriptions. Return the offsets of its stream."""
    for stream in ("groups/crew", "wake/pool"):
        await node.world.create(stream, json=True)
    for lane in range(3):
        assert (await node.put(f"crew.{lane}", **LANE))[0] == 201
    await node.put("crew.x", **PULL)
    await node.put("s", **PULL)
    await node.world.create("test/a", json=True)
    offsets = []
    for record in (b"1", b"2"):
        reply = await node.world.append("test/a", record, json=True)
        offsets.append(f"{reply.record:016d}_{reply.byte:016d}")
    return offsets


@story
async def test_a_group_is_one_row_with_its_lanes_below(node: Shell) -> None:
    one, two = await crew(node)
    report = {"worker": "a", "lanes": 3}
    assert (await node.ask("POST", "subscriptions/crew.0/workers", report))[0] == 200
    claim = (await node.ask("POST", "subscriptions/crew.1/claim", {"worker": "b"}))[1]
    body = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    acks = [{"stream": "test/a", "offset": one}]
    done = {**body, "acks": acks, "stream": "test/a", "offset": two, "error": "boom"}
    assert (await node.ask("POST", "subscriptions/crew.1/retry", done, claim["token"]))[0] == 200
    await node.ask("POST", "subscriptions/crew.2/claim", {"worker": "c"})
    rows, after = await listed(node)
    assert [row["id"] for row in rows] == ["crew", "crew.x", "s"] and after is None
    group = rows[0]
    expected = {
        "group": "crew",
        "type": "pull-wake",
        "pattern": "test/*",
        "wake_stream": "groups/crew",
        "max_attempts": 3,
        "state": "leased",
        "status": "active",
        "lag": 2,
        "attempts": 1,
        "workers": ["a", "c"],
    }
    assert {field: group[field] for field in expected} == expected
    lanes = [(each["id"], each["lane"], each["lag"], each["keeper"]) for each in group["lanes"]]
    assert lanes == [("crew.0", 0, 2, "a"), ("crew.1", 1, 1, "a"), ("crew.2", 2, 2, "a")]
    assert group["lanes"][1]["failure"]["error"] == "boom"
    assert group["lanes"][2]["current_holder"] == "c"
    assert (rows[1]["group"], rows[1]["lag"], rows[1]["lanes"]) == (None, 2, [])


@story
async def test_pages_of_names_do_not_divide_a_group(node: Shell) -> None:
    await crew(node)
    found, after = [], ""
    for _ in range(3):
        (row,), after = await listed(node, limit="1", after=after or "")
        found.append((row["id"], len(row["lanes"])))
    assert found == [("crew", 3), ("crew.x", 0), ("s", 0)] and after is None
    assert [row["id"] for row in (await listed(node, prefix="crew."))[0]] == ["crew.x"]
    plain = (await node.ask("GET", "subscriptions"))[1]["subscriptions"]
    rows = [(each["id"], each["group"], each["lane"]) for each in plain]
    assert rows[0] == ("crew.0", "crew", 0) and rows[-2:] == [
        ("crew.x", None, None),
        ("s", None, None),
    ]
    refused = await node.ask("GET", "subscriptions", groups="yes")
    assert code(refused) == (400, "INVALID_REQUEST")
    with patch.object(LocalGroups, "level", 3):
        assert (await listed(node))[0][0]["lag"] is None, "not all nodes can say"


@story
async def test_figures_have_the_name_of_the_group(node: Shell) -> None:
    one, _ = await crew(node)
    claim = await claimed(node)
    await given_back(node, claim, stream="test/a", offset=one)
    await node.ask("POST", "subscriptions/crew.2/claim", {"worker": "c"})
    lags: WorkLags = node.subscriptions.lags
    await lags.measure()
    samples = of_work(lags)()
    assert samples['polynya_work_lag_records{subscription="crew"}'] == 2
    assert samples['polynya_work_lanes{subscription="crew"}'] == 3
    assert samples['polynya_work_leased_lanes{subscription="crew"}'] == 1
    assert samples['polynya_work_attempts{subscription="s"}'] == 1
    with patch("polynya.subscriptions.lags.NAMES_MAX", 2):
        await lags.measure()
        assert len(lags.found) == 2
