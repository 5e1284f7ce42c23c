"""A plugin that fails a run with leftover processes; `conftest.py` registers it.

All that a run starts have its name in their environment: forks, and what leads a session of its
own, too. Those below the process of the run end with it; the others have lost their parents."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress

import psutil
import pytest
from polling import wait_until

NAME = "TESTS_RUN"  # the variable
GONE_SECONDS = 20.0  # they may be about to end
LEFT = pytest.StashKey[list[str]]()  # of the run's configuration: what `orphans` found at its end
_started: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker is a part of its run, as a run in a run is
        os.environ[NAME] = f"{os.environ.get(NAME, '')}/{secrets.token_hex(8)}"
        _started.append(os.environ[NAME])


@pytest.hookimpl(trylast=True)  # the workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return
    with suppress(AssertionError):
        wait_until(lambda: not orphans(_started[-1]), what="the end of all", seconds=GONE_SECONDS)
    if found := orphans(_started[-1]):
        session.config.stash[LEFT] = found
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        out = session.config.get_terminal_writer()
        out.line()
        for each in found:
            out.line(f"left behind: {each}", red=True)


def orphans(run: str) -> list[str]:
    """Return the number and the command line of each process of this run that is not below this
    one."""
    own = psutil.Process()
    ours = {own.pid, *(each.pid for each in own.children(recursive=True))}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if (
                process.pid not in ours
                and f"{process.environ().get(NAME, '')}/".startswith(f"{run}/")
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
    return found
