"""`/debug/state` of a core alone: its groups, its streams by profile, and its parts."""

from __future__ import annotations

import json

import msgspec
import pytest
from stories.service import story
from worlds.service import World

from polynya.admin import debug_state
from polynya.observability.metrics import BY_NAME


def test_each_part_names_metrics_of_the_table() -> None:
    for part, names in debug_state.PARTS.items():
        assert {f"polynya_{name}" for name in names} <= set(BY_NAME), part


@story
async def test_groups_and_streams_are_counted_and_nothing_is_named(
    world: World,
) -> None:
    for number in range(5):
        await world.create(f"test/secret-{number}")
        await world.append(f"test/secret-{number}", b"payload")
    samples = {"polynya_http_connections": 3.0, "polynya_outbox": 0.0, "polynya_turns_total": 9.0}
    found = debug_state.core_state(0, world.engine, lambda: samples)
    assert sum(group["streams"] for group in found["groups"]) == 5
    assert found["streams"] == {
        "count": 5,
        "evicted": 0,
        "looked_at": 5,
        "by_profile": {"replicated": 5, "leased": 0, "diskless": 0},
    }
    for group in found["groups"]:
        assert group["role"] == "leader" and group["commit"] == group["applied"] <= group["last"]
    assert found["connections"] == {"http_connections": 3} and found["queues"] == {"outbox": 0}
    text = json.dumps(msgspec.to_builtins(found))
    assert "secret" not in text and "payload" not in text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(debug_state, "LOOKED_AT_MAX", 2)
        streams = debug_state.streams_state(world.local.machines.values())
    assert (streams["count"], streams["looked_at"]) == (5, 2)
