"""Programs in Java that tests run: each is compiled once, as to run a source file costs as much CPU
as many of the tests."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from node_js import CACHE

COMPILE_SECONDS = 120.0


def compiled(source: Path, jars: Path) -> tuple[str, ...]:
    """Return the arguments of `java` that run the class of a source file with the jars of a
    folder."""
    digest = hashlib.sha256(source.read_bytes() + str(jars).encode()).hexdigest()
    classes = CACHE / "java-programs" / f"{source.stem}-{digest[:16]}"
    if not classes.is_dir():
        fresh = classes.with_name(f"{classes.name}.{os.getpid()}")
        command = ["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(fresh), str(source)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        with suppress(OSError):  # another run was first
            fresh.rename(classes)
        shutil.rmtree(fresh, ignore_errors=True)
    return ("-cp", f"{classes}:{jars}/*", source.stem)
