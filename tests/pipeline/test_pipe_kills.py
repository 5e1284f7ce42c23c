"""kill -9 of drivers at every step, against a real server: each record is one row everywhere, and
no process is left behind."""

from __future__ import annotations

import pytest
from long_tests import long
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(1800)]

STEPS = ("planned", "starting Spark", "plan-object", "ran", "result-object", "pointer")
# test_lake_crashes.py stops jobs between any two steps, without Spark
FEW_STEPS = (
    "planned",
    "ran",
    "pointer",
)


def fill(world: PipeWorld, run: int) -> None:
    """New records in old streams, a new stream, a new field, and one that fits no column."""
    for stream in ("air/aa", "air/ua", f"air/new{run}"):
        for batch in range(3):
            world.append(
                stream,
                *(
                    {"n": number, "run": run, "name": f"{stream}-{number}"}
                    for number in range(batch * 50, batch * 50 + 50)
                ),
            )
    world.append("air/aa", {"n": "seven", f"only{run}": {"deep": [run]}}, [run])


@pytest.mark.parametrize("steps", [FEW_STEPS, *long([(STEPS,)])], ids=["few", "all"])
def test_a_driver_killed_at_any_step_leaves_nothing_to_repair_by_hand(
    world: PipeWorld, steps: tuple[str, ...]
) -> None:
    world.start()
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    for run, step in enumerate(steps):
        fill(world, run)
        driver = world.spawn("table", "sync", "-v", "air")
        driver.wait_said(step)
        driver.kill(group=run % 2 == 1)
        world.wait_no_strays()
    fill(world, len(steps))
    done = world.run("compact", "air")
    assert done.code == 0, done
    world.check_exactly_once("air")
    assert world.tables()["air"]["records_behind"] == 0
    world.wait_no_strays()
