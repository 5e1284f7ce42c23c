"""Check the optional dependencies of tables before anything starts, so that all missing ones are
reported at once."""

from __future__ import annotations

import importlib.util

from polynya.base.errors import ConfigError
from polynya.base.installation import install_command
from polynya.lakehouse.machine.java import find_java_home

PACKAGES = (
    "pyspark",
    "pyarrow",
    "pyiceberg",
    "deltalake",
    "cramjam",
    "fastavro",
)  # packages of the pipeline
READER = "duckdb"  # package of SQL queries
INSTALL = install_command("lake")


class NotInstalled(ConfigError):
    """Packages are missing. The message names them all; `INSTALL` has the command to install
    them."""


def missing_packages(names: tuple[str, ...] = (*PACKAGES, READER)) -> list[str]:
    """Return the packages that are not installed, without importing any."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_packages() -> None:
    """Check the packages that a job needs. Raises NotInstalled."""
    if missing := missing_packages(PACKAGES):
        raise NotInstalled(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        )


def check_pipeline() -> None:
    """Check the packages and find a working Java for Spark. Raises NotInstalled, ConfigError."""
    check_packages()
    find_java_home()
