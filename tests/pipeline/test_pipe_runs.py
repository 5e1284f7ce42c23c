"""A sync that the node itself runs in Spark, asked for over HTTP: its progress and its rows, and that a node
that is killed leaves no process of a run."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import pytest
from missing import needed_module
from polling import wait_until
from product import TAG, processes_with
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")


def newest(world: PipeWorld) -> dict[str, Any]:
    runs = world.http.get(f"{world.node.url}/v1/tables/rides/runs").json()["runs"]
    found: dict[str, Any] = runs[0]
    return found


def test_a_sync_on_the_node_fills_the_table_and_a_killed_node_leaves_none(
    world: PipeWorld,
) -> None:
    world.start("--lake-master", "local[1]")
    assert world.run("table", "create", "rides", "--prefix", "rides/").code == 0
    world.append("rides/a", {"fare": 1}, {"fare": 2})
    asked = world.http.post(f"{world.node.url}/v1/tables/rides/sync")
    assert asked.status_code == 202, asked.text
    wait_until(
        lambda: newest(world)["state"] not in ("queued", "running"), what="the end", seconds=400
    )
    run = newest(world)
    assert (run["state"], run["message"]) == ("done", "rides: job 1 added 2 rows"), run
    assert any("planned" in line for line in run["log"]), run
    world.check_exactly_once("rides")
    listed = world.run("table", "runs", "rides")
    assert listed.code == 0 and "job 1 added 2 rows" in listed.out, listed

    world.append("rides/a", {"fare": 3})
    world.http.post(f"{world.node.url}/v1/tables/rides/sync")
    wait_until(lambda: newest(world)["log"], what="its first line", seconds=400)
    assert _has_run(world)
    world.node.kill()
    wait_until(
        lambda: not processes_with(TAG, world.tag), what="the end of all processes", seconds=60
    )


def _has_run(world: PipeWorld) -> bool:
    """Report whether a process of a run lives."""
    for process in processes_with(TAG, world.tag):
        with contextlib.suppress(psutil.Error):
            if "table sync" in " ".join(process.cmdline()):
                return True
    return False
