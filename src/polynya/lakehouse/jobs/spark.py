"""The pipeline on Spark, and the only file that imports pyspark. One `mapInArrow` over plan rows;
records never become JVM rows."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import polynya
from polynya.base.errors import ConfigError
from polynya.files import keep_private
from polynya.lakehouse.jobs.commit import cores_here
from polynya.lakehouse.jobs.plan import Job, store_settings
from polynya.lakehouse.jobs.task import TaskResult, run_task
from polynya.lakehouse.machine.java import find_java_home, quiet_logging
from polynya.lakehouse.reading.blobs import open_blobs
from polynya.objectstore import StoreSettings

_TASK_TRIES = 3


class SparkRunner:
    """A long-lived Spark session. `master` is Spark's setting; by default all cores of this
    machine."""

    def __init__(
        self, master: str = "", *, jars: str = "", settings: dict[str, str] | None = None
    ) -> None:
        self.cores = cores_here()
        self.session = _session(
            master or f"local[{self.cores},{_TASK_TRIES}]", jars, settings or {}
        )
        if master:
            self.cores = max(1, self.session.sparkContext.defaultParallelism)

    def run(self, job: Job, key: str) -> list[TaskResult]:
        """Run the tasks of the plan object at `key`, each as a Spark task with one plan row."""
        rows = self.session.range(0, len(job.tasks), 1, max(1, len(job.tasks)))
        found = rows.mapInArrow(
            _worker(store_settings(job.plan.store), key), "result binary"
        ).collect()
        results = [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in found]
        return sorted(results, key=lambda result: result.task)

    def close(self) -> None:
        self.session.stop()


def _worker(
    store: StoreSettings, key: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that a Spark task runs: plan rows in, result rows out."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keep_private()
        blobs = open_blobs(store)
        job: Job | None = None
        for batch in batches:
            for number in batch.column(0).to_pylist():
                job = job or msgspec.json.decode(blobs.get(key), type=Job)
                result = msgspec.json.encode(run_task(job, job.tasks[number], blobs))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([result], pa.binary())], names=["result"]
                )

    return work


def _session(master: str, jars: str, settings: dict[str, str]) -> Any:
    """Start a quiet session. A local one binds only to the loopback."""
    keep_private()  # the JVM starts the workers of a local master and inherits it
    os.environ["JAVA_HOME"] = find_java_home()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    package = str(Path(polynya.__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if package not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, paths)])
    try:
        from pyspark.sql import SparkSession
    except ImportError as fault:
        raise ConfigError(
            "the tables' pipeline needs PySpark: install 'polynya[lake]' or 'pyspark>=4.1,<4.4'"
        ) from fault
    logging.getLogger("py4j").setLevel(logging.ERROR)
    builder = SparkSession.builder.master(master).appName("polynya-lake")
    # On Java 24 and newer, netty disables direct memory by default, but Spark's Arrow needs it.
    options = f"-Dlog4j2.configurationFile={quiet_logging()} -Dio.netty.noUnsafe=false {_JVM}"
    own = {"spark.driver.extraJavaOptions": options} | ({"spark.jars": jars} if jars else {})
    for name, value in (
        _SETTINGS | (_LOOPBACK if master.startswith("local") else {}) | own | settings
    ).items():
        builder = builder.config(name, value)
    handler = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # Spark replaces it with its own handler
    session.sparkContext.setLogLevel("ERROR")
    return session


# the JVM only schedules: a third less start-up time, a quarter less CPU per job (measured)
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",  # a second copy of a task would write an unreferenced file
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
