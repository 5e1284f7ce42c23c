"""Memory of a resident worker for ten tables: its driver, the JVM and the Python workers together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import spark_classes
from polling import wait_until
from worlds.pipeline import PipeWorld

pytestmark = [
    pytest.mark.process,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(900),
]
MIB = 1 << 20
AT_WORK_MAX = 1200 * MIB
IDLE_MAX = 700 * MIB
NAMES = [f"t{number}" for number in range(10)]
ROUNDS = 3
RECORDS = 200  # a stream and round, of about 1 KB each
STREAMS = 4  # a table


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PipeWorld]:
    monkeypatch.delenv(spark_classes.VARIABLE, raising=False)  # users have no archive of classes
    made = PipeWorld(tmp_path / "data")
    try:
        yield made
    finally:
        made.close()


def pss_bytes(world: PipeWorld) -> int:
    """The proportional set size of all processes of the worker."""
    found = 0
    for process in world.processes():
        with contextlib.suppress(psutil.Error):  # one that has just ended
            found += process.memory_full_info().pss
    return found


def append_to_all(world: PipeWorld, number: int) -> int:
    """One append to each stream of each table. Return the records of a table."""
    for name in NAMES:
        for stream in range(STREAMS):
            values = [{"n": number, "i": each, "text": "x" * 900} for each in range(RECORDS)]
            world.append(f"{name}/{stream}", *values)
    return (number + 1) * STREAMS * RECORDS


def test_a_worker_for_ten_tables_is_small(world: PipeWorld) -> None:
    world.start("--cores", "1")
    for name in NAMES:
        path = f"{world.node.url}/v1/tables/{name}"
        assert world.http.put(path, json={"prefix": f"{name}/"}).status_code == 201
    rows = append_to_all(world, 0)
    world.spawn("lake", "run", "--interval", "1s")
    at_work: list[int] = []

    def are_done() -> bool:
        at_work.append(pss_bytes(world))
        tables = world.tables().values()
        return all(table["rows"] == rows and not table["records_behind"] for table in tables)

    for number in range(1, ROUNDS + 1):
        wait_until(are_done, what=f"{rows} rows in each table", seconds=300, pause=0.2)
        if number < ROUNDS:
            rows = append_to_all(world, number)
    idle = wait_until(  # Spark ends Python processes that had no task for a minute
        lambda: pss if (pss := pss_bytes(world)) < IDLE_MAX else 0,
        what=f"an idle worker below {IDLE_MAX // MIB} MiB, not {pss_bytes(world) // MIB}",
        seconds=150,
        pause=2.0,
    )
    print(f"PSS: at work {max(at_work) // MIB} MiB, idle {idle // MIB} MiB")
    assert max(at_work) <= AT_WORK_MAX
