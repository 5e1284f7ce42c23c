"""Pytest plugin: after each module the shared state of the process is as before.

Environment variables, the import path, the collector's state, the working directory, signal
handlers and the event loop policy. A difference is undone and fails the module's last test,
naming the test that left it."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

# what the product and pyspark set on purpose, for the JVM and its tasks: given back for the test
OF_A_JVM = re.compile(
    r"sys\.path|os\.environ\['(JAVA_HOME|PYTHONPATH|MALLOC_ARENA_MAX|(PY)?SPARK_\w+)'"
)
MAY_START_A_JVM = {"spark", "process"}
OWN = {"PYTEST_CURRENT_TEST"}  # which pytest sets for each step
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class State:
    """A snapshot of the shared state, one flat table of named parts."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {
            "sys.path": tuple(sys.path),
            "gc.isenabled()": gc.isenabled(),
            "gc.get_threshold()": gc.get_threshold(),
            "working directory": _working_directory(),
            "event loop policy": asyncio.get_event_loop_policy(),
        }
        self.parts |= {f"handler of {each.name}": signal.getsignal(each) for each in SIGNALS}
        self.environment = {name: value for name, value in os.environ.items() if name not in OWN}
        self.parts |= {f"os.environ[{name!r}]": value for name, value in self.environment.items()}

    def changed(self, before: State) -> dict[str, str]:
        """Return each part that differs, with both values."""
        names = before.parts.keys() | self.parts.keys()
        return {
            name: f"{name} was {_shown(before, name)} and is {_shown(self, name)}"
            for name in sorted(names)
            if before.parts.get(name) != self.parts.get(name)
        }

    def restore(self) -> None:
        sys.path[:] = self.parts["sys.path"]
        (gc.enable if self.parts["gc.isenabled()"] else gc.disable)()
        gc.set_threshold(*self.parts["gc.get_threshold()"])
        if (folder := self.parts["working directory"]) != _working_directory():
            os.chdir(folder)
        asyncio.set_event_loop_policy(self.parts["event loop policy"])
        for each in SIGNALS:
            handler = self.parts[f"handler of {each.name}"]
            if handler is not None and signal.getsignal(each) != handler:
                signal.signal(each, handler)
        for name in os.environ.keys() - self.environment.keys() - OWN:
            del os.environ[name]
        os.environ.update(self.environment)


class SharedState:
    """Compare after each test, so that the right one is named; fail after each module.

    `in_use` says that something which several modules share (one JVM) is still open: the check
    waits for its end."""

    def __init__(self, in_use: Callable[[], bool] = lambda: False) -> None:
        self._in_use = in_use
        self._before: State | None = None
        self._first: dict[str, str] = {}  # part -> the test after which it differed first
        self._has_jvm = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._before = self._before or State()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        yield
        assert self._before is not None
        before, changed = self._before, State().changed(self._before)
        self._has_jvm = self._has_jvm or any(
            mark.name in MAY_START_A_JVM for mark in item.iter_markers()
        )
        self._first = {name: self._first.get(name, item.nodeid) for name in changed}
        if (nextitem is not None and nextitem.path == item.path) or self._in_use():
            return
        changes = "; ".join(
            f"{text} (since {self._first[name]})"
            for name, text in changed.items()
            if not (self._has_jvm and OF_A_JVM.match(name))
        )
        self._before, self._first, self._has_jvm = None, {}, False
        if changed:
            before.restore()
        if changes:
            pytest.fail(
                f"this module changed what tests of one process share: {changes}; give it back, "
                "for example by `monkeypatch` or a fixture",
                False,
            )


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a removed folder"


def _shown(state: State, name: str) -> str:
    return repr(state.parts[name]) if name in state.parts else "absent"
