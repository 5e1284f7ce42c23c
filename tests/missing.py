"""Missing requirements of the machine: the test is skipped with the name of the requirement; in CI
it fails."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeVar

import pytest

PACKAGES = {"kcat"}  # of Debian, that CI installs when a test needs the program
Started = TypeVar("Started")


class CannotStart(Exception):
    """Raised with the reason why a server or program is missing."""


def missing(why: str) -> NoReturn:
    """End the test, or the module that is being imported."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {why}", pytrace=False)
    pytest.skip(why, allow_module_level=True)


def left_out(why: str) -> NoReturn:
    """End the test also in CI, which is not asked to have this: root, another user, IPv6, a
    kernel's or a system's own features."""
    pytest.skip(why, allow_module_level=True)


def needed_program(*names: str) -> str:
    """Return the path of the first program that is installed. CI installs some of them."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None and os.environ.get("CI") and names[0] in PACKAGES:
        _install(names[0])
        found = shutil.which(names[0])
    return found or missing(f"not installed: {' or '.join(names)}")


def _install(package: str) -> None:
    """Install a Debian package, if this user may. Other test processes wait."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    command = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    with (Path(tempfile.gettempdir()) / "polynya-apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for arguments in (["update"], ["install", "--no-install-recommends", package]):
            subprocess.run(
                [*command, *arguments],
                capture_output=True,
                timeout=300,
                check=False,
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )


def needed_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as reason:
        missing(f"not installed: {name} ({reason})")


@contextmanager
def needed(what: str, start: AbstractContextManager[Started]) -> Iterator[Started]:
    """Start a requirement of the test; `CannotStart` skips it."""
    with ExitStack() as stack:
        try:
            started = stack.enter_context(start)
        except CannotStart as reason:
            missing(f"no {what}: {reason}")
        yield started
