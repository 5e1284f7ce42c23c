"""The lanes of a worker group under one name, for lists and metrics. Pure.

A group is recognised by how `client.share` names its lanes: the subscriptions GROUP.0, GROUP.1 …
whose wakes are announced in the stream groups/GROUP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from polynya.base.limits import SUBSCRIPTION_LANES_MAX
from polynya.base.names import spelled_name
from polynya.stream.features.subscriptions.state import Subscription

_STATES = ("leased", "waking", "idle")  # a group is in the first one that a lane is in
_SHARED = (
    "type",
    "pattern",
    "explicit_streams",
    "webhook",
    "wake_stream",
    "lease_ttl_ms",
    "created_at",
    "description",
    "max_attempts",
    "dead_letter_stream",
)


def lane_of(subscription: Subscription) -> tuple[str, int] | None:
    """Return the group and the number of a lane; None for another subscription."""
    group, _, lane = subscription.id.rpartition(".")
    wakes = subscription.config.wake_stream
    if not (group and lane.isascii() and lane.isdigit() and str(int(lane)) == lane and wakes):
        return None
    if int(lane) >= SUBSCRIPTION_LANES_MAX or spelled_name(wakes) != f"groups/{group}":
        return None
    return group, int(lane)


def name_of(subscription: Subscription) -> str:
    """Return the name under which lists show a subscription: that of its group, or its id."""
    lane = lane_of(subscription)
    return subscription.id if lane is None else lane[0]


def rows(shapes: Iterable[dict[str, Any]], lags: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the rows of a list, by name: subscriptions, and groups with their lanes."""
    groups: dict[str, list[dict[str, Any]]] = {}
    found = []
    for shape in shapes:
        if shape.get("group") is not None:
            groups.setdefault(shape["group"], []).append(shape)
        else:
            found.append(_of_one(shape, lags))
    found += [_of_group(name, lanes, lags) for name, lanes in groups.items()]
    return sorted(found, key=lambda row: (row["id"], row["group"] or ""))


def _of_one(shape: dict[str, Any], lags: Mapping[str, int]) -> dict[str, Any]:
    return {
        **shape,
        "group": None,
        "lag": lags.get(shape["id"]),
        "attempts": _attempts(shape),
        "workers": _workers([shape]),
        "lanes": [],
    }


def _of_group(name: str, lanes: list[dict[str, Any]], lags: Mapping[str, int]) -> dict[str, Any]:
    """Return the row of a group. Its lag and its attempts are those of the worst lane."""
    lanes.sort(key=lambda lane: lane["lane"])
    keepers = {
        lane: each["worker"] for each in lanes[0].get("workers", ()) for lane in each["lanes"]
    }
    known = [lags[lane["id"]] for lane in lanes if lane["id"] in lags]
    states = {lane["state"] for lane in lanes}
    return {
        "id": name,
        "group": name,
        **{field: lanes[0].get(field) for field in _SHARED},
        "state": next(state for state in _STATES if state in states),
        "status": "failed" if any(lane["status"] == "failed" for lane in lanes) else "active",
        "lag": max(known, default=None),
        "attempts": max(map(_attempts, lanes)),
        "workers": _workers(lanes),
        "lanes": [
            {
                **{field: lane[field] for field in ("id", "lane", "state", "status")},
                "current_holder": lane["current_holder"],
                "keeper": keepers.get(lane["lane"]),
                "lag": lags.get(lane["id"]),
                "failure": lane.get("failure"),
            }
            for lane in lanes
        ],
    }


def _attempts(shape: dict[str, Any]) -> int:
    """Return how often the record that comes next has failed."""
    failure = shape.get("failure")
    return 0 if failure is None else failure["attempts"]


def _workers(shapes: list[dict[str, Any]]) -> list[str]:
    """Return the workers that are known: those that report, and those that hold a lease."""
    reporting = {each["worker"] for shape in shapes for each in shape.get("workers", ())}
    return sorted(reporting | {shape["current_holder"] for shape in shapes} - {None})
