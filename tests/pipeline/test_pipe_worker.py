"""`polynya lake run`, by hand and as the server's child: it keeps tables fresh, outlives a restart
of the server, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from long_tests import long
from polling import wait_until
from product import SOURCE
from worlds.pipeline import PipeWorld

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]


def wait_fresh(world: PipeWorld, rows: int) -> None:
    def look() -> bool:
        table = world.tables()["air"]
        return table["records_behind"] == 0 and table["rows"] == rows

    wait_until(look, what=f"{rows} rows in the table", seconds=400)


def programs_below(world: PipeWorld) -> list[str]:
    """Return the names of all descendants of the node's process."""
    found = []
    for process in psutil.Process(world.node.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one of Spark's that is just ending
            found.append(process.name())
    return found


def derive(world: PipeWorld, folder: Path) -> None:
    """Two derived tables of the same streams: by SQL and by a function."""
    (folder / "even.sql").write_text("select stream, `offset`, n from input where n % 2 = 0;\n")
    (folder / "of_air.py").write_text(
        "from pyspark.sql import DataFrame, functions as f\n\n"
        "def sums(frame: DataFrame) -> DataFrame:\n"
        "    return frame.groupBy('stream').agg(f.sum('n').alias('total'))\n"
    )
    sql, function = ("--sql", str(folder / "even.sql")), ("--python", "of_air:sums")
    for name, transform in (("even", sql), ("sums", function)):
        made = world.run("table", "create", name, "--from", "air/", *transform)
        assert made.code == 0, made


def derived(world: PipeWorld, name: str) -> list[tuple[Any, ...]]:
    """The rows of a derived table, once it is up to date and both formats have them: Delta gets a
    job right after Iceberg, and `records_behind` is of Iceberg."""

    def look() -> list[tuple[Any, ...]] | None:
        if world.tables()[name]["records_behind"] != 0:
            return None
        first, second = (
            sorted(tuple(row.values()) for row in read(name))
            for read in (world.iceberg, world.delta)
        )
        return first if first == second else None

    return wait_until(look, what=f"the table {name} in both formats", seconds=200)


def test_a_worker_keeps_tables_fresh_and_outlives_the_server(
    world: PipeWorld, tmp_path: Path
) -> None:
    world.variables["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(tmp_path)])
    world.start()
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    derive(world, tmp_path)
    worker = world.spawn("lake", "run", "--interval", "0.2s")
    world.append("air/a", {"n": 1})
    wait_fresh(world, 1)
    world.append("air/b", {"n": 2}, {"n": 3})
    wait_fresh(world, 3)
    world.node.kill()
    worker.wait_said("retrying in")
    world.start()
    world.append("air/b", {"n": 4})
    wait_fresh(world, 4)
    assert derived(world, "even") == [("air/b", 0, 2), ("air/b", 2, 4)]
    sums = derived(world, "sums")  # of each job's records
    assert [sum(row[1] for row in sums if row[0] == name) for name in ("air/a", "air/b")] == [1, 9]
    asked = world.run("sql", "select * from even")  # which has no column `value`
    assert asked.code == 0 and asked.out.count("air/b") == 2
    listed = world.run("table", "ls").out
    assert listed.count("up to date") == 3, listed
    assert sum("starting Spark" in line for line in worker.lines) == 1  # one session for all of it
    worker.process.send_signal(signal.SIGINT)  # as Ctrl-C, which Spark would like to answer itself
    assert worker.wait(200) == 0, worker.lines
    assert "Traceback" not in "".join(worker.lines)
    world.wait_no_strays()
    # a job that was just being committed was brought into both formats
    world.check_exactly_once("air")


@pytest.mark.parametrize("number", [signal.SIGTERM, *long([signal.SIGINT])])
def test_a_worker_that_is_stopped_as_spark_starts_leaves_nothing(
    world: PipeWorld, tmp_path: Path, number: signal.Signals
) -> None:
    world.variables["TMPDIR"] = str(tmp_path)
    world.start()
    assert world.run("table", "create", "air", "--prefix", "air/").code == 0
    world.append("air/a", {"n": 1})
    worker = world.spawn("lake", "run", "--interval", "0.2s")
    wait_until(lambda: list(tmp_path.glob("polynya-jvm-*")), what="Spark to start", pause=0.002)
    worker.process.send_signal(number)
    assert worker.wait(200) == 0, worker.lines
    assert "Traceback" not in "".join(worker.lines)
    world.wait_no_strays()
    assert not list(tmp_path.glob("polynya-jvm-*"))
    world.compact_here()
    world.check_exactly_once("air")


@pytest.mark.long
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
