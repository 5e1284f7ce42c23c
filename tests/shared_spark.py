"""One Spark session for the files that can share it: to start a JVM costs more than what most tests
do with it. It has the readers of Iceberg and Delta, and ends before a test of another file begins:
a process has one session at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tiers.process_starts import note_process

FILES = {  # one worker runs them, one after the other
    "tests/lakehouse/test_declared_readers.py",
    "tests/lakehouse/test_lake_chains.py",
    "tests/lakehouse/test_lake_derived.py",
    "tests/lakehouse/test_lake_keyed.py",
    "tests/lakehouse/test_lake_payload_readers.py",
    "tests/lakehouse/test_lake_spark.py",
    "tests/pipeline/test_pipe_catalog.py",
    "tests/spark/test_spark_source.py",
}
ROOT = Path(__file__).parents[1]
READERS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # tables of some kilobytes: Delta would read each log by 50 tasks
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
}
_running: list[Any] = []


def shared_runner() -> Any:
    """Return the runner of the session, which is started by the first caller. Leave it open."""
    # `conftest.py` imports this file, also where mutants run with a part of the product
    from spark_jars import readers_jars

    from polynya.lakehouse.jobs.spark import SparkRunner

    note_process()
    if not _running:
        jars = readers_jars()[0]
        _running.append(SparkRunner("local[2]", jars=jars, settings=READERS if jars else {}))
    return _running[0]


class Unclosed:
    """The shared runner, which outlives a single run."""

    def __init__(self, runner: Any) -> None:
        self.whole = runner
        self.cores, self.run, self.derive = runner.cores, runner.run, runner.derive


@contextmanager
def configured(session: Any, settings: dict[str, str]) -> Iterator[Any]:
    """Change settings of the session until `with` ends."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield session
    finally:
        for name, value in before.items():
            if value is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, value)


def shares(item: pytest.Item) -> bool:
    return item.path.relative_to(ROOT).as_posix() in FILES


def is_open() -> bool:
    return bool(_running)


def end_before(item: pytest.Item | None) -> None:
    """End the session if this test, the next one, is of another file."""
    if _running and (item is None or not shares(item)):
        _running.pop().close()
