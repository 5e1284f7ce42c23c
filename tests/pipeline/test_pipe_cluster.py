"""Tables from a Spark cluster: a master, two workers, and a bucket. Real flights, read back in both
formats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from missing import needed_module
from s3_server import S3Server
from worlds.pipeline import PipeWorld
from worlds.spark_cluster import SparkCluster

from polynya.base.errors import ConfigError, Unavailable
from polynya.cli.demo.flights import event, rows
from polynya.lakehouse.jobs import executors
from polynya.lakehouse.jobs.executors import check_executors
from polynya.lakehouse.jobs.worker import compact
from polynya.lakehouse.server.coordinator import HttpCoordinator
from polynya.objectstore import StoreSettings

pytestmark = [pytest.mark.process, pytest.mark.spark, pytest.mark.timeout(900)]
needed_module("pyspark")
FLIGHTS = 10_000
ROOT = str(Path(__file__).parent.parent.parent)


@pytest.fixture(scope="module")
def variables(s3_server: S3Server) -> dict[str, str]:
    return {f"POLYNYA_COLD_{name.upper()}": text for name, text in s3_server.settings().items()}


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]
) -> Iterator[SparkCluster]:
    keys = {name: text for name, text in variables.items() if name.endswith(("_ID", "_KEY"))}
    made = SparkCluster(tmp_path_factory.mktemp("spark") / "cluster", **keys)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def runner(cluster: SparkCluster) -> Iterator[Any]:
    from polynya.lakehouse.jobs.spark import SparkRunner

    made = SparkRunner(cluster.url, settings=cluster.settings())
    yield made
    made.close()


class Unclosed:
    """The module's runner, which outlives the command that uses it."""

    def __init__(self, runner: Any) -> None:
        self.cores, self.run, self.derive = runner.cores, runner.run, runner.derive


def flights() -> dict[str, list[dict[str, Any]]]:
    """The first flights that left New York in 2013, by their stream."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in islice(rows(), FLIGHTS):
        found.setdefault(f"air/{row['origin']}", []).append(json.loads(event(row)))
    return found


def machine_of_task() -> Callable[[int], dict[str, Any]]:
    """A function that is sent by value: what a task sees of its machine."""

    def seen(_: int) -> dict[str, Any]:
        import os
        import sys

        import polynya

        return {
            "python": sys.executable,
            "folder": os.getcwd(),
            "home": os.environ["HOME"],
            "variables": {
                name: text
                for name, text in os.environ.items()
                if name.startswith(("POLYNYA", "PY", "SPARK"))
            },
            "code": polynya.__file__,
        }

    return seen


def test_flights_become_a_table_on_two_machines(
    tmp_path: Path,
    variables: dict[str, str],
    cluster: SparkCluster,
    runner: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)  # the driver is this process
    world = PipeWorld(tmp_path / "data", **variables)
    try:
        world.start("--cores", "2")
        assert world.run("table", "create", "air", "--prefix", "air/").code == 0
        by_stream = flights()
        for stream, events in by_stream.items():
            for at in range(0, len(events), 1000):
                world.append(stream, *events[at : at + 1000])
        coordinator = HttpCoordinator(world.node.admin, world.node.url, world.http)
        messages: list[str] = []
        (outcome,) = compact(
            coordinator, ["air"], lambda: Unclosed(runner), lambda step, text: messages.append(text)
        )
        assert (outcome.rows, outcome.dead_rows) == (FLIGHTS, 0), messages
        world.check_exactly_once("air")
        read = {(row["stream"], row["offset"]): row for row in world.iceberg("air")}
        for stream, events in by_stream.items():
            columns = ("carrier", "flight", "dep_delay", "dest")
            assert [[read[stream, n][name] for name in columns] for n in range(len(events))] == [
                [flight[name] for name in columns] for flight in events
            ]
        # a derived table's input and output pass through the JVM of executors
        query = tmp_path / "late.sql"
        query.write_text("select stream, carrier, dep_delay from input where dep_delay > 60\n")
        made = world.run("table", "create", "late", "--from", "air/", "--sql", str(query))
        assert made.code == 0, made
        (derived,) = compact(
            coordinator, ["late"], lambda: Unclosed(runner), lambda step, text: None
        )
        wanted = sorted(
            (stream, flight["carrier"], flight["dep_delay"])
            for stream, events in by_stream.items()
            for flight in events
            if (flight["dep_delay"] or 0) > 60
        )
        for found in (world.iceberg("late"), world.delta("late")):
            assert sorted(tuple(row.values()) for row in found) == wanted
        assert derived.rows == len(wanted) > 100
    finally:
        world.close()


def test_tasks_have_no_path_of_the_drivers_machine(cluster: SparkCluster, runner: Any) -> None:
    context = runner.session.sparkContext
    assert runner.cores == 2
    seen = context.parallelize(range(4), 4).map(machine_of_task()).collect()
    homes = {str(cluster.folder / f"worker{number}") for number in range(2)}
    for each in seen:
        assert each["home"] in homes and each["folder"].startswith(each["home"])
        assert each["python"].startswith(str(cluster.folder))
        assert each["code"].startswith("./polynya-code.zip/"), each  # in its own folder
        # the class loader of its own Spark resolves the link
        text = json.dumps(each).replace(str((cluster.folder / "spark").resolve()), "")
        assert ROOT not in text and os.environ["HOME"] + "/" not in text, each


def test_what_executors_lack_is_named(
    s3_server: S3Server, runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = runner.session
    bucket = StoreSettings(
        backend="s3", s3_bucket="none-such", s3_region="us-east-1", s3_endpoint=s3_server.endpoint
    )
    for store, message in (
        (bucket, "s3://none-such"),
        (StoreSettings(root="/no/such"), "/no/such, which is not on this machine"),
    ):
        with pytest.raises(ConfigError, match=rf"executors of spark://.*: .*{message}"):
            check_executors(session, store)
    with monkeypatch.context() as changed:
        changed.setattr(session.sparkContext, "pythonVer", "3.9")
        with pytest.raises(ConfigError, match=r"has another version than the driver's 3\."):
            check_executors(session)
    with monkeypatch.context() as changed:
        changed.setattr(session.sparkContext, "pythonExec", "/no/such/python")
        with pytest.raises(ConfigError, match=r"have no '/no/such/python': set PYSPARK_PYTHON"):
            check_executors(session)
    with monkeypatch.context() as changed:
        changed.setattr(executors, "EXECUTORS_SECONDS", 0.5)
        changed.setattr(executors, "_probe", lambda store: asleep())
        with pytest.raises(Unavailable, match=r"ran a task within .* at 127\.0\.0\.1:\d+"):
            check_executors(session)
    check_executors(session)


def asleep() -> Callable[[int], str]:
    def probe(_: int) -> str:
        import threading

        threading.Event().wait(5)
        return ""

    return probe
