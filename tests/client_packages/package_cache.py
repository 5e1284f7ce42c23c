"""Builds of the clients in other languages, one for each state of their sources: they are kept
in the user's cache, which clones share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from missing import missing
from node_js import CACHE

ROOT = Path(__file__).parents[2]
BUILD = CACHE / "clients"
BUILD_SECONDS = 540
UNUSED_SECONDS = 7 * 24 * 3600
NO_SOURCES = {"node_modules", "dist", "target"}


def sources_of(folder: Path) -> list[Path]:
    """Return the files of a client, without those that are built."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and NO_SOURCES.isdisjoint(file.relative_to(folder).parts)
    )


def built(name: str, client: Path, toolchain: str, build: Callable[[Path], None]) -> Path:
    """Return the folder that `build` has filled from a copy of these sources. States that were not
    used for a week are deleted."""
    digest = hashlib.sha256(toolchain.encode())
    for file in sources_of(client):
        digest.update(f"{file.relative_to(client)}\0".encode() + file.read_bytes() + b"\0")
    folder = BUILD / f"{name}-{digest.hexdigest()[:16]}"
    with locked(name):
        if not (folder / "built").exists():
            shutil.rmtree(folder, ignore_errors=True)
            for old in BUILD.glob(f"{name}-*"):
                if old.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    shutil.rmtree(old)
            for file in sources_of(client):
                there = folder / "source" / file.relative_to(client)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, there)
            build(folder)
            (folder / "built").touch()
        os.utime(folder)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Let one process at a time build."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def ran(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> str:
    """Run a command of a build, and return its output; AssertionError with it if it fails. A
    registry that is out of reach is a missing requirement."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in OUT_OF_REACH):
        missing(f"the package registry is out of reach of {command[0]}: {said[-400:]}")
    assert done.returncode == 0, f"{' '.join(command)}:\n{said}"
    return done.stdout


OUT_OF_REACH = (
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ETIMEDOUT",
    "Could not resolve host",
    "failed to download",
    "Couldn't connect to server",
)
