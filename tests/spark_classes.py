"""An archive of the classes that Spark loads, for the JVMs of the tests: a session computes a third
less with it (JDK guide, "Class Data Sharing").

`python -m spark_classes` makes it, which `make setup` does; without it tests are slower. A JVM of
another version or with other jars passes over it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / ".build"
ARCHIVE = FOLDER / f"spark-classes{Path(sys.prefix).name}.jsa"  # one for each environment
VARIABLE = "SPARK_SUBMIT_OPTS"  # what Spark's own launcher gives a driver's JVM
# as the product gives its own JVMs: half the CPU seconds of a foreign session that reads a small table
LEAN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DUMP_SECONDS = 300.0  # at the end of the JVM


def options_with(archive: Path) -> str:
    """Return the JVM's options. It says nothing of an archive that does not fit."""
    return (
        f"{LEAN} -XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    )


def use() -> None:
    """Let the drivers that this process and its children start use the archive, if there is one."""
    if " " not in str(ARCHIVE) and os.access(ARCHIVE, os.R_OK) and ARCHIVE.stat().st_size:
        os.environ.setdefault(VARIABLE, options_with(ARCHIVE))


def _play(session: Any, folder: Path) -> None:
    """Load the classes that jobs and readers of the tests need."""

    def same(batches: Any) -> Any:
        yield from batches

    session.range(0, 4, 1, 2).mapInArrow(same, "id long").collect()
    (folder / "in").mkdir()
    (folder / "in" / "a.json").write_text('{"k": "x", "v": 1}\n{"k": "y", "v": 2}\n')
    rows = session.read.schema("k string, v int").json(str(folder / "in"))
    rows.write.parquet(str(folder / "out"))
    session.read.parquet(str(folder / "out")).createOrReplaceTempView("rows")
    session.sql(
        "select r.k, count(*), sum(v), from_json('{\"n\": 1}', 'n int') from rows r "
        "join (select distinct k from rows) d on r.k = d.k group by r.k order by r.k"
    ).collect()
    stream = session.readStream.schema("k string, v int").json(str(folder / "in"))
    written = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True)
    written.option("checkpointLocation", str(folder / "check")).start().awaitTermination()


def make() -> None:
    """Record what a session loads. The JVM writes the archive when it ends."""
    from polynya.lakehouse.jobs.spark import SparkRunner
    from polynya.lakehouse.machine import jvm
    from polynya.lakehouse.machine.java import find_java_home

    jvm.ENDS_SECONDS = DUMP_SECONDS
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        folder = Path(made)
        archive = folder / "archive"
        os.environ[VARIABLE] = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds*=off"
        runner = SparkRunner("local[2]")
        try:
            _play(runner.session, folder)
        finally:
            runner.close()
        java = [f"{find_java_home()}/bin/java", *options_with(archive).split(), "-version"]
        subprocess.run(java, check=True, capture_output=True)
        archive.replace(ARCHIVE)


if __name__ == "__main__":
    try:
        make()
    except Exception as error:
        print(f"no archive of Spark's classes, so its tests take longer: {error}")
        ARCHIVE.write_bytes(b"")  # not tried again
