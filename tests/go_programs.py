"""Programs in Go that tests build."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from missing import left_out

BUILD_SECONDS = 300.0  # of the compiler, with the modules that it fetches once


def built(folder: Path, package: str, program: Path) -> Path:
    """Build a package of the module in `folder` as `program`, and return that. Leave the test out if
    there is no Go, or no module proxy."""
    go = shutil.which("go")
    if go is None:
        left_out(f"{folder.name}: Go is not installed")
    done = subprocess.run(
        [go, "build", "-o", str(program), package],
        cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode and "dial tcp" in done.stderr:
        left_out(f"{folder.name}: the Go module proxy is out of reach: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return program
