"""TLC, the model checker of TLA+, run on the specifications of docs/design/tla."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from missing import missing, needed_program
from spark_jars import tlc_jar

TLA = Path(__file__).parents[1] / "docs" / "design" / "tla"
HOLDS, DEADLOCK, VIOLATED = 0, 11, 12  # exit codes
# a JVM for one small model: its compiler would cost more than the search
JAVA = ("-Xmx600m", "-Xss16m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def check(folder: Path, module: str, config: str) -> tuple[int, str]:
    """Return TLC's exit code and output. `folder` may have more modules."""
    jar, why = tlc_jar()
    if why:
        missing(why)
    for path in TLA.glob("*.tla"):
        shutil.copy(path, folder)
    (folder / "model.cfg").write_text(config)
    command = [needed_program("java"), *JAVA, "-cp", jar, "tlc2.TLC", "-workers", "1"]
    command += ["-metadir", "states", "-config", "model.cfg", f"{module}.tla"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    return done.returncode, done.stdout + done.stderr
