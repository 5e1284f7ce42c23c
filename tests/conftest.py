"""How Hypothesis works here: the same examples in every run, and as much time as a loaded machine
takes. And in which order files run.

A search for new ones: `pytest --hypothesis-profile=search`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cpu_seconds import Meter, kept, order
from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("steady")

ROOT = Path(__file__).parents[1]
PROCESSES = {"process", "spark", "conformance"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        type=Path,
        metavar="FILE",
        help="write the CPU seconds of each test there, as JSON",
    )


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Meter(path))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order whole files: the longest first by their recorded times, then those that start
    processes, then the rest. No worker is left with a long one when the others have ended.

    A report of the run (`--junitxml`) has the marks: `python -m chaos.tiers` counts by them."""
    for item in items:
        item.user_properties += [
            ("mark", name)
            for name in sorted({mark.name for mark in item.iter_markers()} & PROCESSES)
        ]
    with_processes = {
        item.path for item in items if any(mark.name in PROCESSES for mark in item.iter_markers())
    }
    seconds = order(kept())

    def turn(path: Path) -> tuple[float, bool]:
        return -seconds.get(path.relative_to(ROOT).as_posix(), 0.0), path not in with_processes

    items.sort(key=lambda item: turn(item.path))
