"""kill -9 of drivers at every step, against a real server: each record is one row everywhere, and
no process is left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal

import psutil
import pytest
from long_tests import long
from polling import wait_until
from worlds.pipeline import Driver, PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(1800)]

STEPS = ("planned", "starting Spark", "plan-object", "ran", "result-object", "pointer")
# test_lake_crashes.py stops jobs between any two steps, without Spark
FEW_STEPS = ("pointer",)
DAEMON = "polynya.lakehouse.machine.python_daemon"


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
    world.compact_here("air")
    world.check_exactly_once("air")
    assert world.tables()["air"]["records_behind"] == 0
    world.wait_no_strays()


def workers_of(driver: Driver) -> list[int]:
    """The Python workers of the driver's Spark, which wait for tasks or run one."""
    found = []
    for process in psutil.Process(driver.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            parent = process.parent()
            if parent and all(DAEMON in each.cmdline() for each in (process, parent)):
                found.append(process.pid)
    return found


def jvm_of(driver: Driver) -> int:
    """Return the process id of the JVM of the driver's session."""
    (found,) = (
        process.pid
        for process in psutil.Process(driver.process.pid).children()
        if "org.apache.spark.deploy.SparkSubmit" in process.cmdline()
    )
    return found


def is_writing(pid: int, store: str) -> bool:
    """Report whether the process has a new file of the store open, so is in the middle of a task."""
    with contextlib.suppress(OSError):  # the process or the file has gone
        files = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        return any(path.startswith(store) and "/.tmp/" in path for path in files)
    return False


def kill_in_a_task(world: PipeWorld, driver: Driver, run: int) -> int:
    """Append records until a worker of the driver is seen to write them; kill it. Its pid."""
    store = str(world.data / "objects")
    for again in range(20):
        workers = workers_of(driver)
        fill(world, run)
        for part in range(4):
            rows = ({"n": n, "text": f"{run} {again} {n} " * 40} for n in range(4000))
            world.append(f"air/long{part}", *rows)
        looks = itertools.count(1)

        def look(workers: list[int] = workers, looks: itertools.count[int] = looks) -> int | None:
            for pid in workers:
                if is_writing(pid, store):
                    os.kill(pid, signal.SIGKILL)
                    return pid
            done = next(looks) % 100 == 0 and not world.tables()["air"]["records_behind"]
            return -1 if done else None

        found = wait_until(look, what=f"a task for kill {run}", seconds=200, pause=0.001)
        if found > 0:
            return found
    raise AssertionError(f"no worker was seen in a task: {driver.lines}")


@pytest.mark.parametrize(("kills", "count"), [(1, 1), *long([(10, 2)])])
def test_python_workers_killed_in_their_tasks(world: PipeWorld, kills: int, count: int) -> None:
    """The drivers go on in their sessions, and in another one once their JVM was killed, too; two of
    them race for each job."""
    world.start("--cores", "2")
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    options = ("--interval", "0.2s", "--master", "local[1,3]")
    drivers = [world.spawn("lake", "run", "-v", *options) for _ in range(count)]

    def wait_fresh() -> None:
        wait_until(
            lambda: world.tables()["air"]["records_behind"] == 0, what="the table", seconds=300
        )

    def has_worker(driver: Driver) -> bool:
        fill(world, kills)
        return bool(workers_of(driver))

    for driver in drivers:
        wait_until(lambda driver=driver: has_worker(driver), what="Spark", seconds=300, pause=3)
    wait_fresh()
    killed = set()
    for run in range(kills):
        killed.add(kill_in_a_task(world, drivers[run % count], run))
        wait_fresh()
    assert len(killed) == kills
    assert all(sum("starting Spark" in line for line in each.lines) == 1 for each in drivers)
    os.kill(jvm_of(drivers[0]), signal.SIGKILL)
    fill(world, kills)
    wait_fresh()
    assert count > 1 or sum("starting Spark" in line for line in drivers[0].lines) == 2
    for driver in drivers:
        assert driver.process.poll() is None, driver.lines
        driver.process.send_signal(signal.SIGTERM)
        assert driver.wait() == 0, driver.lines
    world.compact_here("air")
    world.check_exactly_once("air")
    world.wait_no_strays()
