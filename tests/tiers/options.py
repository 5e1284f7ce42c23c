"""The options and plugins of pytest by which the tests are divided into tiers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiers.marked_files import OPTION, MarkedFiles, NoOtherMarks
from tiers.outcome import OutcomeWriter
from tiers.process_watch import ProcessWatch


def add_options(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcome", type=Path, metavar="FILE", help="write the outcome of the run there, as JSON"
    )
    parser.addoption(
        OPTION, action="store_true", help="collect only files that name a mark for processes"
    )


def register_plugins(config: pytest.Config) -> None:
    """Watch the starts of processes, and write the outcome where all reports come together."""
    if (path := config.getoption("--outcome")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(OutcomeWriter(path))
    config.pluginmanager.register(ProcessWatch())
    config.pluginmanager.register(MarkedFiles() if config.getoption(OPTION) else NoOtherMarks())
