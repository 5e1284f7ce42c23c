"""The jars with which Spark itself reads Iceberg and Delta, for the tests: from Maven Central, once, into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from missing import needed_module

JARS = (
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "io.delta:delta-spark_4.1_2.13:4.4.0",
    "io.delta:delta-storage:4.4.0",
)
READERS_VERSION = "4.1."  # no Iceberg runtime is there for later ones


def fetched(folder: Path) -> tuple[str, str]:
    """The readers' jars, comma-separated; or "" and why they cannot be had. They come from Maven Central, once."""
    pyspark = needed_module("pyspark")
    if not pyspark.__version__.startswith(READERS_VERSION):
        return "", f"the readers' jars are for PySpark {READERS_VERSION}x, this is {pyspark.__version__}"
    paths = []
    for artifact in JARS:
        _, name, version = artifact.split(":")
        path = folder / f"{name}-{version}.jar"
        if not path.exists():
            if shutil.which("mvn") is None:
                return "", f"{path} is not there, and neither is mvn to fetch it"
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
            command = ["mvn", "-q", "-B", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode or not path.exists():
                return "", f"{artifact} could not be fetched: {done.stdout.strip()[-300:]}"
        paths.append(str(path))
    return ",".join(paths), ""


@pytest.fixture(scope="module")
def jars() -> tuple[str, str]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return fetched(cache / "polynya" / "jars")
