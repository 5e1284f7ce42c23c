"""How Hypothesis works here: the same examples in every run, and as much time as a loaded machine takes. And in which order files run.

A search for new ones: `pytest --hypothesis-profile=search`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("steady")

LONGEST = (  # half a minute and more, most of it waiting; at every third place one that starts a JVM, which computes
    "test_chaos_run", "test_quickstarts", "test_e2e_cluster",
    "test_e2e_membership", "test_pipe_together", "test_e2e_recovery",
    "test_e2e_disk", "test_lake_spark", "test_e2e_kill",
    "test_e2e_access", "test_pipe_kills", "test_e2e_backup",
    "test_pipe_sql", "test_demo", "test_e2e_month",
    "test_e2e_soak", "test_pipe_worker", "test_e2e_cores",
    "test_official_javascript", "test_pipe_s3", "test_official_python",
    "test_console_browser", "test_against_a_node", "test_raft_mutants",
)  # fmt: skip
PROCESSES = {"process", "spark", "conformance"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole files: the longest, then those that start processes, then the rest. No worker is left with a long one when the others have ended.
    A report of the run (`--junitxml`) has the marks: `python -m chaos.tiers` counts by them."""
    for item in items:
        item.user_properties += [("mark", name) for name in sorted({mark.name for mark in item.iter_markers()} & PROCESSES)]
    with_processes = {item.path for item in items if any(mark.name in PROCESSES for mark in item.iter_markers())}

    def turn(path: Path) -> tuple[int, bool]:
        return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST), path not in with_processes

    items.sort(key=lambda item: turn(item.path))
