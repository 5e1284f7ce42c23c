"""The executors of a Spark cluster: send them this release's code, and check them before the first
job.

Spark itself waits for executors without an end, and repeats a task that cannot import its modules
until the job fails with a stack trace.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import polynya
from polynya.base.errors import ConfigError, Unavailable
from polynya.lakehouse.machine.needs import INSTALL
from polynya.objectstore import StoreSettings

PACKAGES = ("cramjam", "google_crc32c", "msgspec", "numpy", "obstore", "pyarrow", "pyiceberg")
# until a first executor answers: YARN and Kubernetes start containers for it
EXECUTORS_SECONDS = 120.0
PROBES_MAX = 64  # tasks of a check; more executors than that are not all asked
_PYTHONS_DIFFER = "PYTHON_VERSION_MISMATCH"
_NO_PYTHON = "Cannot run program"


class Shipment:
    """The code of this package as a zip file, from which executors import it. It lives as long as
    the session, as executors that start later fetch it too."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="polynya-code-")
        self.path = str(Path(self._folder.name) / "polynya-code.zip")
        package = Path(polynya.__file__).resolve().parent
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
            for path in sorted(package.rglob("*.py")):
                file.write(path, path.relative_to(package.parent))

    def close(self) -> None:
        self._folder.cleanup()


def check_executors(session: Any, store: StoreSettings | None = None) -> None:
    """Let executors import a task's modules and list keys of the store. Raises ConfigError with what
    one of them lacks, Unavailable if none answers in time."""
    context = session.sparkContext
    count = min(PROBES_MAX, max(2, context.defaultParallelism))
    answers = _in_time(context, lambda: context.parallelize(range(count), count), _probe(store))
    faults = {fault for fault in answers if fault}
    if faults:
        raise ConfigError(f"executors of {context.master}: {'; '.join(sorted(faults))}")


def _in_time(context: Any, numbers: Callable[[], Any], probe: Callable[[int], str]) -> list[str]:
    """Return the answers to `probe`."""
    ended: list[list[str] | Exception] = []

    def ask() -> None:
        try:
            ended.append(numbers().map(probe).collect())
        except Exception as fault:
            ended.append(fault)

    asking = threading.Thread(target=ask, name="executors", daemon=True)
    asking.start()
    asking.join(EXECUTORS_SECONDS)
    if not ended:
        context.cancelAllJobs()
        host, port = (context.getConf().get(f"spark.driver.{each}") for each in ("host", "port"))
        raise Unavailable(
            f"no executor of {context.master} ran a task within {EXECUTORS_SECONDS:.0f} s: the "
            "cluster has no free cores or memory (spark.cores.max, spark.executor.memory), or its "
            f"machines cannot connect to the driver at {host}:{port} (spark.driver.host)"
        )
    if isinstance(ended[0], Exception):
        raise _explained(ended[0], context) from ended[0]
    return ended[0]


def _explained(fault: Exception, context: Any) -> Exception:
    """Return a fault that kept the check from running, in words."""
    text, python = str(fault), f"{sys.version_info.major}.{sys.version_info.minor}"
    if _PYTHONS_DIFFER in text:
        return ConfigError(
            f"the Python '{context.pythonExec}' of executors of {context.master} has another "
            f"version than the driver's {python}: set PYSPARK_PYTHON, or --conf "
            "spark.pyspark.python=PATH, to a Python "
            f"{python} on their machines"
        )
    if _NO_PYTHON in text:
        return ConfigError(
            f"executors of {context.master} have no '{context.pythonExec}': set PYSPARK_PYTHON, or "
            "--conf spark.pyspark.python=PATH, to the Python on their machines"
        )
    lines = [line for line in text.splitlines() if line.strip()] or [type(fault).__name__]
    return Unavailable(f"executors of {context.master} ran no task: {lines[0][:300]}")


def _probe(store: StoreSettings | None) -> Callable[[int], str]:
    """Return a function that an executor runs. As it is not this module's, it is sent by value: an
    executor that lacks a package can still run it."""
    packages, install = PACKAGES, INSTALL
    fields = None if store is None else msgspec.structs.asdict(store)

    def probe(number: int) -> str:
        import importlib.util
        import socket
        import sys

        missing = [name for name in packages if importlib.util.find_spec(name) is None]
        host = socket.gethostname()
        if missing:
            return (
                f"{', '.join(missing)} not installed for {sys.executable} on {host} ({install} "
                "there, or --conf spark.archives with an environment)"
            )
        try:
            import polynya.lakehouse.jobs.spark_tasks  # noqa: F401
            from polynya.base.errors import PolynyaError
            from polynya.lakehouse.machine.store import check_store
            from polynya.objectstore import StoreSettings
        except ImportError as fault:
            return f"{fault} on {host}"
        try:
            if fields is not None:
                check_store(StoreSettings(**fields))
        except PolynyaError as fault:
            return f"{host}: {fault}"
        return ""

    return probe
