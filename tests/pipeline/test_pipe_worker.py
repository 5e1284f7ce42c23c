"""`polynya lake run`: by hand and as the server's child; it keeps tables fresh, outlives a restart
of the server, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest
from polling import wait_until
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]


def wait_fresh(world: PipeWorld, rows: int) -> None:
    def look() -> bool:
        table = world.tables()["air"]
        return table["records_behind"] == 0 and table["rows"] == rows

    wait_until(look, what=f"{rows} rows in the table", seconds=400)


def programs_below(world: PipeWorld) -> list[str]:
    """What the node has started, and what those have started."""
    found = []
    for process in psutil.Process(world.node.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one of Spark's that is just ending
            found.append(process.name())
    return found


def test_a_worker_keeps_tables_fresh_and_outlives_the_server(world: PipeWorld) -> None:
    world.start()
    worker = world.spawn("lake", "run", "--interval", "0.2s")
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    world.append("air/a", {"n": 1})
    wait_fresh(world, 1)
    world.append("air/b", {"n": 2}, {"n": 3})
    wait_fresh(world, 3)
    world.node.kill()
    worker.wait_said("retrying in")
    world.start()
    world.append("air/b", {"n": 4})
    wait_fresh(world, 4)
    assert sum("starting Spark" in line for line in worker.lines) == 1  # one session for all of it
    worker.process.send_signal(signal.SIGINT)  # as Ctrl-C, which Spark would like to answer itself
    assert worker.wait(200) == 0, worker.lines
    assert "Traceback" not in "".join(worker.lines)
    world.wait_no_strays()
    # a job that was just being committed was brought into both formats
    world.check_exactly_once("air")


def test_the_servers_own_worker_dies_with_it(world: PipeWorld) -> None:
    world.start("--lake-interval", "200ms")
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    world.append("air/a", {"n": 1})
    wait_fresh(world, 1)

    assert any("java" in name for name in programs_below(world))
    (worker,) = (
        process
        for process in psutil.Process(world.node.process.pid).children()
        if "lake" in process.cmdline()
    )
    worker.kill()  # the node starts it again
    wait_until(lambda: "lake worker ended" in "".join(world.node.log), what="the node to notice")
    world.append("air/a", {"n": 2})
    wait_fresh(world, 2)
    assert world.node.stop() == 0
    world.wait_no_strays()
    world.start("--lake-interval", "200ms")
    world.append("air/a", {"n": 3})
    wait_fresh(world, 3)
    world.node.kill()
    world.wait_no_strays()
    world.start()
    world.compact_here()
    world.check_exactly_once("air")
