"""What tables need that the lean server does not install: looked for before anything starts, so that what is missing is said once."""

from __future__ import annotations

import importlib.util

from polynya.base.errors import ConfigError
from polynya.lakehouse.java import find_java_home

PACKAGES = ("pyspark", "pyarrow", "pyiceberg", "deltalake")  # of the pipeline
READER = "duckdb"  # of questions
INSTALL = "pip install 'polynya[lake]'"


class NotInstalled(ConfigError):
    """Packages are missing; the message names them all, not how to install them, which is `INSTALL`."""


def missing_packages(names: tuple[str, ...] = (*PACKAGES, READER)) -> list[str]:
    """Nothing is imported."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def check_packages() -> None:
    """Raises NotInstalled when a job could not run here."""
    if missing := missing_packages(PACKAGES):
        raise NotInstalled(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")


def check_pipeline() -> None:
    """The packages, and a Java for Spark, which is looked for by running it. Raises NotInstalled, ConfigError."""
    check_packages()
    find_java_home()
