"""A whole node with evicted idle streams. The eviction stays invisible across a kill, a restart, a
backup and its restore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_world import JSON, World, metric
from polling import wait_until
from product import polynya

pytestmark = pytest.mark.process
FLAGS = (
    "--cores",
    "2",
    "--cold-flush-max-age-ms",
    "100",
    "--cold-evict-after-ms",
    "300",
    "--cold-delete-grace-ms",
    "1s",
)
NAMES = [f"idle/s{number}" for number in range(12)]


def append(world: World, name: str, sequence: int) -> int:
    """Append as an idempotent producer and return the status."""
    producer = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(sequence)}
    return world.ask("POST", f"/v1/stream/{name}", b"[%d]" % sequence, **JSON, **producer).status


def wait_evicted(world: World, count: int = len(NAMES)) -> None:
    wait_until(
        lambda: metric(world, "polynya_streams_evicted") == count,
        what=f"{count} evicted streams",
        seconds=60,
    )


def test_idle_streams_leave_the_memory_and_nobody_sees_it(world: World, tmp_path: Path) -> None:
    world.start(*FLAGS)
    for name in NAMES:
        assert world.ask("PUT", f"/v1/stream/{name}", **JSON).status == 201
        assert append(world, name, 0) == 200
    before = {name: world.ask("HEAD", f"/v1/stream/{name}").headers["etag"] for name in NAMES}
    wait_evicted(world)
    listed = json.loads(world.ask("GET", "/v1/streams?prefix=idle/").body)["streams"]
    assert len(listed) == len(NAMES)
    assert {
        name: world.ask("HEAD", f"/v1/stream/{name}").headers["etag"] for name in NAMES
    } == before
    assert [world.records(name) for name in NAMES] == [[0]] * len(NAMES)
    assert metric(world, "polynya_recalled_streams_total") == 0, "no read brings one back"

    world.kill_all()
    world.start(*FLAGS)
    assert metric(world, "polynya_streams") == len(NAMES)
    assert append(world, NAMES[0], 0) == 204, "a repeat is known as one"
    assert append(world, NAMES[1], 1) == 200
    assert append(world, NAMES[2], 7) == 409
    assert world.ask("PUT", f"/v1/stream/{NAMES[3]}", **JSON).status == 200
    assert world.records(NAMES[1]) == [0, 1]
    wait_evicted(world)

    folder = tmp_path / "backup"
    assert polynya("backup", str(folder), server=world.url).code == 0
    assert polynya("verify", str(folder)).code == 0
    assert polynya("store", "verify", server=world.url).code == 0
    assert world.ask("DELETE", f"/v1/stream/{NAMES[0]}").status == 204
    assert world.ask("HEAD", f"/v1/stream/{NAMES[0]}").status == 404
    assert world.stop() == 0

    ran = polynya("restore", str(folder), "--data", str(tmp_path / "new"), "--cores", "1")
    assert ran.code == 0, ran
    restored = World(tmp_path / "new")
    try:
        restored.start(*FLAGS)
        assert [restored.records(name) for name in NAMES] == [[0], [0, 1], *[[0]] * 10]
        assert append(restored, NAMES[0], 0) == 204
        assert append(restored, NAMES[1], 2) == 200
        assert restored.records(NAMES[1]) == [0, 1, 2]
    finally:
        restored.close()
