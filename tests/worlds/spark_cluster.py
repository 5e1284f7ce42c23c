"""A standalone Spark cluster on the loopback: a master and workers from PySpark's own jars, each as
if on a machine of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from free_ports import free_ports
from missing import needed_module
from polling import wait_until
from product import WITH_US

from polynya.lakehouse.machine.java import find_java_home

WORKER_MB = 700
EXECUTOR_MEMORY = "512m"  # Spark takes no less
START_SECONDS = 120.0
LEAN = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx192m")
OPENED = (  # what Spark's own launcher opens
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent",
    "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.util.calendar",
)  # fmt: skip
LOGGING = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""


class SparkCluster:
    """A master and some workers of one core each. A worker has a home, a working folder, Spark and
    a Python at paths of its own, and nothing of this process's environment."""

    def __init__(self, folder: Path, workers: int = 2, **variables: str) -> None:
        (self.port,) = free_ports(1)
        self.url = f"spark://127.0.0.1:{self.port}"
        self.folder = folder
        folder.mkdir()
        (folder / "log4j2.properties").write_text(LOGGING)
        (folder / "spark").symlink_to(Path(needed_module("pyspark").__file__ or "").parent)
        (folder / "python").symlink_to(sys.prefix)
        self.python = str(folder / "python" / "bin" / "python")
        self._variables = variables
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start("master.Master", "master", "--port", str(self.port))
            self._wait("master", "Successfully started service 'sparkMaster'")
            for number in range(workers):
                self._start(
                    "worker.Worker",
                    f"worker{number}",
                    *("--cores", "1", "--memory", f"{WORKER_MB}m", "--port", "0"),
                    *("--work-dir", str(folder / f"worker{number}" / "work"), self.url),
                )
            for number in range(workers):
                self._wait(f"worker{number}", "Successfully registered with master")
        except BaseException:
            self.close()
            raise

    def settings(self) -> dict[str, str]:
        """Return the `--conf` settings of a driver on the loopback."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.pyspark.python": self.python,
            "spark.executor.memory": EXECUTOR_MEMORY,
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": " ".join(LEAN[:2]),
        }

    def close(self) -> None:
        """End the workers, which end their executors, and then the master."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)

    def _start(self, kind: str, name: str, *arguments: str) -> None:
        home = self.folder / name
        home.mkdir()
        java = find_java_home()
        command = [
            f"{java}/bin/java",
            *LEAN,
            *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *("-cp", f"{self.folder / 'spark' / 'jars'}/*", f"org.apache.spark.deploy.{kind}"),
            *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
        ]
        own: dict[str, Any] = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "JAVA_HOME": java,
            "HOME": str(home),
            "SPARK_HOME": str(self.folder / "spark"),
            "SPARK_SCALA_VERSION": "2.13",  # as load-spark-env.sh of the jars' own scripts
            "SPARK_LOCAL_IP": "127.0.0.1",
            "LANG": "C.UTF-8",
        }
        with (home / "log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*WITH_US, *command],
                    cwd=home,
                    env=own | self._variables,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _wait(self, name: str, word: str) -> None:
        process, log = self._processes[-1], self.folder / name / "log"

        def look() -> bool:
            said = log.read_text(errors="replace")
            assert word in said or process.poll() is None, f"{name} ended:\n{said[-3000:]}"
            return word in said

        wait_until(look, what=f"{name} to say {word}", seconds=START_SECONDS)
