"""Runs of pytest on planted tests, in a folder with what divides the tests into tiers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin",
}  # the others are slow
CONFTEST = """
from tiers.options import add_options as pytest_addoption, register_plugins as pytest_configure
"""
SETTINGS = f"""
[pytest]
pythonpath = {TESTS}
markers =
    process: starts a process
    spark: starts a JVM
    conformance: runs a suite
    long: long
"""
START = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"


def plant(folder: Path, tests: str) -> None:
    """Write a file of tests with its settings."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_planted.py").write_text(f"import pytest\n{tests}")


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python there, with the helpers of the tests on its path."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(TESTS), "COLUMNS": "200", **PLUGINS},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
