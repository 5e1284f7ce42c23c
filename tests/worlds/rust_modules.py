"""Rust for tests: a cargo that builds for WebAssembly."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from missing import missing, needed_program

TARGET = "wasm32-unknown-unknown"
SECONDS = 300


@functools.cache
def cargo() -> str:
    """Return a cargo that builds for WebAssembly; rustup adds the target."""
    program = needed_program("cargo")
    libraries = ["rustc", "--print", "target-libdir", "--target", TARGET]
    found = subprocess.run(libraries, capture_output=True, text=True, check=False)
    if found.returncode or not Path(found.stdout.strip()).exists():
        add = [needed_program("rustup"), "target", "add", TARGET]
        added = subprocess.run(add, capture_output=True, text=True, timeout=SECONDS, check=False)
        if added.returncode:
            missing(f"the Rust target {TARGET} cannot be installed: {added.stderr[-500:]}")
    return program
