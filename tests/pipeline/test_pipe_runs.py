"""Runs of a table that the node itself has in Spark, asked for over HTTP: their progress and rows, a
cancelled one, a rebuild, and that a node that is killed leaves no process of a run."""

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


def asked(world: PipeWorld, verb: str, body: dict[str, Any] | None = None) -> str:
    """Ask for a run, and return its id."""
    answer = world.http.post(f"{world.node.url}/v1/tables/rides/{verb}", json=body)
    assert answer.status_code == 202, answer.text
    run: str = answer.json()["run"]["id"]
    return run


def ended(world: PipeWorld) -> dict[str, Any]:
    """The newest run, once it has ended."""
    wait_until(
        lambda: newest(world)["state"] not in ("queued", "running"), what="the end", seconds=400
    )
    return newest(world)


def test_a_sync_on_the_node_fills_the_table_and_a_killed_node_leaves_none(
    world: PipeWorld,
) -> None:
    world.start("--lake-master", "local[1]")
    assert world.run("table", "create", "rides", "--prefix", "rides/").code == 0
    world.append("rides/a", {"fare": 1}, {"fare": 2})
    asked(world, "sync")
    run = ended(world)
    assert (run["state"], run["message"]) == ("done", "rides: job 1 added 2 rows"), run
    assert any("planned" in line for line in run["log"]), run
    world.check_exactly_once("rides")
    listed = world.run("table", "runs", "rides")
    assert listed.code == 0 and "job 1 added 2 rows" in listed.out, listed

    world.append("rides/a", {"fare": 3})
    asked(world, "sync")
    wait_until(lambda: newest(world)["log"], what="its first line", seconds=400)
    assert _has(world, "table sync")
    world.node.kill()
    wait_until(
        lambda: not processes_with(TAG, world.tag), what="the end of all processes", seconds=60
    )


def test_a_cancelled_run_leaves_no_jvm_and_a_whole_table_that_a_rebuild_replaces(
    world: PipeWorld,
) -> None:
    world.start("--lake-master", "local[1]")
    assert world.run("table", "create", "rides", "--prefix", "rides/").code == 0
    for name in "abc":
        world.append(f"rides/{name}", *({"fare": number} for number in range(300)))
    run = asked(world, "sync")
    wait_until(lambda: _has(world, "java"), what="Spark", seconds=400, pause=0.01)
    answer = world.http.post(f"{world.node.url}/v1/tables/rides/cancel", json={"run": run})
    assert answer.status_code == 200, answer.text
    cancelled = ended(world)
    assert (cancelled["id"], cancelled["state"]) == (run, "cancelled"), cancelled
    assert cancelled["message"].startswith("stopped: "), cancelled
    wait_until(lambda: not _has(world, "java"), what="the end of Spark", seconds=60)
    assert not _has(world, "table sync")

    (outcome,) = world.compact_here("rides")
    assert outcome.rows == 900
    world.check_exactly_once("rides")
    before = world.tables()["rides"]

    asked(world, "rebuild", {"columns": {"fare": "double"}, "partitions": ["stream"]})
    rebuilt = ended(world)
    assert (rebuilt["verb"], rebuilt["state"]) == ("rebuild", "done"), rebuilt
    world.check_exactly_once("rides")
    table = world.tables()["rides"]
    assert table["partitions"] == ["stream"] and table["location"] != before["location"]
    schema = world.http.get(f"{world.node.url}/v1/tables/rides/schema").json()
    assert {column["name"]: column["type"] for column in schema["columns"]}["fare"] == "double"
    wait_until(lambda: not _has(world, "java"), what="the end of Spark", seconds=60)


def _has(world: PipeWorld, words: str) -> bool:
    """Report whether a process with these words in its command line lives."""
    for process in processes_with(TAG, world.tag):
        with contextlib.suppress(psutil.Error):
            if words in " ".join(process.cmdline()):
                return True
    return False
