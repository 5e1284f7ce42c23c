"""The pipeline on Spark: one `mapInArrow` over plan rows; records never become JVM rows."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

import polynya
from polynya.base.errors import ConfigError
from polynya.files import keep_private
from polynya.lakehouse.jobs.commit import cores_here
from polynya.lakehouse.jobs.executors import Shipment, check_executors
from polynya.lakehouse.jobs.plan import Job, store_settings
from polynya.lakehouse.jobs.results import Asked, Derived
from polynya.lakehouse.jobs.spark_tasks import run_tasks
from polynya.lakehouse.jobs.task import TaskResult
from polynya.lakehouse.machine.java import find_java_home, quiet_logging
from polynya.lakehouse.machine.jvm import Jvm
from polynya.lakehouse.machine.master import check_master, default_settings, is_local
from polynya.lakehouse.machine.needs import INSTALL
from polynya.objectstore import StoreSettings

_TASK_TRIES = 3
_NAME = "polynya-lake"  # of the application
_PYTHON = "spark.pyspark.python"
_ENDED = "stopped SparkContext"


class SparkRunner:
    """A long-lived Spark session. `master` is Spark's setting; by default all cores of this
    machine."""

    def __init__(
        self, master: str = "", *, jars: str = "", settings: Mapping[str, str] | None = None
    ) -> None:
        """Start the session. Raises ConfigError, Unavailable if the master cannot be had."""
        check_master(master or "local", settings or {})
        self._given = master
        self._shipment: Shipment | None = None
        self._checked: set[StoreSettings] = set()  # stores that executors can read
        self.session, self._jvm = _session(
            master or f"local[{cores_here()},{_TASK_TRIES}]", jars, settings or {}
        )
        if is_local(master or "local"):
            return
        self._shipment = Shipment()
        try:
            self.session.sparkContext.addPyFile(self._shipment.path)
            check_executors(self.session)
        except BaseException:
            self.close()
            raise

    @property
    def cores(self) -> int:
        """Return the cores that run tasks, as far as their executors have started."""
        if not self._given:
            return cores_here()
        return max(1, self.session.sparkContext.defaultParallelism)

    def run(self, job: Job, key: str) -> list[TaskResult]:
        """Run the tasks of the plan at `key`, each as a Spark task with one plan row."""
        with self._jvm.watched():
            store = self._store(job)
            self._share_fairly(job)
            rows = self.session.range(0, len(job.tasks), 1, max(1, len(job.tasks)))
            found = rows.mapInArrow(partial(run_tasks, store, key), "result binary").collect()
        results = [msgspec.json.decode(bytes(row.result), type=TaskResult) for row in found]
        return sorted(results, key=lambda result: result.task)

    def derive(
        self, job: Job, key: str, asked: Asked, shaped: Callable[[pa.Schema], tuple[Job, str]]
    ) -> Derived:
        """Run a user's transform over the rows of the job's ranges."""
        from polynya.lakehouse.jobs.transform import derived

        with self._jvm.watched():
            self._store(job)
            self._share_fairly(job)
            # a session of its own: its view and its settings are no other table's
            return derived(self.session.newSession(), job, key, asked, shaped)

    def works(self) -> bool:
        """Report whether the session can run jobs."""
        try:
            return not self.session.sparkContext._jsc.sc().isStopped()
        except Exception:
            return False  # the JVM is gone

    def _share_fairly(self, job: Job) -> None:
        """Put the jobs of this thread into the table's pool: tables that are synced side by side
        get equal shares of the cores."""
        self.session.sparkContext.setLocalProperty("spark.scheduler.pool", job.plan.table.uid)

    def close(self) -> None:
        """Stop the session and its JVM."""
        try:
            with suppress(Exception):  # the JVM is gone
                self.session.stop()
        finally:
            self._jvm.close()
            if self._shipment is not None:
                self._shipment.close()

    def _store(self, job: Job) -> StoreSettings:
        """Return the job's store. Executors of a cluster are checked before their first job
        there."""
        store = store_settings(job.plan.store)
        if self._shipment is not None and store not in self._checked:
            check_executors(self.session, store)
            self._checked.add(store)
        return store


def _is_news(record: logging.LogRecord) -> bool:
    """Drop the traceback that py4j logs of a lost JVM, which is raised, too."""
    return record.msg != "Exception while sending command."


def _session(master: str, jars: str, settings: Mapping[str, str]) -> tuple[Any, Jvm]:
    """Start a quiet session in a JVM of its own. A local one binds only to the loopback."""
    keep_private()  # the JVM starts the workers of a local master and inherits it
    _prepare_environment(master, settings)
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as fault:
        raise ConfigError(f"the tables' pipeline needs PySpark: {INSTALL}") from fault
    logging.getLogger("py4j").setLevel(logging.ERROR)
    logging.getLogger().addFilter(_is_news)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # they repeat what is raised
    # On Java 24 and newer, netty disables direct memory by default, but Spark's Arrow needs it.
    options = f"-Dlog4j2.configurationFile={quiet_logging()} -Dio.netty.noUnsafe=false {_JVM}"
    chosen = {**_SETTINGS, **(_LOCAL if is_local(master) else {})}
    chosen |= {"spark.driver.extraJavaOptions": options}
    chosen |= {"spark.jars": jars} if jars else {}
    chosen |= {"spark.master": master, "spark.app.name": _NAME, **settings}
    jvm = Jvm(chosen)
    try:
        handler = signal.getsignal(signal.SIGINT)
        session = SparkSession.builder.config(map={**chosen}).getOrCreate()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)  # Spark replaces it with its own handler
        session.sparkContext.setLogLevel("ERROR")
    except (PySparkException, Py4JError) as fault:
        cause = _first_cause(fault)  # needs the JVM
        jvm.close()
        raise ConfigError(f"Spark did not start at {master}: {cause}") from None
    except BaseException:
        jvm.close()
        raise
    return session, jvm


def _prepare_environment(master: str, settings: Mapping[str, str]) -> None:
    """Set what Spark reads from the environment: Java, and the Python of tasks. That of a cluster is
    the one on its own machines."""
    os.environ["JAVA_HOME"] = find_java_home()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if not is_local(master):
        chosen = settings.get(_PYTHON) or default_settings().get(_PYTHON)
        os.environ["PYSPARK_PYTHON"] = chosen or os.environ.get("PYSPARK_PYTHON") or "python3"
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # the JVM has 140 threads
    package = str(Path(polynya.__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if package not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, paths)])


def _first_cause(fault: Exception) -> str:
    """Return the line of a Java or Spark error that names its cause."""
    lines = [line.strip() for line in str(fault).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith(": ")]
    cause = (causes or lines or [type(fault).__name__])[0].removeprefix(": ")[:300]
    if _ENDED in cause:
        return "the master ended the application; the logs of its workers say why"
    return cause


# the JVM only schedules: a third less start-up time, a quarter less CPU per job (measured)
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xms48m -XX:MaxHeapFreeRatio=40"
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "polynya.lakehouse.machine.python_daemon",
}
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",  # between the tables that are synced side by side
    "spark.speculation": "false",  # a second copy of a task would write an unreferenced file
    "spark.python.worker.reuse": "true",
    # Spark estimates what Python's tasks return by what they get, here the rows of a plan: every join
    # would be broadcast, of ten million rows too
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
}
