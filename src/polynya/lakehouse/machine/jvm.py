"""The JVM of one Spark session.

PySpark keeps one JVM for a process: a later session would get that of an earlier one, with its jars
and options. So each session launches its own, which ends with it. It also ends when its standard
input does, thus with this process.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from polynya.base.errors import ConfigError

LOST_SECONDS = 2.0  # between the end of a JVM's connection and that of its process
ENDS_SECONDS = 10.0  # that a JVM has to end, before it is killed
_POLL_SECONDS = 0.05
_LENGTHS = struct.Struct(">ii")  # the port, and the length of the secret that follows
# Ctrl-C is for the driver, which stops its session; an ignored signal stays so in the JVM
_DEAF = ("bash", "-c", 'trap "" INT; exec "$@"', "spark-submit")
_lock = threading.Lock()  # of PySpark's gateway, and of the variables with which it is told


class JvmEnded(ConnectionError):
    """The JVM of a session ended or was killed."""


class Jvm:
    """A JVM, as long as it runs the one of PySpark in this process. Use `close`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """Launch it with the settings of `spark-submit`. Raises ConfigError if it ends, or if this
        process has a Spark session."""
        from pyspark import SparkContext

        with _lock:
            if SparkContext._active_spark_context is not None:
                raise ConfigError("this process has another Spark session; stop it first")
            self._process, self._gateway = _launched(settings)
            self._before = (SparkContext._gateway, SparkContext._jvm)
            SparkContext._gateway, SparkContext._jvm = self._gateway, self._gateway.jvm

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        return self._process.pid

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raise JvmEnded for what py4j raises of a JVM that has ended."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError:
            raise  # the JVM's own answer
        except (Py4JError, OSError) as fault:
            try:
                code = self._process.wait(LOST_SECONDS)
            except subprocess.TimeoutExpired:
                raise fault from None
            raise JvmEnded(
                f"Spark's JVM ended with {code} in a job, perhaps because it was killed or memory was "
                "short; the job can run again"
            ) from fault

    def close(self) -> None:
        """End the JVM, and what PySpark knows of it. Its session is stopped before, or is lost."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with _lock:
            if SparkContext._gateway is self._gateway:
                SparkContext._gateway, SparkContext._jvm = self._before
                SparkContext._active_spark_context = None
                SparkSession._instantiatedSession = SparkSession._activeSession = None
        try:
            self._gateway.shutdown()
        finally:
            _end(self._process, ENDS_SECONDS)


def _launched(settings: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Any]:
    """Start a JVM and connect to it. Nothing of it is left if that fails, or is interrupted: it
    starts in a thread, where no signal raises an exception between its fork and its first use."""
    from pyspark import find_spark_home

    home: Any = find_spark_home
    command = [*_DEAF, os.path.join(home._find_spark_home(), "bin", "spark-submit")]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    launch = _Launch(command)
    try:
        launch.start()
        launch.over.wait()  # a join that a signal interrupts takes the thread for ended
    except BaseException:
        launch.unwanted.set()
        if launch.begun.is_set():
            launch.over.wait()
        raise
    if launch.fault is not None:
        raise launch.fault
    return launch.found


class _Launch(threading.Thread):
    """The start of a JVM. It ends early if it is `unwanted`, or if this process ends."""

    found: tuple[subprocess.Popen[bytes], Any]

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(name="jvm-launch", daemon=False)
        self.begun, self.over = threading.Event(), threading.Event()
        self.unwanted = threading.Event()
        self.fault: BaseException | None = None
        self._command = command

    def run(self) -> None:
        self.begun.set()
        try:
            if self.unwanted.is_set():
                raise _NotWanted
            with tempfile.TemporaryDirectory(prefix="polynya-jvm-") as folder:
                self.found = self._launched(Path(folder, "connection"))
        except BaseException as fault:
            self.fault = fault
        finally:
            self.over.set()

    def _launched(self, connection_file: Path) -> tuple[subprocess.Popen[bytes], Any]:
        """Return the process and PySpark's gateway to it. The JVM needs the folder of
        `connection_file` to the end of its start."""
        from pyspark import java_gateway

        pyspark: Any = java_gateway
        variables = {
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        }
        environment = {**os.environ, **variables}
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment)
        try:
            port, secret = self._connection(process, connection_file)
            with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
                gateway = pyspark.launch_gateway()
            if self.unwanted.is_set():
                gateway.shutdown()
                raise _NotWanted
        except BaseException:
            _end(process, 0.0)
            raise
        return process, gateway

    def _connection(
        self, process: subprocess.Popen[bytes], connection_file: Path
    ) -> tuple[int, str]:
        """Wait for the file in which the JVM tells its port and secret, which comes as a whole."""
        while not connection_file.exists():
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(_POLL_SECONDS)
                raise ConfigError(f"Spark's JVM ended with {code} as it started; it says above why")
            if self.unwanted.is_set() or not threading.main_thread().is_alive():
                raise _NotWanted
        data = connection_file.read_bytes()
        port, length = _LENGTHS.unpack_from(data)
        return port, data[_LENGTHS.size : _LENGTHS.size + length].decode()


class _NotWanted(Exception):  # noqa: N818 (it is no error)
    """Raised when no caller waits for the JVM any more."""


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """End a process whose standard input keeps it running. Kill it after `seconds`."""
    if process.stdin is not None:
        with suppress(OSError):  # it has ended
            process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables of this process, as PySpark reads them nowhere else, and take them back."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
