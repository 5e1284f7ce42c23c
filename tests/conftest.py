"""Hypothesis settings: the same examples in every run, and enough time for a loaded machine. Also
the order of the test files.

`make long` tries more of them (`--hypothesis-profile=long`). A search for new ones: `pytest
--hypothesis-profile=search`."""

from __future__ import annotations

import contextlib
import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leftovers
import pytest
import shared_spark
import spark_classes
import steady_examples
from cpu_seconds import UNKNOWN, Meter, kept, order, slow
from hypothesis import HealthCheck, settings
from shared_state import SharedState
from sleep_guard import SleepGuard
from tiers.options import add_options, register_plugins
from tiers.process_watch import MARKS, is_of_processes

# tests of machines alone need all rules; a copy of `raft` for its mutants has no `stream`
with contextlib.suppress(ModuleNotFoundError):
    importlib.import_module("polynya.stream.registry")

settings.register_profile(
    "long", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("steady", settings.get_profile("long"), max_examples=40)
settings.register_profile(
    "search", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("steady")
steady_examples.use()

ROOT = Path(__file__).parents[1]
TOGETHER = {  # files that one worker runs, as they share what is dear: all sources, parsed; Spark
    "tests/test_layers.py": "sources",
    "tests/test_style.py": "sources",
    "tests/test_words.py": "sources",
    **dict.fromkeys(shared_spark.FILES, "spark"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs",
        type=Path,
        metavar="FILE",
        help="write the CPU seconds of each test there, as JSON",
    )
    add_options(parser)
    parser.addoption(
        "--quick", action="store_true", help="leave out the tests that are recorded as slow"
    )


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected, which stays
    spark_classes.use()
    config.pluginmanager.register(SleepGuard())
    config.pluginmanager.register(SharedState(in_use=shared_spark.is_open))
    if path := config.getoption("--costs"):
        config.pluginmanager.register(Meter(path))
    register_plugins(config)
    config.pluginmanager.register(leftovers)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files, and all files of a group."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByGroups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return TOGETHER.get(path, path)

    return ByGroups(config, log)


def pytest_sessionstart() -> None:
    """Ask git for the commit once, which the first test that shows it would start otherwise."""
    with contextlib.suppress(ImportError):  # mutants run with a part of the product
        from polynya.observability.build import commit

        commit()


def pytest_collection_finish() -> None:
    """Let the collector pass over what stays to the end: modules, and thousands of tests."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as in a core
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    shared_spark.end_before(nextitem)


@pytest.fixture(scope="module")
def without_collector() -> Iterator[None]:
    """Switch the collector off: millions of syntax nodes are made, in no cycle, and stay."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order whole files: the longest first by their recorded times, then those that start
    processes, then the rest. No worker is left with a long one when the others have ended.

    A report of the run (`--junitxml`) has the marks, and so has a file of costs."""
    if config.getoption("--quick"):
        left_out = slow()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    for item in items:
        item.user_properties += [
            ("mark", name) for name in sorted({mark.name for mark in item.iter_markers()} & MARKS)
        ]
    with_processes = {item.path for item in items if is_of_processes(item)}
    seconds = order(kept())

    def turn(path: Path) -> tuple[float, bool]:
        unknown = UNKNOWN.wall if path in with_processes else 0.0
        known = seconds.get(path.relative_to(ROOT).as_posix(), unknown)
        return -known, path not in with_processes

    items.sort(key=lambda item: turn(item.path))
